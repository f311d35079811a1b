"""The values of HDF5 variables, also of those whose filters this HDF5 library does not have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numcodecs  # type: ignore[import-untyped]
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.spark.hdf5_variable import STRING, Variable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_values(location: str, dataset: h5py.Dataset, variable: Variable) -> bytes:
    """All values: in the type of the file, or texts as a JSON list.

    Raises:
        InvalidInputError: nothing here decodes one of its filters.
    """
    name = variable.name
    missing = _missing_filters(dataset)
    if missing and (variable.dtype == STRING or not json.loads(variable.codecs)):
        raise _unreadable(location, name, f"nothing decodes its filter {', '.join(missing)}")
    try:
        if missing:
            return _decoded(dataset, variable).tobytes()
        if variable.dtype == STRING:
            return json.dumps(np.asarray(dataset.asstr()[...]).reshape(-1).tolist()).encode()
        return np.ascontiguousarray(dataset[...], np.dtype(variable.dtype)).tobytes()
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(location, name, f"its values cannot be read: {error}") from error


def _missing_filters(dataset: h5py.Dataset) -> list[str]:
    """The filters that the library cannot undo; hdf5plugin, where it is imported, brings some."""
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    return [
        f"{code} ({name.decode() or 'unnamed'})"
        for code, _, _, name in filters
        if not h5py.h5z.filter_avail(code)
    ]


def _decoded(dataset: h5py.Dataset, variable: Variable) -> NDArray[Any]:
    """The values of chunks, decoded as zarr would."""
    codecs = [
        numcodecs.get_codec(
            {"id": codec["name"].removeprefix("numcodecs."), **codec["configuration"]}
        )
        for codec in json.loads(variable.codecs)
    ]
    dtype = np.dtype(variable.dtype)
    values = np.full(variable.shape, np.frombuffer(variable.fill, dtype)[0], dtype)
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    for chunk in chunks:
        mask, data = dataset.id.read_direct_chunk(chunk.chunk_offset)
        # A bit for each filter that this chunk was stored without.
        used = [codec for at, codec in enumerate(codecs) if not mask >> at & 1]
        for codec in reversed(used):
            data = codec.decode(data)
        part = np.frombuffer(data, dtype).reshape(variable.chunks)
        sides = list(map(_side, chunk.chunk_offset, variable.chunks, variable.shape))
        values[tuple(sides)] = part[tuple(slice(0, side.stop - side.start) for side in sides)]
    return values


def _side(start: int, size: int, length: int) -> slice:
    return slice(start, min(start + size, length))


def _unreadable(location: str, name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"variable {name!r} of {location}: {reason}. Leave it out, with drop=[{name!r}]",
        kind="unsupported-variable",
    )
