"""Commit messages, metadata and write keys: what users say of a change, checked beforehand.

Whatever passes here can be written and read again, by the official client too. It is checked before
the first byte is written, so that bad input leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.format.metadata import encode_values

if TYPE_CHECKING:
    from icefloe.format.metadata import Json

WRITE_KEY = "icefloe.write_key"
"""Metadata of a snapshot: the key under which it was written once."""
STAGED_ON = "icefloe.staged_on"
"""Metadata of a staged snapshot: the staged one below it, which a merge has to publish, too."""
PUBLISHED_FROM = "icefloe.published_from"
"""Metadata of a published copy: the staged snapshot that it publishes."""
_INSTEAD = {
    WRITE_KEY: "pass write_key=... to make the write happen once",
    STAGED_ON: "open the session with writable_session(snapshot_id=...) to add to a staged write",
    PUBLISHED_FROM: "call Repository.publish to publish a staged write",
}
"""What icefloe notes itself in a snapshot's metadata and goes by, and how to have it noted."""
MAX_MESSAGE_BYTES = 64 * 2**10
"""Of a commit message in UTF-8. Every open of a repository reads the messages of all commits."""
MAX_METADATA_BYTES = 2**20
"""Of all metadata of one commit, or of the repository, as it is stored."""
MAX_KEY_BYTES = 1024
"""Of a write key in UTF-8."""


def check_message(message: Any, name: str = "message") -> str:
    """The message, if it can be kept.

    Raises:
        InvalidInputError: it is no text, not Unicode, or too long.
    """
    size = _utf8_size(message, name, "describe the change in a str")
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInputError(
            f"{name} has {size} bytes, {MAX_MESSAGE_BYTES} at most are kept with every commit: "
            "put long reports into an array, or into an object of your own",
            kind="message-too-long",
        )
    return str(message)


def check_metadata(metadata: Any, name: str = "metadata") -> dict[str, Json]:
    """A copy of the metadata that a user gives a commit, if it can be kept; nothing for None.

    Raises:
        InvalidInputError: it is no mapping of names to JSON values, too large, or holds a key that
            icefloe sets itself.
    """
    kept = check_json(metadata, name)
    for key, instead in _INSTEAD.items():
        if key in kept:
            raise InvalidInputError(
                f"{name} has the key {key!r}, which icefloe sets itself: leave it out (also where "
                f"you copy the metadata of another snapshot), and {instead}",
                kind="reserved-metadata-key",
            )
    return kept


def check_json(metadata: Any, name: str = "metadata") -> dict[str, Json]:
    """A copy of the metadata of a commit or of the repository, whatever its keys.

    Raises:
        InvalidInputError: it is no mapping of names to JSON values, or too large.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidInputError(
            f"{name} is {_shown(metadata)}: pass a dict of JSON values", kind="invalid-metadata"
        )
    kept = dict(metadata)
    names, values = encode_values(kept)
    size = int(names.length.sum() + values.length.sum())
    if size > MAX_METADATA_BYTES:
        raise InvalidInputError(
            f"{name} takes {size} bytes, {MAX_METADATA_BYTES} at most are kept: "
            "put large values into an array, or into an object of your own",
            kind="metadata-too-large",
        )
    return kept


def check_write_key(write_key: Any) -> str | None:
    """The key, if it names one write; None for none.

    Raises:
        InvalidInputError: it is no text, empty (all writes under it would count as one) or too
            long.
    """
    if write_key is None:
        return None
    size = _utf8_size(write_key, "write_key", "name the write in a str, or pass None")
    if not 0 < size <= MAX_KEY_BYTES:
        raise InvalidInputError(
            f"write_key has {size} bytes: 1 to {MAX_KEY_BYTES} that no other write has, or None",
            kind="invalid-write-key",
        )
    return str(write_key)


def _utf8_size(text: Any, name: str, remedy: str) -> int:
    if not isinstance(text, str):
        raise InvalidInputError(f"{name} is {_shown(text)}: {remedy}", kind=f"invalid-{name}")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{name} {_shown(text)} is not Unicode text: {error.reason} at position {error.start}",
            kind=f"invalid-{name}",
        ) from None


def _shown(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
