"""The chunk grid of an array: from elements to chunks and back, boxes of chunks, and blocks."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.splitting import automatic_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.format.nodes import ArrayData, Node

type Span = tuple[int, int]
"""From inclusive, to exclusive."""
type Box = tuple[Span, ...]
type Selection = Sequence[slice] | Mapping[str, slice]
"""Slices of elements: one for each dimension, or by dimension name (the others whole)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the chunks of one dimension begin and end, in elements."""

    length: int
    count: int
    size: int
    """Of every chunk; 0 where they differ."""
    edges: tuple[int, ...] = ()
    """Where they differ: the beginning of each chunk, and the end of the last."""

    def begin(self, chunk: int) -> int:
        return chunk * self.size if self.size else self.edges[chunk]

    def span(self, first: int, last: int) -> Span:
        """The elements of chunks from `first` up to `last`, those that exist."""
        return self.begin(first), min(self.begin(last), self.length)

    def chunk_size(self, chunk: int) -> int:
        """What its codecs see: the last chunk may reach over the array's end."""
        return self.begin(chunk + 1) - self.begin(chunk)

    def chunk_of(self, element: int) -> int:
        return element // self.size if self.size else bisect_right(self.edges, element) - 1

    def chunks_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.size:
            return elements // self.size
        found = np.searchsorted(np.array(self.edges), elements, side="right")
        return found.astype(np.int64) - 1


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The chunks of one array."""

    axes: tuple[Axis, ...]
    names: tuple[str | None, ...]

    @classmethod
    def of(cls, node: Node) -> ChunkGrid:
        """Raises InvalidInputError if the node is a group."""
        if node.array is None:
            raise InvalidInputError(f"{node.path} is a group and has no chunks")
        names = node.array.dimension_names or (None,) * len(node.array.shape)
        return cls(_axes(json.loads(node.user_data)["chunk_grid"], node.array), names)

    @property
    def limits(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    def select(self, selection: Selection | None) -> Box:
        """The elements that slices mean.

        Raises:
            InvalidInputError: they do not fit the array, or have steps.
        """
        spans: list[Span] = []
        for axis, part in zip(self.axes, self._slices(selection), strict=True):
            if not all(_is_position(end) for end in (part.start, part.stop)):
                raise InvalidInputError(
                    f"{part} has no positions: count elements from 0, and look labels up first",
                    kind="invalid-region",
                )
            start = 0 if part.start is None else int(part.start)
            stop = axis.length if part.stop is None else int(part.stop)
            if part.step not in (None, 1) or not 0 <= start <= stop <= axis.length:
                raise InvalidInputError(
                    f"{part} does not select from {axis.length} elements: start and stop must lie "
                    "in the array (resize it first), in steps of 1",
                    kind="invalid-region",
                )
            spans.append((start, stop))
        return tuple(spans)

    def _slices(self, selection: Selection | None) -> Sequence[slice]:
        if selection is None:
            return [slice(None)] * len(self.axes)
        given = selection.values() if isinstance(selection, Mapping) else selection
        if odd := [part for part in given if not isinstance(part, slice)]:
            raise InvalidInputError(
                f"{odd[0]!r} is no slice: a region is made of slices of positions, such as "
                "{'time': slice(0, 24)}",
                kind="invalid-region",
            )
        if not isinstance(selection, Mapping):
            if len(selection) != len(self.axes):
                raise InvalidInputError(
                    f"{len(selection)} slices for {len(self.axes)} dimensions",
                    kind="invalid-region",
                )
            return list(selection)
        if unknown := selection.keys() - set(self.names):
            raise InvalidInputError(
                f"no dimension is named {', '.join(sorted(unknown))}: there are {self.names}",
                kind="invalid-region",
            )
        return [
            slice(None) if name is None else selection.get(name, slice(None)) for name in self.names
        ]

    def chunks(self, elements: Box) -> Box:
        """The chunks that a box of elements touches."""
        return tuple(
            (axis.chunk_of(start), axis.chunk_of(stop - 1) + 1) if start < stop else (0, 0)
            for axis, (start, stop) in zip(self.axes, elements, strict=True)
        )

    def elements(self, chunks: Box) -> Box:
        """The elements of a box of chunks."""
        return tuple(axis.span(*span) for axis, span in zip(self.axes, chunks, strict=True))

    def cut(self, chunks: Box) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each chunk of a box, and where its elements are, counted from the box's beginning."""
        picks = []
        for axis, (first, last) in zip(self.axes, chunks, strict=True):
            zero = axis.begin(first) if first < last else 0
            spans = [axis.span(chunk, chunk + 1) for chunk in range(first, last)]
            picks.append(
                [
                    (first + at, slice(start - zero, stop - zero))
                    for at, (start, stop) in enumerate(spans)
                ]
            )
        for pick in product(*picks):
            yield tuple(chunk for chunk, _ in pick), tuple(part for _, part in pick)

    def chunk_shape(self, coords: Sequence[int]) -> tuple[int, ...]:
        """What the codecs of a chunk see."""
        return tuple(axis.chunk_size(at) for axis, at in zip(self.axes, coords, strict=True))

    def largest_chunk(self) -> int:
        """Elements of the largest chunk."""
        return prod(
            axis.size or max((axis.chunk_size(at) for at in range(axis.count)), default=0)
            for axis in self.axes
        )


