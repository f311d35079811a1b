"""Which split cells of which arrays a write touches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import zarr

from icefloe.adoption import manifest_cells
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.manifest_writing import ManifestWriter
from icefloe.spark.chunk_grid import Box, ChunkGrid, clip, points, volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.format.nodes import ManifestRefs, Node
    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Selection

MAX_CHUNKS = 5 * 10**7
"""Chunks in one commit: its transaction log lists each, and must stay below 2 GiB."""

type Cell = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """What one array is written, and how it is split.

    Attributes:
        path: of the array.
        document: its zarr.json.
        itemsize: bytes of one element.
        grid: its chunks.
        sizes: chunks per cell along each axis.
        selection: the elements to write.
        cells: those that the selection touches: one task writes one of them.
        carried: cells without new data. Manifests reach from them into `cells`, so their references
            move to manifests of their own.
    """

    path: str
    document: bytes
    itemsize: int
    grid: ChunkGrid
    sizes: tuple[int, ...]
    selection: Box
    cells: tuple[Cell, ...]
    carried: tuple[Cell, ...]

    @property
    def chunk_box(self) -> Box:
        return self.grid.chunks(self.selection)

    @property
    def chunks(self) -> int:
        return sum(volume(self.written_box(cell)) for cell in self.cells)

    def cell_box(self, cell: Cell) -> Box:
        """The chunks of a cell, as far as the array has them."""
        whole = tuple(
            (at * size, (at + 1) * size) for at, size in zip(cell, self.sizes, strict=True)
        )
        return clip(whole, tuple((0, limit) for limit in self.grid.limits))

    def written_box(self, cell: Cell) -> Box:
        """The chunks of a cell that the write touches."""
        return clip(self.cell_box(cell), self.chunk_box)


@dataclass(frozen=True, slots=True)
class Plan:
    """A write that has not begun. `str()` tells what it will take."""

    session: Session = field(repr=False)
    arrays: tuple[ArrayPlan, ...]

    @property
    def regions(self) -> int:
        """Manifests to be written at most, and tasks at least."""
        return sum(len(array.cells) + len(array.carried) for array in self.arrays)

    @property
    def chunks(self) -> int:
        return sum(array.chunks for array in self.arrays)

    @property
    def needs_slices(self) -> bool:
        """Whether one commit cannot hold it: see `write_sliced`."""
        return self.chunks > MAX_CHUNKS

    def __str__(self) -> str:
        told = [
            f"{array.path}: {array.chunks:,} chunks in {len(array.cells):,} regions"
            + (f", {len(array.carried):,} more carried over" if array.carried else "")
            for array in self.arrays
        ]
        if self.needs_slices:
            told.append(f"more than {MAX_CHUNKS:,} chunks do not fit one commit: use write_sliced")
        return "\n".join(told)


def plan(session: Session, paths: str | Sequence[str], region: Selection | None = None) -> Plan:
    """Which regions of which arrays a write touches. Nothing is read but the session.

    Args:
        session: a writable one; it may have created or resized the arrays just now.
        paths: of one array or several.
        region: slices of elements, one for each dimension, or by dimension name; None means all.

    Raises:
        InvalidInputError: the region does not fit, or a path is given twice.
        NotFoundError: there is no such array.
    """
    chosen = [paths] if isinstance(paths, str) else list(paths)
    chosen = ["/" + path.strip("/") for path in chosen]
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"an array is named twice: {chosen}")
    return Plan(session, tuple(plan_array(session, path, region) for path in chosen))


def plan_array(session: Session, path: str, region: Selection | None) -> ArrayPlan:
    """The part of one array in a plan."""
    node = array_node(session, path)
    grid = ChunkGrid.of(node)
    sizes = split_of(session, node)
    selection = grid.select(region)
    box = grid.chunks(selection)
    touched = tuple(
        (first // size, -(-last // size)) for (first, last), size in zip(box, sizes, strict=True)
    )
    cells = [tuple(row) for row in points(touched).tolist()] if volume(box) else []
    carried = carried_cells(planned_manifests(session, path), sizes, cells)
    array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    return ArrayPlan(
        path=path,
        document=node.user_data,
        itemsize=array.dtype.itemsize,
        grid=grid,
        sizes=sizes,
        selection=selection,
        cells=tuple(cells),
        carried=tuple(carried),
    )


def array_node(session: Session, path: str) -> Node:
    node = session.node(path)
    if node is None:
        raise NotFoundError(f"there is no node at {path}", kind="node-not-found")
    return node


def planned_manifests(session: Session, path: str) -> ManifestRefs:
    """The manifests that an array has in a session, its uncommitted edits left out."""
    node = array_node(session, path)
    if node.array is None:
        raise InvalidInputError(f"{path} is a group and has no chunks")
    return node.array.manifests


def split_of(session: Session, node: Node) -> tuple[int, ...]:
    """Chunks per manifest along each axis, as a commit would cut them."""
    return ManifestWriter(session.context.assets, session.config).sizes(node)


def carried_cells(
    manifests: ManifestRefs, sizes: tuple[int, ...], cells: Sequence[Cell]
) -> list[Cell]:
    """The cells that have to be written because manifests reach from them into `cells`.

    Raises:
        InvalidInputError: a manifest does not tell where its references lie.
    """
    if len(manifests) and manifests.extents.shape[1] != len(sizes):
        raise InvalidInputError(
            "manifests without extents may reach anywhere: commit Repository.rewrite_manifests "
            "first",
            kind="manifest-without-extents",
        )
    low, high = manifest_cells(manifests, sizes)
    spread = [
        tuple(zip(a, (b + 1 for b in z), strict=True))
        for a, z in zip(low.tolist(), high.tolist(), strict=True)
        if a != z
    ]
    known = set(cells)
    reached = np.array(sorted(known), np.int64).reshape(len(known), len(sizes))
    while True:
        met = [box for box in spread if _meets(reached, box)]
        new = {tuple(row) for box in met for row in points(box).tolist()} - known
        if not new:
            return sorted(known - set(cells))
        known |= new
        reached = np.array(sorted(known), np.int64).reshape(len(known), len(sizes))


def _meets(cells: np.ndarray[tuple[int, ...], np.dtype[np.int64]], box: Box) -> bool:
    low, high = np.array(box, np.int64).T
    return bool(((cells >= low) & (cells < high)).all(axis=1).any())
