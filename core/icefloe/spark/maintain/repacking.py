"""Packing small chunks on Spark: what one commit changes, executors find, copy and write.

Whether an object is small shows only when all references to it are seen. So a first job leaves them
in storage, a second one adds them up by parts of the ids and says which manifests refer to small
objects, and a third one copies the chunks of some manifests and writes these anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from icefloe import rewriting
from icefloe.adoption import joined_manifests
from icefloe.config import effective
from icefloe.descriptions import check_message, check_metadata
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.nodes import ManifestRefs
from icefloe.format.snapshot import ManifestFiles
from icefloe.manifest_writing import ManifestWriter
from icefloe.rewriting import MIN_OBJECTS, RepackSummary, small_object
from icefloe.spark.context import spark_context
from icefloe.spark.maintain import packing_tasks as tasks
from icefloe.spark.maintain.jobs import ROWS_PER_TASK, TASKS_PER_CORE, cuts, run_tasks, spans
from icefloe.spark.maintain.packing_tasks import Pair, Work
from icefloe.spark.maintain.staging import Staging
from icefloe.spark.source import Source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.format.ids import NodeId
    from icefloe.format.metadata import Json
    from icefloe.format.snapshot import Snapshot
    from icefloe.repository import Repository
    from icefloe.rewriting import Content
    from icefloe.spark.maintain.packing_tasks import Small
    from icefloe.spark.regions import WrittenManifest
    from icefloe.storage import Storage
    from icefloe.working_tree import Context

_PACKS_PER_TASK = 4
"""At least so many: the last one of each task is not full."""


def repack(
    spark: SparkSession,
    repo: Repository,
    branch: str,
    arrays: Collection[str] | None = None,
    *,
    message: str = "Repack small chunks",
    metadata: Mapping[str, Json] | None = None,
    write_key: str | None = None,
    staging: Storage | str | None = None,
) -> RepackSummary:
    """`Repository.repack` on executors: the same chunks move, into packs of about the same size.

    Packs hold chunks of several arrays, and manifests keep the chunks that they have.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        repo: the repository.
        branch: whose tip is repacked.
        arrays: paths; None means all.
        message: of the commit.
        metadata: any JSON, kept with the commit.
        write_key: makes the commit happen once, as for `Session.commit`; if it has happened, the
            summary counts nothing.
        staging: where tasks leave ids for each other; None: in the repository's own storage.

    Raises:
        NotFoundError: there is no such branch, or no array at one of the paths.
    """
    check_message(message)
    said = check_metadata(metadata)
    if write_key is not None and (found := repo.find_write(write_key, branch)):
        return RepackSummary(found, 0, 0, 0, 0)
    session = repo.readonly_session(branch)
    context = session.context
    place = Staging.new(repo.storage, staging)
    repacker = _Repacker(spark_context(spark), context, place, arrays)
    try:
        repacker(context.assets.snapshot(SnapshotId.parse(session.snapshot_id)))
        if not repacker.summary.chunks:
            return repacker.summary
        snapshot_id = rewriting.commit(
            context.assets,
            repo,
            branch,
            message,
            said,
            rewriter=repacker,
            writer=repacker.writer,
            write_key=write_key,
        )
        return replace(repacker.summary, snapshot_id=snapshot_id)
    finally:
        place.clear()


@dataclass(frozen=True, slots=True)
class _Done:
    """A manifest that takes the place of another."""

    manifest: WrittenManifest
    chunks: int
    size: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """What was packed together."""

    pairs: frozenset[Pair]
    objects: int
    packs: int


class _Repacker:
    """Remembers what it packed, for a branch that moves meanwhile."""

    def __init__(
        self,
        context: SparkContext,
        source: Context,
        staging: Staging,
        arrays: Collection[str] | None,
    ) -> None:
        self._context = context
        self._source = source
        self._staging = staging
        self._arrays = arrays
        self._done: dict[Pair, _Done | None] = {}
        self._batches: list[_Batch] = []
        self.writer = ManifestWriter(source.assets, source.config)
        self.summary = RepackSummary(None, 0, 0, 0, 0)

    def __call__(self, snapshot: Snapshot) -> Content:
        pairs = [*_pairs(snapshot, self._arrays)]
        fresh = [pair for pair in pairs if pair not in self._done]
        if fresh:
            self._repack(Source.of(self._source, str(snapshot.id)), fresh)
        done = {pair: item for pair in pairs if (item := self._done[pair]) is not None}
        self._sum_up(done)
        manifests: dict[NodeId, ManifestRefs] = {}
        for node in rewriting.arrays(snapshot, self._arrays):
            if node.array is not None:
                mine = [done.get(Pair.of(node, raw)) for raw in node.array.manifests.object_id]
                if any(mine):
                    manifests[node.id] = _replaced(node.array.manifests, mine)
        written = [item.manifest for item in done.values()]
        files = [(ManifestId(item.id), item.size, item.count) for item in written]
        return rewriting.with_manifests(snapshot, self.writer, manifests, [ManifestFiles.of(files)])

    def _sum_up(self, done: Mapping[Pair, _Done]) -> None:
        """What was done for the snapshot at hand; some of it may have been for another."""
        batches = [batch for batch in self._batches if not batch.pairs.isdisjoint(done)]
        self.summary = RepackSummary(
            None,
            sum(item.chunks for item in done.values()),
            sum(item.size for item in done.values()),
            sum(batch.objects for batch in batches),
            sum(batch.packs for batch in batches),
        )

    def _repack(self, source: Source, pairs: Sequence[Pair]) -> None:
        settings = effective(self._source.config)
        target = settings.packing_target_bytes
        small_bytes = small_object(settings.packing_max_chunk_bytes, target)
        work = Work(source, self._staging, tuple(pairs), small_bytes)
        told = f"read {len(pairs):,} manifests"
        parts = [range(a, b) for a, b in cuts(self._context, len(pairs))]
        answers = run_tasks(self._context, partial(tasks.stage_refs, work), parts, told)
        runs = [run for answer in answers for run in answer]
        many = spans(self._context, self._staging.storage, sum(map(len, runs)))
        task = partial(tasks.find_small, work, runs)
        small = run_tasks(self._context, task, many, "find small objects")
        self._done |= dict.fromkeys(pairs)
        objects = sum(answer.objects for answer in small)
        if objects < MIN_OBJECTS:
            return
        size, count = _totals(small, len(pairs))
        told = f"pack {int(count.sum()):,} chunks"
        packed = run_tasks(
            self._context,
            partial(tasks.pack, work, [answer.run for answer in small], target),
            [*self._groups(size, count, target)],
            told,
        )
        done = {
            pairs[number]: _Done(manifest, int(count[number]), int(size[number]))
            for answer in packed
            for number, manifest in answer.written
        }
        self._done |= done
        used = sum(answer.used for answer in small)
        packs = sum(answer.packs for answer in packed)
        self._batches.append(_Batch(frozenset(done), used, packs))

    def _groups(
        self, size: NDArray[np.int64], count: NDArray[np.int64], target: int
    ) -> Iterator[list[int]]:
        """Manifests with small chunks, as many for one task as give it full packs to write."""
        tasks_wanted = self._context.defaultParallelism * TASKS_PER_CORE
        enough = max(_PACKS_PER_TASK * target, int(size.sum()) // tasks_wanted)
        group: list[int] = []
        held = chunks = 0
        for number in np.flatnonzero(count).tolist():
            group.append(number)
            held, chunks = held + int(size[number]), chunks + int(count[number])
            if held >= enough or chunks >= ROWS_PER_TASK:
                yield group
                group, held, chunks = [], 0, 0
        if group:
            yield group


def _pairs(snapshot: Snapshot, paths: Collection[str] | None) -> Iterator[Pair]:
    for node in rewriting.arrays(snapshot, paths):
        if node.array is not None:
            for raw in node.array.manifests.object_id:
                yield Pair.of(node, raw)


def _totals(small: Sequence[Small], pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes and number of the chunks in small objects, for each pair."""
    size, count = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
    for answer in small:
        np.add.at(size, answer.pair, answer.size)
        np.add.at(count, answer.pair, answer.count)
    return size, count


def _replaced(old: ManifestRefs, done: Sequence[_Done | None]) -> ManifestRefs:
    """With other manifests where there are such."""
    stays = np.array([item is None for item in done], np.bool_)
    kept = ManifestRefs(old.object_id[stays], old.extents[stays])
    # Some writers say nothing of where manifests lie: then nothing is said of any.
    told = old.extents.shape[1]
    made = [(ManifestId(item.manifest.id), item.manifest.box[:told]) for item in done if item]
    return joined_manifests([ManifestRefs.of(made, told), kept])
