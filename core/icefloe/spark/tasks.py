"""What runs on executors: the chunks of a region, or a part of them, and the region's manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.chunk_edits import EditColumns
from icefloe.spark.block import Block
from icefloe.spark.chunk_grid import blocks, clip, points
from icefloe.spark.chunk_writing import ChunkWriter
from icefloe.spark.regions import read_manifest, write_manifest, write_region

if TYPE_CHECKING:
    from icefloe.session import Session
    from icefloe.spark.block import Compute
    from icefloe.spark.chunk_grid import Box
    from icefloe.spark.planning import ArrayPlan, Cell
    from icefloe.spark.regions import WrittenManifest, WrittenRegion
    from icefloe.spark.source import Source


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive blocks of a region, or all of them: the work of one task."""

    array: int
    cell: Cell
    first: int = 0
    last: int | None = None
    """None: all blocks, and the region's manifest, too."""

    @property
    def is_whole(self) -> bool:
        return self.last is None


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part whose chunks are in the store; their references wait in a manifest for the others."""

    part: Part
    manifest: WrittenManifest | None


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a write share."""

    source: Source
    arrays: tuple[ArrayPlan, ...]
    compute: Compute
    block_bytes: int
    decode: bool
    """Whether what is computed is packed."""

    def blocks(self, array: int, cell: Cell) -> list[Box]:
        """The blocks of a region, as boxes of chunks."""
        planned = self.arrays[array]
        chunk_bytes = max(planned.grid.largest_chunk() * planned.itemsize, 1)
        return blocks(planned.written_box(cell), self.block_bytes // chunk_bytes)


def write_part(job: Job, part: Part) -> WrittenRegion | WrittenPart:
    """Compute and write the chunks of a part, and then the region's manifest if it is whole."""
    session, array = job.source.open(), job.arrays[part.array]
    writer = ChunkWriter(session, array.path, array.grid, decode=job.decode)
    # A carried region has none.
    boxes = job.blocks(part.array, part.cell)
    for box in boxes[part.first : part.last]:
        block = _block(session, array, box, writer)
        elements = tuple((side.start, side.stop) for side in block.slices)
        writer.write(elements, job.compute(block))
    edits = writer.finish()
    if part.is_whole:
        cell_box = array.cell_box(part.cell)
        return write_region(session, array.path, part.cell, cell_box, edits)
    return WrittenPart(part, write_manifest(session, array.path, edits.live()))


def join_parts(job: Job, parts: list[WrittenPart]) -> WrittenRegion:
    """Write the manifest of a region whose chunks several tasks wrote."""
    session, first = job.source.open(), parts[0].part
    array = job.arrays[first.array]
    boxes = job.blocks(first.array, first.cell)
    edits = EditColumns.of({}, len(array.sizes))
    for written in parts:
        refs = read_manifest(session, array.path, written.manifest)
        for box in boxes[written.part.first : written.part.last]:
            edits = edits.then(EditColumns.deletions(points(box)))
        edits = edits.then(EditColumns.written(refs))
    return write_region(session, array.path, first.cell, array.cell_box(first.cell), edits)


def carry_region(source: Source, array: ArrayPlan, cell: Cell) -> WrittenRegion:
    """Give a region without new data a manifest of its own."""
    nothing = EditColumns.of({}, len(array.sizes))
    return write_region(source.open(), array.path, cell, array.cell_box(cell), nothing)


def _block(session: Session, array: ArrayPlan, box: Box, writer: ChunkWriter) -> Block:
    elements = clip(array.grid.elements(box), array.selection)
    return Block(
        array.path,
        tuple(slice(start, stop) for start, stop in elements),
        array.grid.chunk_shape([first for first, _ in box]),
        writer.given_dtype,
        array.grid.names,
        session,
    )
