"""Making arrays longer along a dimension, with all that tells where its new elements are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.format import paths as node_paths
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.cf_times import TimeUnits
from icefloe.spark.chunk_grid import ChunkGrid
from icefloe.spark.planning import array_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.session import Session

    type Append = Mapping[str, int | Sequence[Any] | NDArray[Any]]
    """By dimension name, how many elements come, or their labels."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What an append has changed.

    Attributes:
        ends: where each array ended, by path and dimension name.
        coordinates: those that have grown, and where they ended.
    """

    ends: dict[str, dict[str, int]]
    coordinates: dict[str, int]

    def require_labels(self, session: Session) -> None:
        """Raises InvalidInputError if a coordinate that has grown has a label twice."""
        for path, end in self.coordinates.items():
            require_new(path, np.asarray(_open(session, path)[:]), end)


def grow(session: Session, paths: Sequence[str], append: Append) -> Growth:
    """Make arrays longer, and write the labels of what comes.

    Raises:
        InvalidInputError: no array has such a dimension, or another array that has it would stay
            shorter. Nothing was changed.
    """
    chosen = ["/" + path.strip("/") for path in paths]
    counts = {name: _count(given) for name, given in append.items()}
    names = {path: ChunkGrid.of(array_node(session, path)).names for path in chosen}
    known = {name for each in names.values() for name in each}
    if missing := append.keys() - known:
        raise InvalidInputError(f"no array has a dimension {', '.join(sorted(missing))}")
    labels = dict(_labels(session, chosen, append))
    for path in chosen:
        _require_together(session, path, counts, {*chosen, *labels})
    ends = {path: _lengths(session, path, counts) for path in chosen}
    written = {path: _lengths(session, path, counts) for path in labels}
    for path in (*chosen, *labels):
        _resize(session, path, counts)
    grown = {}
    for path, ended in (ends | written).items():
        if [*ended] == [node_paths.name(path)] and _open(session, path).ndim == 1:
            grown[path] = next(iter(ended.values()))
    for path, values in labels.items():
        _open(session, path, "r+")[grown[path] :] = values
    return Growth(ends, grown)


def _count(given: Any) -> int:
    count = given if isinstance(given, int | np.integer) else len(given)
    if count < 0:
        raise InvalidInputError(f"append: {count} elements")
    return int(count)


def _labels(
    session: Session, chosen: Sequence[str], append: Append
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The coordinates whose labels are given, and what is to be written there."""
    places = dict.fromkeys(
        (node_paths.parent(path), name)
        for path in chosen
        for name in ChunkGrid.of(array_node(session, path)).names
    )
    for name, given in append.items():
        if isinstance(given, int | np.integer):
            continue
        for group in (group for group, dimension in places if dimension == name):
            path = f"{group.rstrip('/')}/{name}"
            if path in chosen:
                raise InvalidInputError(
                    f"the labels of {name} are given, and {path} is among the paths: it is one or "
                    "the other"
                )
            if session.node(path) is None or _open(session, path).ndim != 1:
                raise InvalidInputError(f"there is no coordinate {path} to write labels to")
            array = _open(session, path)
            values = _stored(array, _given(name, given))
            require_new(path, np.concatenate([array[:], values]), array.shape[0])
            yield path, values


def _given(name: str, labels: Any) -> NDArray[Any]:
    """Labels as numpy has them; Python's times, and those of pandas, as times of numpy."""
    found = np.asarray(labels)
    if found.dtype.kind != "O":
        return found
    told = found.reshape(-1).tolist()
    if all(isinstance(each, datetime | date | np.datetime64) for each in told):
        if not any(getattr(each, "tzinfo", None) for each in told):
            # Times of pandas have nanoseconds, too.
            return np.array(
                [each.to_datetime64() if hasattr(each, "nanosecond") else each for each in told],
                "M8[ns]" if any(getattr(each, "nanosecond", 0) for each in told) else "M8[us]",
            )
        raise InvalidInputError(
            f"append: the labels of {name} have time zones, and an array has none: give UTC "
            "without one"
        )
    if all(isinstance(each, str) for each in told):
        return found.astype(np.dtypes.StringDType())
    raise InvalidInputError(
        f"append: the labels of {name} are objects, such as {told[0]!r}: give numbers, "
        "texts, datetime or datetime64"
    )


