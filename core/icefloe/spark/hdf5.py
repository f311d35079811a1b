"""The variables of HDF5 files, NetCDF 4 among them, as zarr describes arrays; and their chunks."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ragged import Ragged
from icefloe.spark import hdf5_values
from icefloe.spark.hdf5_variable import STRING, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from icefloe.spark.hdf5_files import OpenFile

_BLOSC = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
# How HDF5 and the NetCDF library keep dimensions.
_INTERNAL = frozenset(
    {"CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS", "_NCProperties"}
    | {"_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict"}
)
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def read_variables(opened: OpenFile, group: str, skip: frozenset[str]) -> tuple[Variable, ...]:
    """Describe the variables in a group and below it, in the order of their names.

    Raises:
        InvalidInputError: there is no such group, or the type of a variable has no counterpart.
    """
    root = _group(opened, group)
    named = _visit(root, lambda node: isinstance(node, h5py.Dataset))
    scales = _visit(opened.file, _is_numbered_scale)
    names = {int(each.attrs["_Netcdf4Dimid"]): _base(each.name) for each in scales.values()}
    return tuple(
        _describe(opened, name, dataset, names)
        for name, dataset in sorted(named.items())
        if name not in skip and not _is_bare_dimension(dataset)
    )


def found_names(opened: OpenFile, group: str, names: frozenset[str]) -> frozenset[str]:
    """Those of some variables that a group and those below it have."""
    root = _group(opened, group)
    return frozenset(name for name in names if isinstance(root.get(name), h5py.Dataset))


def read_groups(opened: OpenFile, group: str) -> tuple[tuple[str, str], ...]:
    """The groups below a group, the group itself among them as ``, and their attributes."""
    root = _group(opened, group)
    found = _visit(root, lambda node: isinstance(node, h5py.Group))
    return tuple(
        (name, json.dumps(_attributes(node, None)))
        for name, node in [("", root), *sorted(found.items())]
    )


def read_refs(opened: OpenFile, group: str, variable: Variable, *, checksum: bool) -> ChunkRefs:
    """Where the chunks of a variable are; those that were never written are left out.

    Raises:
        InvalidInputError: a chunk was stored without the filters of the others.
    """
    dataset = _group(opened, group)[variable.name]
    index, offset, length = _places(opened, variable, dataset)
    limits = [-(-n // size) for n, size in zip(variable.shape, variable.chunks, strict=True)]
    rows = (index < np.array(limits)).all(axis=1)
    index, offset, length = index[rows], offset[rows], length[rows]
    same = np.zeros(len(index), np.int64)
    modified = np.full(len(index), opened.modified, np.uint32) if checksum else None
    return ChunkRefs.virtual(
        index,
        Ragged.of_text([opened.location]).take(same),
        offset,
        length,
        checksum_last_modified=modified,
    ).sorted()


def read_values(opened: OpenFile, group: str, variable: Variable) -> bytes:
    """All values; see `hdf5_values`."""
    dataset = _group(opened, group)[variable.name]
    return hdf5_values.read_values(opened.location, dataset, variable)


def unsupported(location: str, name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"variable {name!r} of {location}: {reason}", kind="unsupported-variable"
    )


def _describe(
    opened: OpenFile, name: str, dataset: h5py.Dataset, names: Mapping[int, str]
) -> Variable:
    dtype = _dtype(opened, name, dataset)
    codecs, obstacle = _codecs(dataset)
    if dtype == STRING:
        obstacle = "texts of any length lie all over the file"
    return Variable(
        name,
        dataset.shape,
        _dimensions(dataset, names),
        dtype,
        dataset.chunks or dataset.shape,
        json.dumps(codecs),
        b"" if dtype == STRING else np.asarray(dataset.fillvalue, np.dtype(dtype)).tobytes(),
        json.dumps(_attributes(dataset, dtype)),
        obstacle or _layout_obstacle(dataset),
    )


def _dtype(opened: OpenFile, name: str, dataset: h5py.Dataset) -> str:
    found = dataset.dtype
    text = h5py.check_string_dtype(found)
    if text is not None and text.length is None and dataset.shape is not None:
        return STRING
    same_size = dataset.id.get_type().get_size() == found.itemsize
    known = found.kind == "S" or found.itemsize in _SIZES.get(found.kind, ())
    if dataset.shape is None or not known or not same_size:
        reason = f"zarr has no type for {found}: leave it out, with drop=[{name!r}]"
        raise unsupported(opened.location, name, reason)
    return str(found.str)


def _codecs(dataset: h5py.Dataset) -> tuple[list[dict[str, Any]], str]:
    """The filters as codecs of zarr, and which of them is none."""
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    codecs = []
    for code, _, values, name in filters:
        codec = _codec(code, values, dataset.dtype.itemsize)
        if codec is None:
            return [], f"zarr has no codec for its filter {code} ({name.decode() or 'unnamed'})"
        codecs.append({"name": f"numcodecs.{codec[0]}", "configuration": codec[1]})
    return codecs, ""


def _codec(code: int, values: tuple[int, ...], itemsize: int) -> tuple[str, dict[str, Any]] | None:
    """What a filter of HDF5 is called in zarr, by its registered number."""
    match code, values:
        case h5py.h5z.FILTER_DEFLATE, (level, *_):
            return "zlib", {"level": level}
        case h5py.h5z.FILTER_SHUFFLE, _:
            return "shuffle", {"elementsize": itemsize}
        case h5py.h5z.FILTER_FLETCHER32, _:
            return "fletcher32", {}
        case 307, (level, *_):
            return "bz2", {"level": level}
        case 32001, (_, _, _, _, level, shuffle, kind, *_) if kind < len(_BLOSC):
            return "blosc", {"cname": _BLOSC[kind], "clevel": level, "shuffle": shuffle}
        case 32015, _:
            return "zstd", {"level": values[0] if values else 3}
        case _:
            return None


def _layout_obstacle(dataset: h5py.Dataset) -> str:
    if dataset.is_virtual or dataset.external:
        return "its values are in other files"
    if dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
        return "it is so small that its values are among the metadata"
    return ""


def _places(
    opened: OpenFile, variable: Variable, dataset: h5py.Dataset
) -> tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]:
    """Coordinates, offsets and lengths of the chunks that exist."""
    rank = len(variable.shape)
    if dataset.chunks is None:
        # What was never written may have an offset all the same.
        count = 1 if dataset.id.get_storage_size() else 0
        place = np.full(count, dataset.id.get_offset() or 0, np.uint64)
        return np.zeros((count, rank), np.uint32), place, np.full(count, dataset.nbytes, np.uint64)
    rows: list[Any] = []
    # One call from C for each chunk is the fastest that h5py has.
    dataset.id.chunk_iter(rows.append)
    starts, masks, offsets, lengths = zip(*rows, strict=True) if rows else ((), (), (), ())
    index = np.array(starts, np.int64).reshape(-1, rank) // np.array(variable.chunks)
    if any(masks):
        at = tuple(index[np.flatnonzero(masks)[0]].tolist())
        raise unsupported(
            opened.location,
            variable.name,
            f"chunk {at} was stored without the filters of the others: copy the variable, with "
            f"loadable=[{variable.name!r}]",
        )
    return (
        index.astype(np.uint32),
        np.array(offsets, np.uint64),
        np.array(lengths, np.uint64),
    )


def _dimensions(dataset: h5py.Dataset, names: Mapping[int, str]) -> tuple[str | None, ...]:
    if h5py.h5ds.is_scale(dataset.id) and dataset.ndim:
        if dataset.ndim == 1:
            return (_base(dataset.name),)
        # A coordinate with more dimensions than its own.
        numbers = np.atleast_1d(dataset.attrs.get("_Netcdf4Coordinates", []))
        if len(numbers) == dataset.ndim:
            return tuple(names.get(int(number)) for number in numbers)
    return tuple(_base(side[0].name) if len(side) else side.label or None for side in dataset.dims)


def _attributes(node: h5py.HLObject, dtype: str | None) -> dict[str, Any]:
    """The attributes that JSON can hold, as xarray keeps them in zarr."""
    found = {}
    for name in node.attrs:
        if name in _INTERNAL:
            continue
        value = _plain(node.attrs[name])
        if value is not None:
            special = name == "_FillValue" and dtype is not None
            found[name] = _fill_attribute(value, str(dtype)) if special else value
    return found


def _plain(value: Any) -> Any:
    """A value of JSON; None for references, records, and the like."""
    match value:
        case bytes():
            return value.decode(errors="replace")
        case str():
            return str(value)
        case h5py.Empty():
            return "" if value.dtype.kind in "SO" else None
        case np.ndarray() if value.shape == (1,):
            return _plain(value[0])
        case np.ndarray() if value.dtype.kind in "SO":
            items = [_plain(item) for item in value.reshape(-1)]
            return None if None in items else items
        case np.ndarray() | np.generic() if value.dtype.kind in "biuf":
            return value.tolist()
        case _:
            return None


def _fill_attribute(value: Any, dtype: str) -> Any:
    """`_FillValue` in the spelling of xarray's zarr backend."""
    if dtype == STRING or isinstance(value, list):
        return value
    match np.dtype(dtype).kind:
        case "f":
            return base64.standard_b64encode(struct.pack("<d", value)).decode()
        case "S":
            return base64.standard_b64encode(str(value).encode()).decode()
        case _:
            return value


def _group(opened: OpenFile, path: str) -> h5py.Group:
    found = opened.file.get(f"/{path.strip('/')}")
    if not isinstance(found, h5py.Group):
        raise InvalidInputError(f"{opened.location} has no group {path!r}", kind="node-not-found")
    return found


def _visit(root: h5py.Group, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """What is below a group, by its path from there. Links to other files are not followed."""
    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if wanted(node):
            found[name] = node

    root.visititems(visit)
    return found


def _is_numbered_scale(node: Any) -> bool:
    is_scale = isinstance(node, h5py.Dataset) and h5py.h5ds.is_scale(node.id)
    return is_scale and "_Netcdf4Dimid" in node.attrs


def _is_bare_dimension(dataset: h5py.Dataset) -> bool:
    """Whether it only gives a dimension its length."""
    told = dataset.attrs.get("NAME", b"")
    return isinstance(told, bytes) and told.startswith(_NO_VARIABLE)


def _base(path: str) -> str:
    return path.rpartition("/")[2]
