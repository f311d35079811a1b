"""Ages and times, as arguments of operators give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

type Age = timedelta | datetime | str
"""How long ago, or a time; as a text, seconds or an ISO 8601 time."""


def as_time(age: Age) -> datetime:
    """The time that an age or a text stands for.

    :raises ValueError: the text is neither seconds nor a time with a zone.
    """
    moment = _parsed(age) if isinstance(age, str) else age
    if isinstance(moment, timedelta):
        return datetime.now(UTC) - moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: which moment is that?")
    return moment


def _parsed(text: str) -> timedelta | datetime:
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return datetime.fromisoformat(text)