def _times(path: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Texts such as 2026-01-01T06:00 as times."""
    try:
        return labels.astype("M8[us]")
    except ValueError as error:
        raise InvalidInputError(
            f"{path} counts time, and the labels are texts that are no ISO times: {error}"
        ) from error


def _stored(array: zarr.Array[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as a coordinate stores them."""
    units = TimeUnits.of(array.attrs.get("units"), array.attrs.get("calendar"))
    if labels.dtype.kind in "UT" and (units is not None or array.dtype.kind == "M"):
        labels = _times(f"/{array.path}", labels)
    if labels.dtype.kind == "M" and array.dtype.kind != "M":
        if units is None:
            raise InvalidInputError(
                f"/{array.path} holds {array.dtype} in {array.attrs.get('units')!r}, which times "
                "cannot be counted in here: give the labels as it has them"
            )
        return units.encode(labels, array.dtype)
    texts = (labels.dtype.kind in "UTO", array.dtype.kind in "UTO")
    if any(texts) or (labels.dtype.kind == "M") != (array.dtype.kind == "M"):
        if not all(texts):
            raise InvalidInputError(
                f"/{array.path} holds {array.dtype}, and the labels are {labels.dtype}"
            )
        return labels.astype(array.dtype)
    return CfPacking.of(array).encode(labels)


def require_new(path: str, values: NDArray[Any], end: int) -> None:
    """Raises InvalidInputError if a value from `end` on is there twice."""
    distinct, count = np.unique(values, return_counts=True)
    twice = np.flatnonzero(count > 1)
    known = np.isin(values[end:], distinct[twice])
    if bool(known.any()):
        raise InvalidInputError(
            f"{path} would have the label {values[end:][known][0]} twice: was it appended before, "
            "or did no file give the labels of what it appends?",
            kind="label-exists",
        )


def _require_together(
    session: Session, path: str, counts: Mapping[str, int], growing: set[str]
) -> None:
    """Raises InvalidInputError if another array that shares a dimension would stay shorter."""
    above = node_paths.parent(path)
    lengths = _lengths(session, path, counts)
    group = zarr.open_group(session.store, path=above.strip("/"), mode="r")
    for name, other in group.arrays():
        beside = f"{above.rstrip('/')}/{name}"
        if beside in growing:
            continue
        for dimension, length in _lengths(session, beside, counts).items():
            wanted = lengths.get(dimension)
            if wanted is None or not counts[dimension] or length == wanted + counts[dimension]:
                continue
            remedy = (
                f"give its labels, append={{{dimension!r}: labels}}, or put it into paths and let "
                "files give them"
                if name == dimension and other.ndim == 1
                else "put it into paths, and what no file gives becomes its fill value"
            )
            raise InvalidInputError(
                f"{beside} has the dimension {dimension}, too, and would stay at {length}: "
                f"{remedy}",
                kind="append-leaves-behind",
            )


def _lengths(session: Session, path: str, counts: Mapping[str, int]) -> dict[str, int]:
    """How long an array is along the dimensions that grow."""
    grid = ChunkGrid.of(array_node(session, path))
    pairs = zip(grid.names, grid.axes, strict=True)
    return {str(name): axis.length for name, axis in pairs if name in counts}


def _resize(session: Session, path: str, counts: Mapping[str, int]) -> None:
    array = _open(session, path, "r+")
    names = ChunkGrid.of(array_node(session, path)).names
    more = [counts.get(str(name), 0) for name in names]
    if any(more):
        array.resize(tuple(map(int.__add__, array.shape, more)))


def _open(session: Session, path: str, mode: Any = "r") -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path.strip("/"), mode=mode)
