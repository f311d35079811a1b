"""Arguments of operators: judged when the Dag is parsed, where they can be, and when used."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

if TYPE_CHECKING:
    from collections.abc import Collection

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class WrongArgumentError(AirflowFailException, ValueError):
    """An argument is missing or wrong: a retry would not change that, so none is made."""


def is_known(value: Any) -> bool:
    """Whether a value is final when the Dag is parsed: no template, no output of another task."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    return not hasattr(value, "iter_references")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Refuse what is none of the choices.

    :raises WrongArgumentError: it is not; what is not known yet is let through.
    """
    if is_known(value) and value not in choices:
        known = " or ".join(f"{choice!r}" for choice in choices)
        raise WrongArgumentError(f"{name} is {value!r}, and must be {known}")


def check_function(name: str, value: Any) -> None:
    """Refuse what is no import path of a function.

    :raises WrongArgumentError: it is not; what is not known yet is let through.
    """
    if is_known(value) and not (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        raise WrongArgumentError(f"{name} is {value!r}, and must be 'module:function'")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither yes nor no.

    :raises WrongArgumentError: it is neither; what is not known yet is let through.
    """
    if is_known(value):
        flag(name, value)


def flag(name: str, value: Any) -> bool:
    """Yes or no, which templates make a text: any text would count as yes.

    :raises WrongArgumentError: it is neither.
    """
    if isinstance(value, bool):
        return value
    found = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise WrongArgumentError(
            f"{name} is {value!r}, and must be True or False: look at its template"
        )
    return found


def given(**values: Any) -> frozenset[str]:
    """Names of the arguments that are not None before templates are rendered.

    Only these must not be None afterwards: what is made of nothing would else count as not given.
    """
    return frozenset(name for name, value in values.items() if value is not None)


def check_either(name: str, value: Any, other: str, other_value: Any) -> None:
    """Refuse two arguments of which one would win unseen.

    :raises WrongArgumentError: both are given.
    """
    if value is not None and other_value is not None:
        raise WrongArgumentError(f"{name} and {other} are both given: give one of them")


def required(name: str, value: Any) -> str:
    """A text that a template made.

    :raises WrongArgumentError: it is empty or none: what it was made of is missing.
    """
    # `None` as a text is what Jinja makes of a value that is not there.
    if value in (None, "", "None"):
        raise WrongArgumentError(
            f"{name} is {'empty' if value == '' else 'None'}: look at its template, and at the "
            "task whose output it uses"
        )
    return str(value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping that templates may have filled; empty where there is none.

    :raises WrongArgumentError: it is something else, such as a text that looks like a mapping.
    """
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise WrongArgumentError(f"{name} is a {type(value).__name__}, and must be a mapping")
    return dict(value)


def texts(name: str, value: Any) -> list[str]:
    """Several texts; one alone stands for a list of it, and not for its letters.

    :raises WrongArgumentError: one is empty or none, or one text was made of a list.
    """
    if isinstance(value, str):
        check_no_list(name, value)
    found = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
    return [required(name, item) for item in found]


def some_texts(name: str, value: Any) -> list[str]:
    """Several texts, and at least one.

    :raises WrongArgumentError: there is none: what it was made of is missing.
    """
    found = texts(name, value)
    if not found:
        raise WrongArgumentError(f"{name} is empty: look at its template, or leave it out")
    return found


def check_no_list(name: str, value: str) -> None:
    """Refuse a text that a template made of a list.

    :raises WrongArgumentError: it is one.
    """
    try:
        found = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    if isinstance(found, list | tuple | set | dict):
        raise WrongArgumentError(
            f"{name} is the text of a list, and not a list: give the output of the task (.output), "
            "or set render_template_as_native_obj=True on the Dag"
        )


def number(name: str, value: Any) -> int:
    """A whole number, which templates make a text.

    :raises WrongArgumentError: it is none.
    """
    try:
        found = int(value)
        if isinstance(value, str) or found == value:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise WrongArgumentError(f"{name} is {value!r}, and must be a whole number")


def numbers(name: str, value: Any) -> list[int]:
    """Whole numbers, as a list or as the text of one, such as ``[365, 180]``.

    :raises WrongArgumentError: it is none.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value.replace("(", "[").replace(")", "]"))
        except ValueError:
            value = None
    if not isinstance(value, Sequence):
        raise WrongArgumentError(f"{name} must be a list of whole numbers, such as [365, 180]")
    return [number(name, item) for item in value]
