"""What a snapshot keeps of a node's zarr.json: its kind, shape, chunk grid and dimension names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.format.nodes import ArrayData, DimensionShape, ManifestRefs
from icefloe.storage.keys import is_unicode

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 80


def array_data(zarr_json: bytes, path: str) -> ArrayData | None:
    """What a snapshot keeps of an array's zarr.json, without manifests; None for a group.

    Raises:
        InvalidInputError: the document is not the metadata of a zarr v3 node that we can store.
    """
    if not isinstance(zarr_json, bytes):
        raise InvalidInputError(
            f"the zarr.json of {path} is of type {type(zarr_json).__name__}: pass bytes",
            kind="invalid-zarr-metadata",
        )
    try:
        document = _mapping(json.loads(zarr_json.decode()), "the document")
        version = document.get("zarr_format", 3)
        if type(version) is not int or version != 3:
            raise ValueError(f"zarr_format is {_shown(version)}, not 3")
        kind = document.get("node_type")
        if kind == "group":
            return None
        if kind != "array":
            raise ValueError(f"node_type is {_shown(kind)}, not 'array' or 'group'")
        shape = [
            _number(length, 2**64, "shape") for length in _list(document.get("shape"), "shape")
        ]
        counts = _chunk_counts(document.get("chunk_grid"), shape)
        chunks = [_number(count, 2**32, "a number of chunks") for count in counts]
        names = _dimension_names(document.get("dimension_names"), len(shape))
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        raise InvalidInputError(
            f"{path.rstrip('/')}/zarr.json is not the metadata of a zarr v3 node: "
            + ("it is nested too deeply" if deep else str(error)[: 4 * _SHOWN]),
            kind="invalid-zarr-metadata",
        ) from error
    dimensions = tuple(DimensionShape(*pair) for pair in zip(shape, chunks, strict=True))
    return ArrayData(dimensions, names, ManifestRefs.none(len(shape)))


def has_regular_grid(zarr_json: bytes) -> bool:
    """Whether all chunks of the array have one shape, so that they may change places."""
    return bool(json.loads(zarr_json)["chunk_grid"]["name"] == "regular")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_shown(value)}, not an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_shown(value)}, not a list")
    return value


def _number(value: Any, limit: int, name: str) -> int:
    # In Python a bool is an int.
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{name}: {_shown(value)} is no whole number from 0 to {limit - 1}")
    return value


def _shown(value: Any) -> str:
    # Python refuses to print very long numbers.
    if type(value) is int and value.bit_length() > 4 * _SHOWN:
        return "a huge number"
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."


def _dimension_names(names: Any, rank: int) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    found = _list(names, "dimension_names")
    good = all(name is None or (isinstance(name, str) and is_unicode(name)) for name in found)
    if len(found) != rank or not good:
        raise ValueError(f"dimension_names: {_shown(names)} are not the names of {rank} dimensions")
    # Like the official client: an empty name is no name.
    return tuple(name or None for name in found)


def _chunk_counts(grid: Any, shape: Sequence[int]) -> list[int]:
    name = _mapping(grid, "chunk_grid").get("name")
    configuration = _mapping(grid.get("configuration"), "chunk_grid.configuration")
    if name == "regular":
        sizes = _of_rank(configuration.get("chunk_shape"), "chunk_shape", len(shape))
        return [_count(*pair) for pair in zip(shape, sizes, strict=True)]
    if name == "rectilinear":
        sizes = _of_rank(configuration.get("chunk_shapes"), "chunk_shapes", len(shape))
        return [_rectilinear_count(*pair) for pair in zip(shape, sizes, strict=True)]
    raise ValueError(f"unknown chunk grid {_shown(name)}")


def _of_rank(value: Any, name: str, rank: int) -> list[Any]:
    found = _list(value, name)
    if len(found) != rank:
        raise ValueError(f"{name} has {len(found)} entries for {rank} dimensions")
    return found


def _count(length: int, size: Any) -> int:
    size = _number(size, 2**64, "a chunk size")
    if length and not size:
        raise ValueError(f"a chunk size of 0 never covers a dimension of length {length}")
    return -(-length // size) if length else 0


def _rectilinear_count(length: int, sizes: Any) -> int:
    if not isinstance(sizes, list):
        return _count(length, sizes)
    return sum(map(_repeats, sizes))


def _repeats(item: Any) -> int:
    """How often a size of a rectilinear grid comes: a pair says so itself."""
    if not isinstance(item, list):
        _number(item, 2**64, "a chunk size")
        return 1
    if len(item) != 2:
        raise ValueError(f"{_shown(item)} is no pair of a chunk size and a number of repeats")
    _number(item[0], 2**64, "a chunk size")
    return _number(item[1], 2**32, "a number of repeats")
