"""The options of the data sources: text, shown in query plans, and therefore without secrets."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.storage.settings import public

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.session import Session

    type Options = Mapping[str, str]


def open_repository(options: Options) -> Repository:
    """The repository of the options `url`, `storage_options`, `credentials`, `virtual_chunks`."""
    given = public_options(_json_object(options, "storage_options"))
    credentials = options.get("credentials")
    function = None if credentials is None else import_function(credentials)
    return Repository.open(
        required(options, "url"),
        given,
        credentials=function,
        authorize_virtual_chunk_access=dict.fromkeys(names_in(options, "virtual_chunks")),
    )


def open_session(options: Options) -> Session:
    """What `branch`, `tag` or `snapshot_id` name, or the branch as it was at `as_of`.

    Without them, it is the tip of main.

    Raises:
        InvalidInputError: two of them contradict each other.
    """
    given = {name: options[name] for name in ("branch", "tag", "snapshot_id") if name in options}
    if len(given) > 1:
        raise InvalidInputError(
            f"the options {' and '.join(given)} contradict each other: give one of them",
            kind="contradicting-options",
        )
    if "as_of" not in options:
        return open_repository(options).readonly_session(
            given.get("branch", None if given else "main"),
            tag=given.get("tag"),
            snapshot_id=given.get("snapshot_id"),
        )
    if given.keys() - {"branch"}:
        raise InvalidInputError(
            f"the options as_of and {', '.join(given)} contradict each other: only branches move",
            kind="contradicting-options",
        )
    when = _time(options["as_of"])
    return open_repository(options).readonly_session(options.get("branch", "main"), as_of=when)


def flag(options: Options, name: str, default: bool) -> bool:
    """Whether an option is on.

    Raises:
        InvalidInputError: it is neither `true` nor `false`.
    """
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"the option {name!r} is 'true' or 'false', not {options[name]!r}")
    return text == "true"


def coordinates_in(options: Options) -> bool | list[str]:
    """The option `coordinates`: all that there are, none, or the columns that hold labels."""
    text = options.get("coordinates", "true").strip().lower()
    return text == "true" if text in ("true", "false") else names_in(options, "coordinates")


def _time(text: str) -> datetime:
    """A time; one without an offset is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"the option 'as_of' is {text!r}, and not a time like 2026-11-18T06:00:00Z"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def required(options: Options, name: str) -> str:
    if name not in options:
        raise InvalidInputError(f"the option {name!r} is missing", kind="missing-option")
    return options[name]


def _json_object(options: Options, name: str) -> dict[str, Any]:
    try:
        found = json.loads(options.get(name, "{}"))
    except ValueError as error:
        raise InvalidInputError(f"the option {name!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"the option {name!r} is not a JSON object")
    return found


def names_in(options: Options, name: str) -> list[str]:
    """The names in an option, which has commas between them."""
    return [part.strip() for part in options.get(name, "").split(",") if part.strip()]


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options, if none of them may be secret.

    Raises:
        InvalidInputError: naming those that may.
    """
    shared = public(options)
    secret = {name for name, value in options.items() if shared.get(name) != value}
    if secret:
        raise InvalidInputError(
            f"{', '.join(sorted(secret))} may be secret: let a credentials function or the "
            "environment give it",
            kind="secret-option",
        )
    return dict(options)


def import_function(text: str) -> Callable[..., Any]:
    """The function at `module:name`.

    Raises:
        InvalidInputError: there is none. What is wrong inside the module is raised as it is.
    """
    module, separator, name = text.partition(":")
    if not separator:
        raise InvalidInputError(f"{text!r} is not MODULE:FUNCTION")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InvalidInputError(
            f"{text!r}: there is no module {error.name} on the path of Python"
        ) from error
    function: Callable[..., Any] | None = getattr(found, name, None)
    if not callable(function):
        raise InvalidInputError(f"{text!r}: {module} has no function {name!r}")
    return function
