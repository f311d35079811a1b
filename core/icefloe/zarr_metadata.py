"""What a snapshot keeps of a node's zarr.json: its kind, shape, chunk grid and dimension names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.format.nodes import ArrayData, DimensionShape, ManifestRefs

if TYPE_CHECKING:
    from collections.abc import Sequence


def array_data(zarr_json: bytes, path: str) -> ArrayData | None:
    """What a snapshot keeps of an array's zarr.json, without manifests; None for a group.

    Raises:
        InvalidInputError: the document is not the metadata of a zarr v3 node that we can store.
    """
    try:
        document = json.loads(zarr_json)
        if document["node_type"] == "group":
            return None
        if document["node_type"] != "array":
            raise ValueError(f"unknown node_type {document['node_type']!r}")
        shape = [_number(length, 2**64) for length in document["shape"]]
        chunks = [_number(count, 2**32) for count in _chunk_counts(document["chunk_grid"], shape)]
        names = _dimension_names(document.get("dimension_names"), len(shape))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path}/zarr.json is not the metadata of a zarr v3 node: {error!r}",
            kind="invalid-zarr-metadata",
        ) from error
    dimensions = tuple(DimensionShape(*pair) for pair in zip(shape, chunks, strict=True))
    return ArrayData(dimensions, names, ManifestRefs.none(len(shape)))


def has_regular_grid(zarr_json: bytes) -> bool:
    """Whether all chunks of the array have one shape, so that they may change places."""
    return bool(json.loads(zarr_json)["chunk_grid"]["name"] == "regular")


def _number(value: Any, limit: int) -> int:
    if not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"{value!r} is no number below {limit}")
    return value


def _dimension_names(names: Any, rank: int) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    if len(names) != rank or not all(name is None or isinstance(name, str) for name in names):
        raise ValueError(f"{names!r} are not the names of {rank} dimensions")
    # Like the official client: an empty name is no name.
    return tuple(name or None for name in names)


def _chunk_counts(grid: Any, shape: Sequence[int]) -> list[int]:
    configuration = grid["configuration"]
    if grid["name"] == "regular":
        sizes = [int(size) for size in configuration["chunk_shape"]]
        if len(sizes) != len(shape):
            raise ValueError(f"{len(sizes)} chunk sizes for {len(shape)} dimensions")
        return [
            -(-length // size) if size else 0 for length, size in zip(shape, sizes, strict=True)
        ]
    if grid["name"] == "rectilinear":
        pairs = zip(shape, configuration["chunk_shapes"], strict=True)
        return [_rectilinear_count(length, sizes) for length, sizes in pairs]
    raise ValueError(f"unknown chunk grid {grid['name']!r}")


def _rectilinear_count(length: int, sizes: Any) -> int:
    if isinstance(sizes, int):
        return -(-length // sizes) if sizes else 0
    # A pair is a size and how often it repeats.
    return sum(item[1] if isinstance(item, list) else 1 for item in sizes)
