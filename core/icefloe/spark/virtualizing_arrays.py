"""The arrays that `virtualize` writes to: created, or grown to hold more."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import InvalidInputError
from icefloe.format import paths
from icefloe.spark.cf_packing import FILLS, fill_values
from icefloe.spark.cf_times import TimeUnits
from icefloe.spark.hdf5_variable import STRING, decoding
from icefloe.spark.virtualizing_layout import MEANING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.session import Session
    from icefloe.spark.virtualizing_layout import Joined

_CHUNK_BYTES = 2**17
"""Of arrays whose values are copied: they may grow file by file."""
_OF_VALUES = ("shape", "data_type", "dimension_names")
_OF_CHUNKS = ("chunk_grid", "codecs", "fill_value")


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where one variable goes: from `start` on along its axis."""

    path: str
    joined: Joined
    start: int
    exists: bool

    @property
    def is_settled(self) -> bool:
        """Whether the array is there, and files add nothing to it."""
        return self.exists and self.joined.axis is None

    @property
    def region(self) -> list[slice]:
        """The elements that are written."""
        sides = [slice(0, length) for length in self.joined.variable.shape]
        if self.joined.axis is not None:
            length = self.joined.variable.shape[self.joined.axis]
            sides[self.joined.axis] = slice(self.start, self.start + length)
        return sides


def node_path(group: str, name: str) -> str:
    return "/" + "/".join(filter(None, (group.strip("/"), name)))


def find_targets(session: Session, into: str, joined: Sequence[Joined]) -> list[Target]:
    """Where each variable goes. Nothing is changed.

    Raises:
        InvalidInputError: what is there does not fit, or ends within a chunk.
    """
    # Names come from files.
    targets = [
        _target(session, paths.validate(node_path(into, each.name)), each) for each in joined
    ]
    starts: dict[str, dict[int, str]] = {}
    for target in targets:
        if target.joined.axis is not None:
            starts.setdefault(paths.parent(target.path), {})[target.start] = target.path
    for group, found in starts.items():
        if len(found) > 1:
            told = ", ".join(f"{path} {start}" for start, path in sorted(found.items()))
            longest = max(found)
            odd = sorted(
                each.joined.name
                for each in targets
                if paths.parent(each.path) == group
                and each.joined.axis is not None
                and each.start < longest
            )
            raise InvalidInputError(
                f"the arrays of {group} differ in length, so files cannot follow them: {told}. "
                f"Leave out what is new or shorter, with drop={odd}",
                kind="inconsistent-files",
            )
    _require_together(session, targets)
    return targets


def _require_together(session: Session, targets: Sequence[Target]) -> None:
    """Raises InvalidInputError if an array beside would stay shorter than those that grow."""
    mine = {target.path for target in targets}
    lengths: dict[str, dict[str, int]] = {}
    for target in targets:
        axis = target.joined.axis
        if axis is not None and (name := target.joined.variable.dimensions[axis]) is not None:
            lengths.setdefault(paths.parent(target.path), {})[name] = target.region[axis].stop
    for above, wanted in lengths.items():
        if session.node(above) is None:
            continue
        group = zarr.open_group(session.store, path=above.strip("/"), mode="r")
        for base, array in group.arrays():
            path = node_path(above, base)
            names = getattr(array.metadata, "dimension_names", None) or ()
            for name, length in zip(names, array.shape, strict=False):
                if path in mine or wanted.get(name, length) == length:
                    continue
                raise InvalidInputError(
                    f"{path} has the dimension {name}, too, and would stay at {length}, with "
                    f"{wanted[name]} beside it: give files that have it, or resize it first, in "
                    "the same session (what no file gives is its fill value), or delete it",
                    kind="append-leaves-behind",
                )


def make(
    session: Session, into: str, groups: Mapping[str, Mapping[str, Any]], targets: Sequence[Target]
) -> None:
    """Create the groups and arrays that are not there, and give the others their new length."""
    for name, attributes in groups.items():
        path = node_path(into, name)
        if session.node(path) is None:
            zarr.create_group(session.store, path=path.strip("/"), attributes=dict(attributes))
    for target in targets:
        options = _options(target.joined)
        if session.node(target.path) is None:
            zarr.create_array(session.store, name=target.path.strip("/"), **options)
        else:
            array = zarr.open_array(session.store, path=target.path.strip("/"), mode="r+")
            array.resize(tuple(side.stop for side in target.region))


def _target(session: Session, path: str, joined: Joined) -> Target:
    node = session.node(path)
    if node is None:
        return Target(path, joined, 0, exists=False)
    if node.array is None:
        raise InvalidInputError(f"{path} is a group, and {joined.name} is not", kind="not-an-array")
    there, wanted = json.loads(node.user_data), _document(joined)
    axis = joined.axis
    length = 0 if axis is None else node.array.shape[axis].array_length
    for document in (there, wanted):
        document["shape"] = [n if at != axis else "any" for at, n in enumerate(document["shape"])]
        document["codecs"] = decoding(document["codecs"])
    joined = _counted_as(session, path, joined, there["attributes"])
    if joined.recode_to is not None:
        wanted["data_type"] = there["data_type"]
    if told := _difference(there, wanted, _OF_VALUES):
        raise InvalidInputError(
            f"{path} {told}: leave it out, with drop=[{joined.name!r}]", kind="inconsistent-files"
        )
    attributes = dict(joined.attributes)
    if joined.recode_to is not None and not _has_fills(path, joined, there["attributes"]):
        attributes |= {name: there["attributes"].get(name) for name in FILLS}
    if joined.units and "units" in attributes:
        # They mean the same, or are counted anew.
        attributes["units"] = there["attributes"].get("units")
    _require_meanings(path, there["attributes"], attributes)
    return _fitted(path, joined, there, wanted, length)


