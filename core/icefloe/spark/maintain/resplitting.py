"""Cutting manifests anew on Spark: tasks write those of some cells each, and one commit follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from icefloe import rewriting
from icefloe.adoption import joined_manifests, manifest_cells
from icefloe.changes import grid
from icefloe.chunk_edits import EditColumns, rows_in
from icefloe.descriptions import check_metadata
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRefs
from icefloe.format.snapshot import ManifestFiles
from icefloe.manifest_writing import ManifestWriter, alone_in_cell, groups_by_cell, untouched
from icefloe.spark.chunk_grid import points
from icefloe.spark.context import spark_context
from icefloe.spark.maintain.jobs import TASKS_PER_CORE, run_tasks
from icefloe.spark.planning import array_node
from icefloe.spark.regions import write_manifest
from icefloe.spark.source import Source
from icefloe.splitting import cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.format.ids import NodeId
    from icefloe.format.metadata import Json
    from icefloe.format.nodes import Node
    from icefloe.format.snapshot import Snapshot
    from icefloe.repository import Repository
    from icefloe.rewriting import Content
    from icefloe.spark.regions import WrittenManifest
    from icefloe.working_tree import Context

    type Cells = NDArray[np.int64]


def rewrite_manifests(
    spark: SparkSession,
    repo: Repository,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Json] | None = None,
    commit_method: Literal["new_commit", "amend"] = "new_commit",
    write_key: str | None = None,
) -> str:
    """`Repository.rewrite_manifests` on executors; the new tip's id.

    Manifests that fit already are kept. A task holds the references of its cells, and those of
    a few manifests that reach into them.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        repo: the repository, with the configuration that says how to cut.
        message: of the commit.
        branch: whose tip is rewritten.
        metadata: any JSON, kept with the commit.
        commit_method: whether to replace the tip.
        write_key: makes the commit happen once, as for `Session.commit`.
    """
    context = repo.readonly_session(branch).context
    writer = ManifestWriter(context.assets, context.config)
    return rewriting.commit(
        context.assets,
        repo,
        branch,
        message,
        {**check_metadata(metadata), **rewriting.split_metadata(context.config)},
        rewriter=_Resplitter(spark_context(spark), context, writer),
        writer=writer,
        amend=commit_method == "amend",
        write_key=write_key,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Cells of one array, the work of one task; None: all of them."""

    node: bytes
    path: str
    sizes: tuple[int, ...]
    cells: Cells | None


