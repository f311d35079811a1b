"""Metadata items: named JSON values, in FlexBuffers (spec version 2) or MessagePack (version 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import flexbuffers, wire
from icefloe.format.ragged import Ragged
from icefloe.format.writing import Lists, TableRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike

    from icefloe.format.reading import Tables

type Json = flexbuffers.JSON

_SPEC_WITH_MSGPACK = 1


def decode_value(value: bytes, *, spec_version: int, name: str) -> Json:
    """Read one value. The version is that of the file it stands in, not of the repository.

    Raises:
        FormatError: naming `name`.
    """
    if spec_version != _SPEC_WITH_MSGPACK:
        return flexbuffers.decode(value, name=name)
    try:
        decoded = msgpack.unpackb(value)
    except Exception as error:
        # msgpack raises a dozen unrelated classes on bad input.
        raise FormatError(f"{name}: metadata is not MessagePack: {error}") from error
    return _as_json(decoded, name, flexbuffers.MAX_DEPTH)


def _as_json(value: Any, name: str, depth: int) -> Json:
    """What MessagePack holds, if JSON can hold it too; like FlexBuffers, NaN reads as None."""
    if depth < 0:
        raise FormatError(f"{name}: metadata nests deeper than {flexbuffers.MAX_DEPTH}")
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case list():
            return [_as_json(item, name, depth - 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _as_json(item, name, depth - 1) for key, item in value.items()}
    raise FormatError(f"{name}: metadata holds what JSON cannot: {type(value).__name__}")


def decode_items(items: Tables, *, spec_version: int) -> dict[str, Json]:
    """Read all items of one metadata vector."""
    names, values = items.text("name").texts(), items.vector("value").tolist()
    return {
        key: decode_value(value or b"", spec_version=spec_version, name=items.buffer.name)
        for key, value in zip(names, values, strict=True)
    }


def encode_values(metadata: Mapping[str, Json]) -> tuple[Ragged, Ragged]:
    """Names and FlexBuffers values, sorted by the names' bytes.

    Raises:
        InvalidInputError: a name is not text, or a value is not JSON.
    """
    try:
        names = sorted(metadata, key=str.encode)
    except (TypeError, UnicodeEncodeError) as error:
        # The names are few, and errors rare: the culprit is looked for only now.
        raise InvalidInputError(
            f"the names of metadata must be Unicode text, not {_bad_name(metadata)!a}",
            kind="bad-metadata",
        ) from error
    values = [flexbuffers.encode(metadata[key], name=key) for key in names]
    return Ragged.of_text(names), Ragged.of(values)


def _bad_name(names: Iterable[object]) -> object:
    """The first of these that is no text, or no Unicode."""
    return next(
        name
        for name in names
        if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name)
    )


def item_lists(counts: ArrayLike, names: Ragged, values: Ragged) -> Lists:
    """One vector of metadata items for each count (-1: absent)."""
    items = TableRows(wire.METADATA_ITEM, len(names), {"name": names, "value": values})
    return Lists(np.asarray(counts, np.int64), items)
