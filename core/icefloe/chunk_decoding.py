"""Decoding single chunks with the codecs of their array's zarr.json."""

from __future__ import annotations

import json
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import FormatError


def decode_chunk(zarr_json: bytes, coords: tuple[int, ...], data: bytes) -> None:
    """Decode the bytes of one chunk, a whole shard included, and throw the values away.

    Raises:
        FormatError: the codecs of the array do not accept them.
    """
    buffer = default_buffer_prototype().buffer.from_bytes
    key = "/".join(["c", *map(str, coords)])
    store = MemoryStore({"zarr.json": buffer(zarr_json), key: buffer(data)})
    try:
        zarr.open_array(store, mode="r")[_region(json.loads(zarr_json), coords)]
    except Exception as error:
        # Codecs raise whatever their libraries do.
        raise FormatError(f"{type(error).__name__}: {error}", kind="chunk-decoding") from error


def _region(document: dict[str, Any], coords: tuple[int, ...]) -> tuple[slice, ...]:
    """The elements that a chunk holds."""
    configuration = document["chunk_grid"]["configuration"]
    if document["chunk_grid"]["name"] == "regular":
        sizes = zip(coords, configuration["chunk_shape"], strict=True)
        return tuple(slice(at * size, (at + 1) * size) for at, size in sizes)
    return tuple(
        _span(at, sizes) for at, sizes in zip(coords, configuration["chunk_shapes"], strict=True)
    )


def _span(at: int, sizes: int | list[Any]) -> slice:
    """Where one chunk of a rectilinear grid begins and ends along one axis."""
    if isinstance(sizes, int):
        return slice(at * sizes, (at + 1) * sizes)
    edges = [0]
    for item in sizes:
        size, count = item if isinstance(item, list) else (item, 1)
        edges += [edges[-1] + size * (number + 1) for number in range(count)]
    return slice(edges[at], edges[at + 1])