def _fitted(
    path: str, joined: Joined, there: Mapping[str, Any], wanted: Mapping[str, Any], length: int
) -> Target:
    """Where the files go in an array that has as many elements along their axis."""
    axis = joined.axis
    if axis is None or joined.load:
        return Target(path, joined, length, exists=True)
    told = _difference(there, wanted, _OF_CHUNKS)
    if length % joined.variable.chunks[axis]:
        told = f"ends within a chunk, at {length} of chunks of {joined.variable.chunks[axis]}"
    if told and not joined.may_load:
        raise InvalidInputError(
            f"{path} {told}: nothing virtual can follow. Copy it, with loadable=[{joined.name!r}]",
            kind="unaligned-files",
        )
    return Target(path, replace(joined, load=bool(told)), length, exists=True)


def _counted_as(
    session: Session, path: str, joined: Joined, attributes: Mapping[str, Any]
) -> Joined:
    """The variable, counting time as the array does that is there."""
    if not joined.units:
        return joined
    if joined.bounds_of is not None and "units" not in attributes:
        beside = f"{paths.parent(path).rstrip('/')}/{paths.name(joined.bounds_of)}"
        node = session.node(beside)
        attributes = {} if node is None else json.loads(node.user_data)["attributes"]
    there = TimeUnits.of(attributes.get("units"), attributes.get("calendar"))
    if there is None:
        raise InvalidInputError(
            f"attribute units of {path} is {attributes.get('units')}, and in the files it is "
            f"{joined.units[0].text}",
            kind="inconsistent-files",
        )
    dtype = zarr.open_array(session.store, path=path.strip("/"), mode="r").dtype
    is_cast = dtype != np.dtype(joined.variable.dtype) and dtype.kind in "iuf"
    told = {(each.step, each.reference) for each in joined.units}
    if told == {(there.step, there.reference)} and not is_cast:
        return joined
    if not (joined.load or joined.may_load):
        raise InvalidInputError(
            f"{path} counts in {there.text!r}, as {dtype}, and the files in "
            f"{joined.units[0].text!r}, as {joined.variable.dtype}: copy it, "
            f"with loadable=[{joined.name!r}]",
            kind="inconsistent-files",
        )
    if is_cast:
        variable = replace(joined.variable, dtype=dtype.str, fill=bytes(dtype.itemsize))
        joined = replace(joined, variable=variable)
    return replace(joined, load=True, recode_to=there)


def _has_fills(path: str, joined: Joined, there: Mapping[str, Any]) -> bool:
    """Whether a stored time stands for none; NaN is no count by itself."""
    dtype = np.dtype(joined.variable.dtype)
    return any(fill_values(path, each, dtype) for each in (joined.attributes, there))


def _difference(
    there: Mapping[str, Any], wanted: Mapping[str, Any], keys: Sequence[str]
) -> str | None:
    for key in keys:
        if there.get(key) != wanted.get(key):
            return f"has {key} {there.get(key)}, and the files have {wanted.get(key)}"
    return None


def _require_meanings(path: str, there: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name in sorted(MEANING):
        if json.dumps(there.get(name)) != json.dumps(new.get(name)):
            raise InvalidInputError(
                f"attribute {name} of {path} is {there.get(name)}, and in the files it is "
                f"{new.get(name)}",
                kind="inconsistent-files",
            )


def _document(joined: Joined) -> dict[str, Any]:
    """The zarr.json that the array would have."""
    array = zarr.create_array(MemoryStore(), **_options(joined))
    files = array.metadata.to_buffer_dict(default_buffer_prototype())
    document: dict[str, Any] = json.loads(files["zarr.json"].to_bytes())
    return document


def _options(joined: Joined) -> dict[str, Any]:
    """What `zarr.create_array` takes."""
    variable = joined.variable
    options: dict[str, Any] = {
        "shape": variable.shape,
        "attributes": joined.attributes,
        "dimension_names": variable.dimensions if any(variable.dimensions) else None,
    }
    if variable.dtype == STRING:
        return options | {"dtype": "string", "chunks": _loaded_chunks(joined)}
    dtype = np.dtype(variable.dtype)
    options |= {"dtype": dtype, "fill_value": np.frombuffer(variable.fill, dtype)[0]}
    if joined.load:
        return options | {"chunks": _loaded_chunks(joined)}
    endian: Any = {"<": "little", ">": "big"}.get(dtype.str[0])
    return options | {
        "chunks": tuple(max(size, 1) for size in variable.chunks),
        "serializer": BytesCodec(endian=endian),
        "compressors": json.loads(variable.codecs) or None,
    }


def _loaded_chunks(joined: Joined) -> tuple[int, ...]:
    """As large as the array, but for the axis along which it may grow."""
    variable = joined.variable
    chunks = [max(length, 1) for length in variable.shape]
    if joined.axis is not None:
        chunks[joined.axis] = 1
        row = int(np.prod(chunks)) * max(len(variable.fill), 1)
        chunks[joined.axis] = max(_CHUNK_BYTES // row, 1)
    return tuple(chunks)
