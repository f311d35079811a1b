"""Files to arrays, where one file touches many regions, and one region many files.

A first job writes the chunks of each file and keeps their references in a manifest of the file's
own. A second one gives every region its manifest. Nothing is shuffled, so a lost executor costs its
own tasks and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.chunk_edits import EditColumns, common_rows
from icefloe.errors import InvalidInputError
from icefloe.spark.appending import grow
from icefloe.spark.cf_packing import require_choice
from icefloe.spark.chunk_grid import ChunkGrid, clip, inside, volume
from icefloe.spark.chunk_writing import ChunkWriter
from icefloe.spark.context import spark_context
from icefloe.spark.job_log import JobLog
from icefloe.spark.planning import array_node, carried_cells, plan, planned_manifests
from icefloe.spark.regions import read_manifest, write_manifest, write_region
from icefloe.spark.source import Source
from icefloe.spark.tasks import carry_region
from icefloe.spark.writing import Staged, adopt, run
from icefloe.splitting import cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.appending import Append
    from icefloe.spark.chunk_grid import Box, Selection
    from icefloe.spark.planning import ArrayPlan, Cell
    from icefloe.spark.regions import WrittenManifest, WrittenRegion

    type Piece = tuple[str, Selection, Any]
    """The path of an array, the slices of its elements, and their values."""


@dataclass(frozen=True, slots=True)
class _Ingested:
    """What one item wrote to one array."""

    item: str
    path: str
    manifest: WrittenManifest | None
    emptied: NDArray[np.uint32]
    """Chunks that are all fill value now."""
    cells: tuple[Cell, ...]


def ingest(
    spark: SparkSession,
    session: Session,
    files: Sequence[str],
    open_fn: Callable[[str], Iterable[Piece]],
    *,
    paths: Sequence[str],
    append: Append | None = None,
    decode: bool | None = None,
) -> Staged:
    """Write what files hold, a task for each file, now, and let the session adopt it.

    Args:
        spark: see `write`.
        session: a writable one.
        files: their names.
        open_fn: called with a name on an executor; gives pieces of arrays, one after the other. A
            piece that covers chunks in part keeps the rest of their values.
        paths: the arrays that may be written.
        append: by dimension name, how many elements longer the arrays of `paths` shall be that have
            it, or the labels of these elements: they are written to the coordinate, which grows,
            too (times in the units that it has). Pieces count from where each array ended.
        decode: True: files give what values mean, as xarray does, and the arrays of `paths` that
            are packed get them packed. False: they give what is stored. See `write`.

    Raises:
        InvalidInputError: two files, or two pieces of one, wrote to one chunk. Or an array beside
            those of `paths` has a dimension that grows, and would stay shorter; or a label would be
            in a coordinate twice. Or an array is packed and `decode` is not given, or its type has
            no room for a value.
    """
    if decode is None:
        require_choice(session, paths)
    growth = grow(session, paths, append or {})
    produce = partial(_open, open_fn, growth.ends)
    staged = write_pieces(
        spark, session, list(files), produce, paths=paths, what="files", decode=bool(decode)
    )
    growth.require_labels(session)
    return staged


def write_pieces[T](
    spark: SparkSession,
    session: Session,
    items: Sequence[T],
    produce: Callable[[Session, T], Iterable[Piece]],
    *,
    paths: Sequence[str],
    what: str,
    decode: bool = False,
) -> Staged:
    """Write the pieces of arrays that items give on executors, a task for each item.

    Args:
        spark: see `write`.
        session: a writable one.
        items: whatever `produce` takes.
        produce: called with the session that the tasks read, and an item.
        paths: the arrays that may be written.
        what: the items are called.
        decode: whether the pieces are packed.
    """
    context = spark_context(spark)
    whole = plan(session, paths)
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    arrays = {array.path: array for array in whole.arrays}
    targets = {path: replace(array, cells=(), carried=()) for path, array in arrays.items()}
    log = JobLog(f"write {', '.join(arrays)} from {len(items):,} {what}, a task for each")
    told = f"icefloe: write {len(items):,} {what}"
    answers = run(context, partial(_write_item, source, targets, produce, decode), items, told)
    parts: dict[tuple[str, Cell], list[_Ingested]] = defaultdict(list)
    for part in (each for answer in answers for each in answer):
        for cell in part.cells:
            parts[part.path, cell].append(part)
    told = f"icefloe: write the manifests of {len(parts):,} regions"
    regions = run(context, partial(_join_items, source, targets), list(parts.items()), told)
    staged = []
    for path, array in arrays.items():
        touched = sorted(region.cell for region in regions if region.path == path)
        carried = carried_cells(planned_manifests(session, path), array.sizes, touched)
        told = f"icefloe: carry regions of {path} over"
        regions += run(context, partial(carry_region, source, targets[path]), carried, told)
        final = replace(array, cells=tuple(touched), carried=tuple(carried))
        staged.append(adopt(session, final, regions))
    log.done(staged, base)
    return Staged(session, base, tuple(staged))


def _open(
    open_fn: Callable[[str], Iterable[Piece]],
    ends: Mapping[str, Mapping[str, int]],
    session: Session,
    file: str,
) -> Iterable[Piece]:
    """The pieces of a file, counted from the beginning of the arrays."""
    for name, selection, values in open_fn(file):
        path = "/" + name.strip("/")
        end = ends.get(path, {})
        names = ChunkGrid.of(array_node(session, path)).names if end else ()
        yield path, _moved(selection, names, end), values


def _moved(selection: Selection, names: Sequence[str | None], end: Mapping[str, int]) -> Selection:
    """A selection that counts from `end` in the dimensions it names."""
    if isinstance(selection, Mapping):
        return {**selection, **{name: _after(selection.get(name), end[name]) for name in end}}
    pairs = zip_longest(selection, names)
    return [_after(part, end[name]) if name and name in end else part for part, name in pairs]


def _after(part: slice | None, end: int) -> slice:
    start = 0 if part is None or part.start is None else part.start
    stop = None if part is None or part.stop is None else part.stop + end
    return slice(start + end, stop, None if part is None else part.step)


def _write_item[T](
    source: Source,
    arrays: Mapping[str, ArrayPlan],
    produce: Callable[[Session, T], Iterable[Piece]],
    decode: bool,
    item: T,
) -> list[_Ingested]:
    session = source.open()
    writers: dict[str, ChunkWriter] = {}
    written: dict[str, list[Box]] = defaultdict(list)
    for name, selection, values in produce(session, item):
        path = "/" + name.strip("/")
        if path not in arrays:
            raise InvalidInputError(f"{item} has values for {path}, which is not among the paths")
        grid = arrays[path].grid
        elements = grid.select(selection)
        chunks = grid.chunks(elements)
        if any(volume(clip(chunks, other)) for other in written[path]):
            raise InvalidInputError(
                f"two pieces of {item} have values for one chunk of {path}: join them first",
                kind="chunk-in-several-pieces",
            )
        written[path].append(chunks)
        if path not in writers:
            writers[path] = ChunkWriter(session, path, grid, decode=decode)
        writers[path].write(elements, values)
    return [
        _ingested(session, str(item), arrays[path], writer.finish())
        for path, writer in writers.items()
    ]


def _ingested(session: Session, item: str, array: ArrayPlan, edits: EditColumns) -> _Ingested:
    found = cells(edits.index, array.sizes)
    touched = map(tuple, (np.unique(found, axis=0) if array.sizes else found).tolist())
    manifest = write_manifest(session, array.path, edits.live())
    return _Ingested(item, array.path, manifest, edits.index[edits.deleted], tuple(sorted(touched)))


def _join_items(
    source: Source,
    arrays: Mapping[str, ArrayPlan],
    item: tuple[tuple[str, Cell], Sequence[_Ingested]],
) -> WrittenRegion:
    """Write the manifest of a region that several items touched."""
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
                f"{part.item} and another have values for chunk {tuple(twice[0].tolist())} of "
                f"{path}: a chunk takes one file",
                kind="chunk-in-several-files",
            )
        edits = edits.then(new)
    return write_region(session, path, cell, box, edits)
