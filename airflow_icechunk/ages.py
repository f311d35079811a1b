"""Ages and times, as arguments of operators give them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_icechunk.arguments import WrongArgumentError, is_known

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

type Age = timedelta | datetime | str
"""How long ago, or a time; as a text: seconds, an age such as ``7d``, or an ISO 8601 time."""


def as_time(name: str, age: Age) -> datetime:
    """The time that an age or a text stands for.

    :param name: of the argument.
    :param age: its value.
    :raises WrongArgumentError: it is neither an age nor a time with a zone.
    """
    moment = _parsed(name, age)
    if isinstance(moment, timedelta):
        return datetime.now(UTC) - moment
    if moment.tzinfo is None:
        raise WrongArgumentError(
            f"{name}: {moment} has no time zone: say which it is, as in "
            f"{moment.isoformat()}Z (UTC) or {moment.isoformat()}+02:00"
        )
    return moment


def check_age(name: str, age: Age) -> None:
    """Refuse what is no age; what is not known before the task runs is let through.

    :raises WrongArgumentError: it is none.
    """
    if is_known(age):
        as_time(name, age)


def span(text: object) -> timedelta | None:
    """How long it is, as the command line writes it: ``90m``, ``36h``, ``7d``, ``8w``.

    None where it is written otherwise.
    """
    found = re.fullmatch(r"(\d+)([mhdw])", text.strip()) if isinstance(text, str) else None
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    except OverflowError:
        return None


def seconds(name: str, value: timedelta | float | str) -> float:
    """How long, in seconds.

    :raises WrongArgumentError: it is neither a number nor a time span.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if (found := span(value)) is not None:
        return found.total_seconds()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise WrongArgumentError(
            f"{name} is {value!r}, and must be seconds, or 90m, 36h, 7d"
        ) from None


def _parsed(name: str, age: Age) -> timedelta | datetime:
    if isinstance(age, timedelta | datetime):
        return age
    if (found := span(age)) is not None:
        return found
    try:
        return timedelta(seconds=float(age))
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(age)
    except (TypeError, ValueError):
        raise WrongArgumentError(
            f"{name} is {age!r}, and must be a timedelta, seconds, an age such as 90m, 36h, "
            "7d or 8w, or a time such as 2026-01-31T00:00:00Z"
        ) from None