@dataclass(frozen=True, slots=True, eq=False)
class _Rewritten:
    """What a task made of its cells."""

    node: bytes
    written: list[WrittenManifest]
    kept: NDArray[np.int64]
    """Rows of manifests that stay as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class _Array:
    """An array whose manifests do not fit."""

    node: Node
    manifests: ManifestRefs
    limits: NDArray[np.uint32]
    sizes: tuple[int, ...]
    stays: NDArray[np.bool_]
    cells: Cells | None
    """Those to write, sorted; None if the manifests do not tell where they lie."""

    @property
    def state(self) -> tuple[object, ...]:
        """Equal only if the manifests that come of it may be."""
        manifests = self.manifests.object_id.tobytes()
        return self.node.id, self.sizes, *self.limits.tolist(), manifests


class _Resplitter:
    """Remembers what it wrote, for a branch that moves meanwhile."""

    def __init__(self, context: SparkContext, source: Context, writer: ManifestWriter) -> None:
        self._context = context
        self._source = source
        self._writer = writer
        self._done: dict[tuple[object, ...], tuple[ManifestRefs, ManifestFiles]] = {}

    def __call__(self, snapshot: Snapshot) -> Content:
        found = [*_misfits(snapshot, self._writer)]
        fresh = [array for array in found if array.state not in self._done]
        source = Source.of(self._source, str(snapshot.id))
        parts = [*self._parts(fresh)]
        told = f"write the manifests of {sum(_count(array.cells) for array in fresh):,} cells"
        answers = run_tasks(self._context, partial(_rewrite, source), parts, told)
        for array in fresh:
            mine = [answer for answer in answers if answer.node == array.node.id.raw]
            self._done[array.state] = _joined(array, mine)
        manifests: dict[NodeId, ManifestRefs] = {}
        files = []
        for array in found:
            manifests[array.node.id], known = self._done[array.state]
            files.append(known)
        return rewriting.with_manifests(snapshot, self._writer, manifests, files)

    def _parts(self, arrays: Sequence[_Array]) -> Iterator[_Part]:
        total = sum(_count(array.cells) for array in arrays)
        size = max(1, -(-total // (self._context.defaultParallelism * TASKS_PER_CORE)))
        for array in arrays:
            part = partial(_Part, array.node.id.raw, array.node.path, array.sizes)
            if array.cells is None:
                yield part(None)
            else:
                for start in range(0, len(array.cells), size):
                    yield part(array.cells[start : start + size])


def _count(cells: Cells | None) -> int:
    return 1 if cells is None else len(cells)


def _misfits(snapshot: Snapshot, writer: ManifestWriter) -> Iterator[_Array]:
    for node in rewriting.arrays(snapshot):
        if node.array is None:
            continue
        old, limits, sizes = node.array.manifests, grid(node.array), writer.sizes(node)
        nothing = EditColumns.of({}, len(limits))
        stays, cell_of = untouched(old, limits, sizes, nothing)
        stays &= alone_in_cell(cell_of)
        if bool(stays.all()):
            continue
        if old.extents.shape[1] != len(limits):
            yield _Array(node, old, limits, sizes, stays, None)
            continue
        low, high = manifest_cells(old, sizes)
        # What lies outside the grid is dropped, however far a manifest says that it reaches.
        high = np.minimum(high, cells(limits[None], sizes))
        wanted = _cells_between(low[~stays], high[~stays])
        # Other manifests in these cells are joined with what comes there.
        stays &= ~rows_in(cell_of, wanted)
        yield _Array(node, old, limits, sizes, stays, wanted)


def _cells_between(low: Cells, high: Cells) -> Cells:
    """All cells from `low` to `high`, for each row of both; sorted, each once."""
    alone = (low == high).all(axis=1)
    parts = [low[alone]]
    for first, last in zip(low[~alone].tolist(), high[~alone].tolist(), strict=True):
        box = tuple((a, b + 1) for a, b in zip(first, last, strict=True))
        parts.append(points(box).astype(np.int64))
    found = np.concatenate(parts)
    return np.unique(found, axis=0) if found.shape[1] else found[:1]


def _joined(array: _Array, answers: Sequence[_Rewritten]) -> tuple[ManifestRefs, ManifestFiles]:
    """The manifests of an array after its tasks, and the files of the new ones."""
    written = [item for answer in answers for item in answer.written]
    ids = [ManifestId(item.id) for item in written]
    rank = len(array.sizes)
    new = ManifestRefs.of([(name, item.box) for name, item in zip(ids, written, strict=True)], rank)
    stays = array.stays.copy()
    for answer in answers:
        stays[answer.kept] = True
    old = ManifestRefs(array.manifests.object_id[stays], array.manifests.extents[stays])
    files = [(name, item.size, item.count) for name, item in zip(ids, written, strict=True)]
    return joined_manifests([new, old]), ManifestFiles.of(files)


# From here on, what runs on executors.


def _rewrite(source: Source, part: _Part) -> _Rewritten:
    """Write a manifest for each cell, but where one manifest has it to itself already."""
    session = source.open()
    node = array_node(session, part.path)
    if node.array is None:
        raise AssertionError("arrays stay arrays")
    old, limits = node.array.manifests, grid(node.array)
    rows = _reaching(old, part)
    refs, origin = [ChunkRefs.empty(len(limits))], [np.zeros(0, np.int64)]
    ids = [ManifestId(old.object_id[row].tobytes()) for row in rows.tolist()]
    for row, manifest in zip(rows.tolist(), session.context.assets.manifests(ids), strict=True):
        found = manifest.array(node.id)
        if found is not None and len(found):
            inside = (found.index < limits).all(axis=1)
            if part.cells is not None:
                inside &= rows_in(cells(found.index, part.sizes), part.cells)
            refs.append(found.take(inside))
            origin.append(np.full(int(inside.sum()), row, np.int64))
    joined, source_row = ChunkRefs.concat(refs), np.concatenate(origin)
    stays, _ = untouched(old, limits, part.sizes, EditColumns.of({}, len(limits)))
    written, kept = [], []
    for _, mine in groups_by_cell(joined.index, part.sizes):
        sources = np.unique(source_row[mine])
        if len(sources) == 1 and bool(stays[sources[0]]):
            kept.append(int(sources[0]))
            continue
        manifest_file = write_manifest(session, part.path, joined.take(mine).sorted())
        if manifest_file is not None:
            written.append(manifest_file)
    return _Rewritten(part.node, written, np.array(kept, np.int64))


def _reaching(old: ManifestRefs, part: _Part) -> NDArray[np.int64]:
    """The manifests that reach into the cells of a part."""
    if part.cells is None:
        return np.arange(len(old))
    low, high = manifest_cells(old, part.sizes)
    met = rows_in(low, part.cells)
    # Few manifests lie in several cells: only those are looked at one by one.
    for row in np.flatnonzero((low != high).any(axis=1)).tolist():
        met[row] = bool(((part.cells >= low[row]) & (part.cells <= high[row])).all(axis=1).any())
    return np.flatnonzero(met)
