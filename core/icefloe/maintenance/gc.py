"""Garbage collection: deletes what no branch, tag or young snapshot needs, and never anything else.

Snapshots that nothing needs leave the repo object first, in one compare-and-swap. Then their files
go, and what only they needed: an interrupted run leaves garbage, never a dangling reference.

Writers go on meanwhile. What they write is younger than the cutoff, but it may refer to what is
old. So `repo` is looked at again inside the compare-and-swap and before every batch of deletions:
whatever new snapshots need is marked too, and the run starts over if somebody came to need a
snapshot that it meant to drop.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ConflictError, InvalidInputError, ReadOnlyError
from icefloe.format.updates import Update, UpdateKind
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import LETTERS, IdPage, list_ids
from icefloe.maintenance.marks import Marks
from icefloe.maintenance.progress import Meter, Report
from icefloe.maintenance.pruning import initial_row, orphans, reachable, without
from icefloe.maintenance.sweeping import IsKept, Sweeper
from icefloe.repo_update import UPDATES_PER_FILE, require_online, update_repo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.assets import Assets
    from icefloe.format.repo_info import RepoInfo
    from icefloe.storage import Version

SAFETY_FLOOR = timedelta(hours=24)
MAX_MEMORY_BYTES = 2**30
CONCURRENCY = 32
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GCSummary:
    """What a garbage collection deleted, or would delete."""

    bytes_deleted: int
    chunks_deleted: int
    manifests_deleted: int
    snapshots_deleted: int
    transaction_logs_deleted: int
    attributes_deleted: int = 0
    """Such files are in the spec, and nobody writes them."""
    objects_failed_to_delete: int
    delete_errors: tuple[str, ...]
    """The first few different ones."""
    skipped_phases: tuple[str, ...]
    """Left to the next run, because an earlier phase had failures."""
    snapshots_dropped: int
    """How many left the repo object."""
    objects_listed: int
    manifests_read: int
    restarts: int
    """How often a writer came to need what was to be deleted."""
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    cutoff: datetime
    dry_run: bool
    max_memory_bytes: int
    concurrency: int
    updates_per_file: int


class _StartOverError(Exception):
    """Somebody came to need a snapshot that was to be dropped."""


def garbage_collect(
    assets: Assets,
    delete_object_older_than: datetime,
    *,
    dry_run: bool = False,
    force: bool = False,
    safety_floor: timedelta = SAFETY_FLOOR,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
    concurrency: int = CONCURRENCY,
    progress: Report | None = None,
    updates_per_file: int = UPDATES_PER_FILE,
) -> GCSummary:
    """Delete all objects written before a time that no branch, tag or younger snapshot needs.

    A session that is not yet committed may lose chunks that it uploaded before the cutoff, because
    nothing refers to them: choose a cutoff older than the longest session.

    Args:
        assets: the files of the repository.
        delete_object_older_than: the bound, exclusive, by the store's clock; naive times are local.
        dry_run: report, but change nothing.
        force: accept a cutoff younger than the safety floor.
        safety_floor: how old a cutoff must be, to protect the writers of the moment.
        max_memory_bytes: about how much the ids of live chunks may take; beyond it, manifests are
            read several times, each time for a part of the chunks.
        concurrency: how many prefixes to list at a time.
        progress: is told, often, how far the run is.
        updates_per_file: the repository's setting of that name.

    Raises:
        InvalidInputError: the cutoff is younger than the safety floor.
        ReadOnlyError: the storage or the status of the repository takes no writes.
        NotFoundError: a file that is needed is missing; nothing is deleted then.
        FormatError: a file that is needed is damaged; nothing is deleted then.
        ConflictError: writers kept interfering.
    """
    options = _Options(
        cutoff=delete_object_older_than.astimezone(UTC),
        dry_run=dry_run,
        max_memory_bytes=max_memory_bytes,
        concurrency=concurrency,
        updates_per_file=updates_per_file,
    )
    if not dry_run:
        _check_floor(options.cutoff, safety_floor, force)
        if assets.storage.read_only:
            raise ReadOnlyError(f"{assets.storage.url} is read-only", kind="read-only-storage")
        require_online(assets.repo()[0])
    for attempt in range(_ATTEMPTS):
        try:
            return _Collector(assets, options, Meter(progress)).run(restarts=attempt)
        except _StartOverError:
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
    raise ConflictError(
        f"{assets.storage.url}: writers came to need what was to be deleted, {_ATTEMPTS} times",
        kind="gc-attempts-exhausted",
    )


def _check_floor(cutoff: datetime, floor: timedelta, force: bool) -> None:
    age = datetime.now(UTC) - cutoff
    if age < floor and not force:
        raise InvalidInputError(
            f"the cutoff {cutoff} is younger than {floor}: what writers are uploading now could be "
            "deleted. Choose an older one, or pass force=True if nobody writes",
            kind="cutoff-too-young",
        )


class _Collector:
    """One attempt."""

    def __init__(self, assets: Assets, options: _Options, meter: Meter) -> None:
        self._assets = assets
        self._storage = assets.storage
        self._options = options
        self._meter = meter
        self._dropped = IdSet()
        self._marks = Marks(self._storage, meter, max_memory_bytes=options.max_memory_bytes)
        self._sweeper = Sweeper(
            self._storage,
            options.cutoff,
            meter,
            dry_run=options.dry_run,
            look_again=self._look_again,
        )
        self._version: Version | None = None

    def run(self, *, restarts: int) -> GCSummary:
        self._meter.enter("mark")
        files = [*self._listed("snapshots/")]
        info = self._plan(files)
        live, letters = self._marks.chunks(0)
        self._meter.enter("update")
        if self._options.dry_run:
            self._without_dropped(info)
        else:
            update_repo(
                self._assets, self._without_dropped, updates_per_file=self._options.updates_per_file
            )
        marks, sweep = self._marks, self._sweeper.sweep
        sweep("snapshots", files, marks.snapshots.contains)
        sweep("transaction_logs", self._listed("transactions/"), marks.logs.contains)
        sweep("manifests", self._listed("manifests/"), marks.manifests.contains)
        self._sweep_chunks(live, letters)
        return self._summary(restarts)

    def _plan(self, files: Iterable[IdPage]) -> RepoInfo:
        """Decide which snapshots stay.

        The files were listed before `repo` is read: a snapshot without a file is a young one.
        """
        old = IdSet()
        for page in files:
            rows = [row for row, found in enumerate(page.objects) if self._sweeper.is_old(found)]
            old.add(page.id[rows])
        info, self._version = self._assets.repo()
        ids = info.snapshots.id
        drop = ~reachable(info) & old.contains(ids)
        self._dropped.add(ids[drop])
        self._marks.keep(info, ids[~drop])
        return info

    def _without_dropped(self, info: RepoInfo) -> tuple[RepoInfo, Update]:
        """The change to the repo object, which may not be the one that the plan was made for."""
        snapshots = info.snapshots
        gone = self._dropped.contains(snapshots.id)
        new = ~gone & ~self._marks.snapshots.contains(snapshots.id)
        is_orphan = (snapshots.parent >= 0) & gone[snapshots.parent]
        if bool((reachable(info) & gone).any()) or bool((new & is_orphan).any()):
            raise _StartOverError
        self._marks.adopt(info, snapshots.id[new])
        changed = orphans(snapshots, gone, ~gone)
        self._marks.keep_logs(changed.logs)
        fallback = initial_row(snapshots, changed.ancestor)
        parent = np.where(changed.ancestor < 0, fallback, changed.ancestor)
        # The next look at the repo object must see whatever is there then.
        self._version = None
        return without(info, gone, changed, parent), Update(kind=UpdateKind.GC_RAN, updated_at=0)

    def _look_again(self) -> None:
        info, version = self._assets.repo()
        if version == self._version:
            return
        ids = info.snapshots.id
        if bool(self._dropped.contains(ids).any()):
            # Somebody put an older repo object back.
            raise _StartOverError
        self._marks.adopt(info, ids[~self._marks.snapshots.contains(ids)])
        self._version = version

    def _sweep_chunks(self, live: IdSet, letters: range) -> None:
        while True:
            is_kept = _in_either(live, self._marks.late_chunks)
            self._sweeper.sweep("chunks", self._listed("chunks/", letters), is_kept)
            if letters.stop == LETTERS or self._sweeper.failed:
                return
            live, letters = self._marks.chunks(letters.stop)

    def _listed(self, folder: str, letters: range = range(LETTERS)) -> Iterator[IdPage]:
        concurrency = self._options.concurrency
        for page in list_ids(self._storage, folder, letters=letters, concurrency=concurrency):
            self._meter.listed(len(page.objects))
            yield page

    def _summary(self, restarts: int) -> GCSummary:
        count = self._sweeper.count
        return GCSummary(
            bytes_deleted=self._sweeper.bytes,
            chunks_deleted=count["chunks"],
            manifests_deleted=count["manifests"],
            snapshots_deleted=count["snapshots"],
            transaction_logs_deleted=count["transaction_logs"],
            objects_failed_to_delete=self._sweeper.failed,
            delete_errors=self._sweeper.errors,
            skipped_phases=tuple(self._sweeper.skipped),
            snapshots_dropped=len(self._dropped),
            objects_listed=self._meter.now.objects_listed,
            manifests_read=self._meter.now.manifests_read,
            restarts=restarts,
            dry_run=self._options.dry_run,
        )


def _in_either(one: IdSet, other: IdSet) -> IsKept:
    return lambda ids: one.contains(ids) | other.contains(ids)
