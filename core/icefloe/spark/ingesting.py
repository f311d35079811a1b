"""Files to arrays, where one file touches many regions, and one region many files.

A first job writes the chunks of each file and keeps their references in a manifest of the file's
own. A second one gives every region its manifest. Nothing is shuffled, so a lost executor costs its
own tasks and no others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from icefloe.chunk_edits import EditColumns, common_rows
from icefloe.errors import InvalidInputError
from icefloe.spark.chunk_grid import clip, inside, volume
from icefloe.spark.chunk_writing import ChunkWriter
from icefloe.spark.planning import carried_cells, plan, planned_manifests
from icefloe.spark.regions import read_manifest, write_manifest, write_region
from icefloe.spark.source import Source
from icefloe.spark.tasks import carry_region
from icefloe.spark.writing import Staged, adopt, run
from icefloe.splitting import cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Box, Selection
    from icefloe.spark.planning import ArrayPlan, Cell
    from icefloe.spark.regions import WrittenManifest, WrittenRegion

    type Piece = tuple[str, Selection, Any]
    """The path of an array, the slices of its elements, and their values."""


@dataclass(frozen=True, slots=True)
class _Ingested:
    """What one file wrote to one array."""

    file: str
    path: str
    manifest: WrittenManifest | None
    emptied: NDArray[np.uint32]
    """Chunks that are all fill value now."""
    cells: tuple[Cell, ...]


def ingest(
    spark: SparkSession,
    session: Session,
    files: Sequence[str],
    open_file: Callable[[str], Iterable[Piece]],
    *,
    paths: Sequence[str],
) -> Staged:
    """Write what files hold, a task for each file, now, and let the session adopt it.

    Args:
        spark: see `write`.
        session: a writable one; resize arrays in it first to append to them.
        files: their names.
        open_file: called with a name on an executor; gives pieces of arrays, one after the other. A
            piece that covers chunks in part keeps the rest of their values.
        paths: the arrays that may be written.

    Raises:
        InvalidInputError: two files, or two pieces of one, wrote to one chunk. It fails a task, and
            so the job, with this error as text.
    """
    whole = plan(session, paths)
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    arrays = {array.path: array for array in whole.arrays}
    targets = {path: replace(array, cells=(), carried=()) for path, array in arrays.items()}
    context = spark.sparkContext
    told = f"icefloe: ingest {len(files):,} files"
    answers = run(context, partial(_ingest_file, source, targets, open_file), list(files), told)
    parts: dict[tuple[str, Cell], list[_Ingested]] = defaultdict(list)
    for item in (each for answer in answers for each in answer):
        for cell in item.cells:
            parts[item.path, cell].append(item)
    told = f"icefloe: write the manifests of {len(parts):,} regions"
    regions = run(context, partial(_join_files, source, targets), list(parts.items()), told)
    staged = []
    for path, array in arrays.items():
        touched = sorted(region.cell for region in regions if region.path == path)
        carried = carried_cells(planned_manifests(session, path), array.sizes, touched)
        told = f"icefloe: carry regions of {path} over"
        regions += run(context, partial(carry_region, source, targets[path]), carried, told)
        final = replace(array, cells=tuple(touched), carried=tuple(carried))
        staged.append(adopt(session, final, regions))
    return Staged(session, base, tuple(staged))


def _ingest_file(
    source: Source,
    arrays: Mapping[str, ArrayPlan],
    open_file: Callable[[str], Iterable[Piece]],
    file: str,
) -> list[_Ingested]:
    session = source.open()
    writers: dict[str, ChunkWriter] = {}
    written: dict[str, list[Box]] = defaultdict(list)
    for name, selection, values in open_file(file):
        path = "/" + name.strip("/")
        if path not in arrays:
            raise InvalidInputError(f"{file} has values for {path}, which is not among the paths")
        grid = arrays[path].grid
        elements = grid.select(selection)
        chunks = grid.chunks(elements)
        if any(volume(clip(chunks, other)) for other in written[path]):
            raise InvalidInputError(
                f"two pieces of {file} have values for one chunk of {path}: join them first",
                kind="chunk-in-several-pieces",
            )
        written[path].append(chunks)
        if path not in writers:
            writers[path] = ChunkWriter(session, path, grid)
        writers[path].write(elements, values)
    return [
        _ingested(session, file, arrays[path], writer.finish()) for path, writer in writers.items()
    ]


def _ingested(session: Session, file: str, array: ArrayPlan, edits: EditColumns) -> _Ingested:
    touched = {tuple(row) for row in cells(edits.index, array.sizes).tolist()}
    manifest = write_manifest(session, array.path, edits.live())
    return _Ingested(file, array.path, manifest, edits.index[edits.deleted], tuple(sorted(touched)))


def _join_files(
    source: Source,
    arrays: Mapping[str, ArrayPlan],
    item: tuple[tuple[str, Cell], Sequence[_Ingested]],
) -> WrittenRegion:
    """Write the manifest of a region that several files touched."""
    (path, cell), parts = item
    session, array = source.open(), arrays[path]
    box = array.cell_box(cell)
    edits = EditColumns.of({}, len(array.sizes))
    for part in parts:
        refs = read_manifest(session, path, part.manifest)
        new = EditColumns.written(refs.take(inside(refs.index, box))).then(
            EditColumns.deletions(part.emptied[inside(part.emptied, box)])
        )
        twice = common_rows(new.index, edits.index)
        if len(twice):
            raise InvalidInputError(
                f"{part.file} and another file have values for chunk {tuple(twice[0].tolist())} of "
                f"{path}: a chunk takes one file",
                kind="chunk-in-several-files",
            )
        edits = edits.then(new)
    return write_region(session, path, cell, box, edits)
