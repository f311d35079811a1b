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

from icefloe.errors import ConflictError, InvalidInputError, ReadOnlyError
from icefloe.maintenance.cutoff import agreed_time
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.keeping import Keeper, StartOverError
from icefloe.maintenance.listing import WHOLE, IdPage, list_ids
from icefloe.maintenance.marks import MAX_MEMORY_BYTES, Marks
from icefloe.maintenance.progress import Meter, Report
from icefloe.maintenance.sweeping import IsKept, Sweeper, find_garbage, is_old
from icefloe.repo_update import UPDATES_PER_FILE, require_online, update_repo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.assets import Assets
    from icefloe.format.repo_info import RepoInfo

SAFETY_FLOOR = timedelta(hours=24)
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
class Options:
    """What a collection was asked for."""

    cutoff: datetime
    dry_run: bool
    max_memory_bytes: int = MAX_MEMORY_BYTES
    concurrency: int = CONCURRENCY
    updates_per_file: int = UPDATES_PER_FILE


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
        safety_floor: how old a cutoff must be by the store's clock, to protect the writers of the
            moment.
        max_memory_bytes: about how much the ids of live chunks may take; beyond it, manifests are
            read several times, each time for a part of the chunks.
        concurrency: how many prefixes to list at a time.
        progress: is told, often, how far the run is.
        updates_per_file: the repository's setting of that name.

    Raises:
        InvalidInputError: the cutoff is younger than the safety floor.
        ReadOnlyError: the storage or the status of the repository takes no writes.
        StorageError: this machine's clock and the store's disagree (kind `clocks-disagree`).
        NotFoundError: a file that is needed is missing; nothing is deleted then.
        FormatError: a file that is needed is damaged; nothing is deleted then.
        ConflictError: writers kept interfering.
    """
    options = Options(
        cutoff=delete_object_older_than.astimezone(UTC),
        dry_run=dry_run,
        max_memory_bytes=max_memory_bytes,
        concurrency=concurrency,
        updates_per_file=updates_per_file,
    )
    check(assets, options, safety_floor=safety_floor, force=force)
    return attempt(
        assets, lambda restarts: _Collector(assets, options, Meter(progress)).run(restarts)
    )


def check(assets: Assets, options: Options, *, safety_floor: timedelta, force: bool) -> None:
    """Raises an error if such a collection must not be; a cutoff's age is by the store's clock."""
    if options.dry_run:
        return
    if assets.storage.read_only:
        raise ReadOnlyError(f"{assets.storage.url} is read-only", kind="read-only-storage")
    require_online(assets.repo()[0])
    age = agreed_time(assets.storage) - options.cutoff
    if age < safety_floor and not force:
        raise InvalidInputError(
            f"the cutoff {options.cutoff} is younger than {safety_floor}: what writers are "
            "uploading now could be deleted. Choose an older one, or pass force=True if nobody "
            "writes",
            kind="cutoff-too-young",
        )


def attempt(assets: Assets, run: Callable[[int], GCSummary]) -> GCSummary:
    """Run, again and again while writers come to need what is to go; `run` is told how often.

    Raises:
        ConflictError: they kept doing that.
    """
    for restarts in range(_ATTEMPTS):
        try:
            return run(restarts)
        except StartOverError:
            time.sleep(random.uniform(0, 0.05 * 2**restarts))
    raise ConflictError(
        f"{assets.storage.url}: writers came to need what was to be deleted, {_ATTEMPTS} times",
        kind="gc-attempts-exhausted",
    )


class _Collector:
    """One attempt."""

    def __init__(self, assets: Assets, options: Options, meter: Meter) -> None:
        self._assets = assets
        self._storage = assets.storage
        self._options = options
        self._meter = meter
        self._marks = Marks(self._storage, meter, max_memory_bytes=options.max_memory_bytes)
        self._keeper = Keeper(assets, self._marks)
        self._sweeper = Sweeper(
            self._storage, meter, dry_run=options.dry_run, look_again=self._keeper.look_again
        )

    def run(self, restarts: int) -> GCSummary:
        self._meter.enter("mark")
        files = [*self._listed("snapshots/")]
        info = self._keeper.plan(old_ids(files, self._options.cutoff))
        live, span = self._marks.chunks(0)
        self._meter.enter("update")
        drop(self._assets, self._keeper, info, self._options)
        marks = self._marks
        self._sweep("snapshots", files, marks.snapshots.contains)
        self._sweep("transaction_logs", self._listed("transactions/"), marks.logs.contains)
        self._sweep("manifests", self._listed("manifests/"), marks.manifests.contains)
        self._sweep_chunks(live, span)
        return summary(self._sweeper, self._keeper, self._meter, restarts, self._options)

    def _sweep_chunks(self, live: IdSet, span: range) -> None:
        while True:
            is_kept = _in_either(live, self._marks.late_chunks)
            self._sweep("chunks", self._listed("chunks/", span), is_kept)
            if span.stop == WHOLE.stop or self._sweeper.failed:
                return
            live, span = self._marks.chunks(span.stop)

    def _sweep(self, phase: str, pages: Iterable[IdPage], is_kept: IsKept) -> None:
        if self._sweeper.enter(phase):
            found = find_garbage(pages, is_kept, self._options.cutoff)
            self._sweeper.sweep(phase, found, is_kept)

    def _listed(self, folder: str, span: range = WHOLE) -> Iterator[IdPage]:
        concurrency = self._options.concurrency
        for page in list_ids(self._storage, folder, span=span, concurrency=concurrency):
            self._meter.listed(len(page.objects))
            yield page


def old_ids(pages: Iterable[IdPage], cutoff: datetime) -> IdSet:
    """The objects that were written before the cutoff."""
    found = IdSet()
    for page in pages:
        found.add(page.id[[row for row, it in enumerate(page.objects) if is_old(it, cutoff)]])
    return found


def drop(assets: Assets, keeper: Keeper, info: RepoInfo, options: Options) -> None:
    """Take the snapshots that nothing needs out of the repo object.

    Raises:
        StartOverError: somebody came to need one.
    """
    if options.dry_run:
        keeper.without_dropped(info)
    else:
        update_repo(assets, keeper.without_dropped, updates_per_file=options.updates_per_file)


def summary(
    sweeper: Sweeper, keeper: Keeper, meter: Meter, restarts: int, options: Options
) -> GCSummary:
    return GCSummary(
        bytes_deleted=sweeper.bytes,
        chunks_deleted=sweeper.count["chunks"],
        manifests_deleted=sweeper.count["manifests"],
        snapshots_deleted=sweeper.count["snapshots"],
        transaction_logs_deleted=sweeper.count["transaction_logs"],
        objects_failed_to_delete=sweeper.failed,
        delete_errors=sweeper.errors,
        skipped_phases=tuple(sweeper.skipped),
        snapshots_dropped=len(keeper.dropped),
        objects_listed=meter.now.objects_listed,
        manifests_read=meter.now.manifests_read,
        restarts=restarts,
        dry_run=options.dry_run,
    )


def _in_either(one: IdSet, other: IdSet) -> IsKept:
    return lambda ids: one.contains(ids) | other.contains(ids)