def blocks(chunks: Box, limit: int) -> list[Box]:
    """A box of chunks cut into boxes of at most `limit` chunks, in order."""
    counts = [last - first for first, last in chunks]
    sizes = automatic_split(counts, max(limit, 1)) or [max(count, 1) for count in counts]
    spans = [
        [(start, min(start + size, last)) for start in range(first, last, size)]
        for (first, last), size in zip(chunks, sizes, strict=True)
    ]
    return list(product(*spans))


def clip(first: Box, second: Box) -> Box:
    """What two boxes share; a span is empty where they share nothing."""
    met = ((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return tuple((low, max(low, high)) for low, high in met)


def volume(box: Box) -> int:
    return prod(last - first for first, last in box)


def points(box: Box) -> NDArray[np.uint32]:
    """(n, dimensions): everything in a box, in order."""
    sides = [np.arange(first, last, dtype=np.uint32) for first, last in box]
    if not sides:
        return np.zeros((1, 0), np.uint32)
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))


def inside(index: NDArray[np.uint32], box: Box) -> NDArray[np.bool_]:
    """Which rows lie in a box."""
    low = np.array([first for first, _ in box], np.int64)
    high = np.array([last for _, last in box], np.int64)
    rows: NDArray[np.bool_] = ((index >= low) & (index < high)).all(axis=1)
    return rows


def _is_position(end: Any) -> bool:
    return end is None or (isinstance(end, int | np.integer) and not isinstance(end, bool))


def _axes(document: Mapping[str, Any], array: ArrayData) -> tuple[Axis, ...]:
    lengths = [dimension.array_length for dimension in array.shape]
    counts = [dimension.num_chunks for dimension in array.shape]
    configuration = document["configuration"]
    if document["name"] == "regular":
        sizes = configuration["chunk_shape"]
        return tuple(starmap(Axis, zip(lengths, counts, sizes, strict=True)))
    shapes = configuration["chunk_shapes"]
    return tuple(starmap(_axis, zip(lengths, counts, shapes, strict=True)))


def _axis(length: int, count: int, sizes: int | list[Any]) -> Axis:
    if isinstance(sizes, int):
        return Axis(length, count, sizes)
    # A pair is a size and how often it repeats.
    plain = [
        n for item in sizes for n in ([item[0]] * item[1] if isinstance(item, list) else [item])
    ]
    return Axis(length, count, 0, tuple(np.cumsum([0, *plain]).tolist()))
