"""Options of file systems, checked by name: a typo is neither ignored nor taken for a bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from icefloe.errors import InvalidInputError

_SET_BY_US = frozenset({"self", "args", "kwargs", "storage_options", "use_listings_cache", "loop"})
_OF_FSSPEC = frozenset({"batch_size"})


def names_of(*functions: Callable[..., Any]) -> frozenset[str]:
    """The named arguments of functions, as far as they are ours to give."""
    found = (inspect.signature(function).parameters for function in functions)
    return frozenset().union(*found) - _SET_BY_US


def check_options(
    options: Mapping[str, Any],
    known: Collection[str],
    url: str,
    nested: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Refuse options that the file system of a URL does not have.

    Args:
        options: those given, credentials included; values are not shown.
        known: the names that there are.
        url: for the message.
        nested: the names inside of options that are mappings themselves.

    Raises:
        InvalidInputError: one is unknown (kind `unknown-storage-option`), or no mapping.
    """
    known = {*known, *_OF_FSSPEC}
    _check(options, known, f"storage_options of {url}")
    for outer, names in (nested or {}).items():
        inside = options.get(outer)
        if inside is None:
            continue
        if not isinstance(inside, Mapping):
            raise InvalidInputError(
                f"storage_options of {url}: {outer} is a {type(inside).__name__}, not a mapping",
                kind="invalid-storage-option",
            )
        _check(inside, names, f"{outer} in storage_options of {url}")


def _check(options: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name in options:
        if name in known:
            continue
        near = get_close_matches(str(name), sorted(known), n=3)
        meant = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise InvalidInputError(
            f"{where}: there is no option {name!a}. {meant}There are: "
            f"{', '.join(sorted({*known, 'deadline'}))}",
            kind="unknown-storage-option",
        )
