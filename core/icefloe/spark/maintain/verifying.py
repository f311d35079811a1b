"""Verification on Spark: see `icefloe.maintenance.verify`, whose checks it runs.

References and listing are compared by parts of the ids, in which executors first leave what the
references need. The driver holds what snapshots say of manifests, about 1 KB for each manifest, and
as many findings as are asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from icefloe.assets import Assets
from icefloe.errors import FormatError, InvalidInputError
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import within
from icefloe.maintenance.progress import Meter
from icefloe.maintenance.verification.catalogue import Catalogue
from icefloe.maintenance.verification.findings import Finding, unreadable
from icefloe.maintenance.verification.logs import NeededLogs, check_logs
from icefloe.maintenance.verification.repo_object import check_ops_log, check_repo
from icefloe.maintenance.verify import check_level, missing_manifests, missing_snapshots
from icefloe.spark.context import spark_context
from icefloe.spark.maintain import verifying_tasks as tasks
from icefloe.spark.maintain.jobs import Place, cuts, groups, run_tasks, spans
from icefloe.spark.maintain.staging import Staging
from icefloe.spark.maintain.verifying_tasks import Needed, Work, read_noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.format.ragged import Bytes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.progress import Report
    from icefloe.maintenance.verification.catalogue import Expectation
    from icefloe.maintenance.verification.findings import Sourced
    from icefloe.maintenance.verify import Level
    from icefloe.repository import Repository
    from icefloe.spark.maintain.staging import Run
    from icefloe.storage import Storage

LIMIT = 10_000
_SNAPSHOT_TASKS = 32
"""Each of them tells the driver what it knows of all manifests."""


def verify(
    spark: SparkSession,
    repo: Repository,
    level: Level = "metadata",
    *,
    limit: int | None = LIMIT,
    staging: Storage | str | None = None,
    progress: Report | None = None,
) -> list[Finding]:
    """`Repository.verify` on executors: the same findings, in another order.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        repo: the repository.
        level: `metadata` reads all metadata files; `objects` also compares all references with the
            chunk objects; `data` also reads and decodes every chunk but virtual ones.
        limit: how many findings to return; None means all. If there are more, a last one of kind
            `more-findings` says so, and what would come after is not looked at.
        staging: where tasks leave ids for each other; None: in the repository's own storage.
        progress: is told, after each job, how far it is.

    Raises:
        InvalidInputError: there is no such level.
        ReadOnlyError: the storage takes no writes, and there is no `staging`.
    """
    context = spark_context(spark)
    check_level(level)
    if limit is not None and limit < 1:
        raise InvalidInputError(f"the limit is {limit}: at least 1, or None")
    place = Staging.new(repo.storage, staging)
    verifier = _Verifier(context, Assets(repo.storage), place, limit, Meter(progress))
    try:
        verifier.check(level)
    except _Full:
        message = f"there are more findings than the limit, which is {limit:,}"
        fix = "mend these and verify again, or raise the limit"
        verifier.found.append(
            Finding(
                severity="error", kind="more-findings", file="", message=message, what_to_do=fix
            )
        )
    finally:
        place.clear()
    return verifier.found


class _Full(Exception):  # noqa: N818 - it is no error
    """There are more findings than anybody wants."""


class _Verifier:
    def __init__(
        self,
        context: SparkContext,
        assets: Assets,
        staging: Staging,
        limit: int | None,
        meter: Meter,
    ) -> None:
        self._context = context
        self._assets = assets
        self._staging = staging
        self._limit = limit
        self._meter = meter
        self._work = Work(Place.of(assets), staging, None if limit is None else limit + 1)
        self._catalogue = Catalogue()
        self._sources: set[tuple[str, str, str]] = set()
        self.found: list[Finding] = []

    def check(self, level: Level) -> None:
        try:
            info, _ = self._assets.repo()
        except FormatError as error:
            self._add([unreadable("repo", error, "roll back to a copy in overwritten/")])
            return
        self._meter.enter("history")
        self._add(check_repo(info))
        self._add(check_ops_log(self._assets))
        self._check_logs(NeededLogs.of(info))
        self._meter.enter("snapshots")
        self._check_snapshots(info)
        self._meter.enter("manifests")
        expected = self._present_manifests()
        needed = self._check_manifests(expected, objects=level != "metadata")
        if level == "metadata":
            return
        self._meter.enter("chunks")
        broken = self._find_broken(needed)
        if broken:
            told = f"find the references to broken objects in {len(self._catalogue):,} manifests"
            self._note(partial(tasks.check_refs, self._work, broken), expected, told)
        if level == "data":
            self._meter.enter("data")
            told = f"read and decode the chunks of {len(self._catalogue):,} manifests"
            self._note(partial(tasks.decode, self._work, broken), expected, told)

    def _check_logs(self, logs: NeededLogs) -> None:
        ids = np.concatenate([logs.needed, logs.roots])
        gone = self._missing("transactions/", ids)
        lost = NeededLogs(logs.needed[gone.contains(logs.needed)], logs.roots[:0], logs.pruned)
        self._add(check_logs(self._assets.storage, lost, IdSet()))
        there = groups(self._context, ids[~gone.contains(ids)])
        told = f"check {len(ids):,} transaction logs"
        self._note(partial(tasks.check_log_files, self._work), there, told)

    def _check_snapshots(self, info: RepoInfo) -> None:
        rows = info.snapshots
        gone = self._missing("snapshots/", rows.id)
        is_there = ~gone.contains(rows.id)
        self._add(missing_snapshots(rows.id[~is_there]))
        ids, times = rows.id[is_there], rows.flushed_at[is_there]
        parts = [(ids[a:b], times[a:b]) for a, b in cuts(self._context, len(ids), _SNAPSHOT_TASKS)]
        told = f"check {len(ids):,} snapshots"
        task = partial(tasks.check_snapshots, self._work)
        for key, catalogue in run_tasks(self._context, task, parts, told):
            self._read(key)
            self._catalogue.merge(catalogue)
        self._meter.read_snapshot(len(ids))

    def _present_manifests(self) -> list[Mapping[bytes, Expectation]]:
        """What is expected of the manifests that are there, in parts for tasks.

        Those of one region lie together: they share most of their chunks.
        """
        ids = self._catalogue.ids()
        gone = self._missing("manifests/", ids)
        self._add(missing_manifests(gone.ids(), self._catalogue))
        chosen = [raw.tobytes() for raw in ids[~gone.contains(ids)]]
        chosen.sort(key=lambda raw: _region(self._catalogue[raw]))
        return [
            {raw: self._catalogue[raw] for raw in chosen[a:b]}
            for a, b in cuts(self._context, len(chosen))
        ]

    def _check_manifests(
        self, expected: Sequence[Mapping[bytes, Expectation]], *, objects: bool
    ) -> list[Run]:
        """Where the parts of chunk objects are that references need."""
        told = f"check {len(self._catalogue):,} manifests"
        task = partial(tasks.check_manifests, self._work, objects)
        needed = []
        for key, runs in run_tasks(self._context, task, expected, told):
            self._read(key)
            needed += runs
        self._meter.read_manifest(sum(map(len, expected)))
        return needed

    def _find_broken(self, needed: Sequence[Run]) -> list[Run]:
        parts = spans(self._context, self._assets.storage, sum(map(len, needed)))
        told = "list chunks and compare them with all references"
        answers = run_tasks(
            self._context, partial(tasks.find_broken, self._work, needed), parts, told
        )
        self._meter.listed(sum(listed for listed, _ in answers))
        broken: list[Run] = []
        for _, run in answers:
            # Each broken object makes at least one finding.
            if run is not None and not self._is_full(sum(map(len, broken))):
                broken.append(run)
        return broken

    def _missing(self, folder: str, ids: Bytes) -> IdSet:
        """Which of these ids have no object in a folder."""
        parts = [
            Needed(folder, span, ids[within(ids, span)])
            for span in spans(self._context, self._assets.storage)
        ]
        task = partial(tasks.list_missing, self._work)
        gone = IdSet()
        for listed, lost in run_tasks(self._context, task, parts, f"list {folder}"):
            self._meter.listed(listed)
            gone.add(lost)
        return gone

    def _note[I](
        self, task: Callable[[I], str | None], items: Sequence[I], description: str
    ) -> None:
        for key in run_tasks(self._context, task, items, description):
            self._read(key)

    def _read(self, key: str | None) -> None:
        """Take over the findings of a task."""
        if key is not None:
            self._add_sourced(read_noted(self._staging, key))

    def _add(self, findings: Iterable[Finding]) -> None:
        self._add_sourced((finding, None) for finding in findings)

    def _add_sourced(self, findings: Iterable[Sourced]) -> None:
        for finding, source in findings:
            if source is not None:
                same = source, finding.kind, finding.message
                if same in self._sources:
                    continue
                self._sources.add(same)
            if self._is_full(len(self.found)):
                raise _Full
            self.found.append(finding)

    def _is_full(self, count: int) -> bool:
        return self._limit is not None and count >= self._limit


def _region(expected: Expectation) -> tuple[str, object]:
    """Alike for manifests of one region of one array."""
    place = min(expected.uses, default=None)
    return ("", ()) if place is None else (place.path, place.extents)
