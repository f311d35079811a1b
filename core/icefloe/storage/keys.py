"""Keys and prefixes: plain relative paths, checked before any store sees them."""

from __future__ import annotations

from icefloe.errors import InvalidInputError


def check_key(key: str) -> str:
    """Return `key` if it stays below any root.

    Raises:
        InvalidInputError: it is empty or absolute, or has an empty, `.` or `..` segment, a NUL, or
            a lone surrogate.
    """
    if not _is_relative(key) or any(part in {"", ".", ".."} for part in key.split("/")):
        raise InvalidInputError(f"not a storage key: {key!r}", kind="invalid-key")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it begins some key; unlike a key it may be empty, or stop at a slash.

    Raises:
        InvalidInputError: no key can begin so.
    """
    *folders, _ = prefix.split("/")
    if not _is_relative(prefix) or any(part in {"", ".", ".."} for part in folders):
        raise InvalidInputError(f"not a prefix of storage keys: {prefix!r}", kind="invalid-key")
    return prefix


def _is_relative(text: str) -> bool:
    return isinstance(text, str) and "\0" not in text and is_unicode(text)


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
