"""Garbage collection on Spark: see `icefloe.maintenance.gc`, whose rules it keeps.

Executors read the snapshots and manifests that stay, and leave the ids of their chunks in storage,
sorted. Then each lists a part of the ids and looks which of them are garbage, and leaves that in
storage, too. Deleting is a job of its own, so that a task that runs again finds the same objects,
deleted or not, and counts them once. Before each batch it looks at `repo`, as on one machine.
"""

from __future__ import annotations

from datetime import UTC
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.config import effective
from icefloe.maintenance.gc import (
    SAFETY_FLOOR,
    GCSummary,
    Options,
    attempt,
    check,
    drop,
    summary,
)
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.keeping import Keeper, StartOverError
from icefloe.maintenance.marks import Marks
from icefloe.maintenance.progress import Meter
from icefloe.maintenance.sweeping import PHASES, Sweeper
from icefloe.spark.context import spark_context
from icefloe.spark.maintain import sweeping_tasks as tasks
from icefloe.spark.maintain.jobs import Place, groups, run_tasks, spans
from icefloe.spark.maintain.staging import Run, Staging
from icefloe.spark.maintain.sweeping_tasks import Found, Marked, Target, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.format.ragged import Bytes
    from icefloe.maintenance.progress import Report
    from icefloe.repository import Repository
    from icefloe.storage import Storage

_FEW = 32
"""So many snapshots are read sooner than a job starts."""


def garbage_collect(
    spark: SparkSession,
    repo: Repository,
    delete_object_older_than: datetime,
    *,
    dry_run: bool = False,
    force: bool = False,
    safety_floor: timedelta = SAFETY_FLOOR,
    staging: Storage | str | None = None,
    progress: Report | None = None,
) -> GCSummary:
    """`Repository.garbage_collect` on executors; it deletes the same objects and raises the same.

    The driver holds the ids of snapshots and manifests, none of chunks. A run that is killed leaves
    garbage, and objects below `icefloe/staging` that the next one removes.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        repo: the repository.
        delete_object_older_than: the bound, exclusive, by the store's clock; naive times are local.
        dry_run: report, but change nothing.
        force: accept a cutoff younger than `safety_floor`.
        safety_floor: how old a cutoff must be.
        staging: where tasks leave ids for each other; None: in the repository's own storage.
        progress: is told, after each job, how far the run is.
    """
    context = spark_context(spark)
    options = Options(
        cutoff=delete_object_older_than.astimezone(UTC),
        dry_run=dry_run,
        updates_per_file=effective(repo.config).num_updates_per_repo_info_file,
    )
    assets = Assets(repo.storage)
    check(assets, options, safety_floor=safety_floor, force=force)
    place = Staging.new(repo.storage, staging)
    try:
        if not dry_run:
            place.clear_leftovers(options.cutoff)
        return attempt(
            assets,
            lambda restarts: _Collector(context, assets, place, options, Meter(progress)).run(
                restarts
            ),
        )
    finally:
        place.clear()


class _SparkMarks(Marks):
    """Reads snapshots and manifests on executors; the ids of chunks stay in storage."""

    def __init__(self, context: SparkContext, work: Work, meter: Meter) -> None:
        super().__init__(work.place.open().storage, meter)
        self._context = context
        self._work = work
        self.runs: list[Run] = []

    def stage(self, manifests: Bytes) -> None:
        """Leave the ids of all chunks that these manifests refer to in storage."""
        told = f"read {len(manifests):,} manifests"
        task = partial(tasks.stage_chunks, self._work)
        parts = run_tasks(self._context, task, groups(self._context, manifests), told)
        self.runs += chain.from_iterable(parts)
        self._meter.read_manifest(len(manifests))

    def _manifests_of(self, snapshots: Bytes) -> Iterator[Bytes]:
        if len(snapshots) <= _FEW:
            yield from super()._manifests_of(snapshots)
            return
        told = f"read {len(snapshots):,} snapshots"
        task = partial(tasks.manifests_of, self._work)
        yield from run_tasks(self._context, task, groups(self._context, snapshots), told)
        self._meter.read_snapshot(len(snapshots))

    def _adopt_chunks(self, manifests: Bytes) -> None:
        self.stage(manifests)


class _Collector:
    """One attempt."""

    def __init__(
        self,
        context: SparkContext,
        assets: Assets,
        staging: Staging,
        options: Options,
        meter: Meter,
    ) -> None:
        self._context = context
        self._assets = assets
        self._options = options
        self._meter = meter
        self._work = Work(Place.of(assets), staging, options.cutoff)
        self._marks = _SparkMarks(context, self._work, meter)
        self._keeper = Keeper(assets, self._marks)
        self._sweeper = Sweeper(
            assets.storage, meter, dry_run=options.dry_run, look_again=self._keeper.look_again
        )

    def run(self, restarts: int) -> GCSummary:
        self._meter.enter("mark")
        info = self._keeper.plan(self._old_snapshots())
        self._marks.stage(self._marks.manifests.ids())
        self._meter.enter("update")
        drop(self._assets, self._keeper, info, self._options)
        found = self._find()
        known = len(self._marks.runs)
        for phase in PHASES:
            mine = [item for item in found if item.target.phase == phase]
            if self._sweeper.enter(phase):
                self._meter.listed(sum(item.listed for item in mine))
                self._sweep(phase, mine, known)
        return summary(self._sweeper, self._keeper, self._meter, restarts, self._options)

    def _old_snapshots(self) -> IdSet:
        old = IdSet()
        parts = spans(self._context, self._assets.storage)
        task = partial(tasks.old_snapshots, self._work)
        for ids in run_tasks(self._context, task, parts, "list snapshots"):
            old.add(ids)
        return old

    def _find(self) -> list[Found]:
        """Look for the garbage of all phases."""
        storage, marks = self._assets.storage, self._marks
        kept = {
            "snapshots": marks.snapshots.ids(),
            "transaction_logs": marks.logs.ids(),
            "manifests": marks.manifests.ids(),
        }
        few = spans(self._context, storage)
        many = spans(self._context, storage, sum(map(len, marks.runs)))
        items = [Target(phase, span) for phase in kept for span in few]
        items += [Target("chunks", span) for span in many]
        task = partial(tasks.find, self._work, kept, tuple(marks.runs), self._options.dry_run)
        return run_tasks(self._context, task, items, "list objects and look for garbage")

    def _sweep(self, phase: str, found: Sequence[Found], known: int) -> None:
        count = sum(item.count for item in found)
        if self._options.dry_run:
            self._sweeper.add(phase, count, sum(item.size for item in found))
            return
        if not count:
            return
        # Executors look, too, before each batch; but what is marked here, none of them has to read.
        self._keeper.look_again()
        marked = Marked(
            self._marks.snapshots.ids(),
            self._marks.logs.ids(),
            self._marks.manifests.ids(),
            self._keeper.dropped.ids(),
            self._keeper.version,
            tuple(self._marks.runs[known:]),
        )
        items = [(item.target, run) for item in found for run in item.runs]
        told = f"delete {count:,} objects of {PHASES[phase]}"
        swept = run_tasks(self._context, partial(tasks.delete, self._work, marked), items, told)
        if any(item.start_over for item in swept):
            raise StartOverError
        for item in swept:
            self._sweeper.add(phase, item.deleted, item.size, item.failed, item.errors)
