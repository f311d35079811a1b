"""What a garbage collection runs on executors: marking, finding and deleting, each for a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.ids import ObjectId
from icefloe.maintenance.gc import old_ids
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.keeping import Keeper, StartOverError
from icefloe.maintenance.listing import list_ids
from icefloe.maintenance.marking import chunk_ids, manifest_ids, read_all
from icefloe.maintenance.marks import Marks
from icefloe.maintenance.progress import Meter
from icefloe.maintenance.sweeping import PHASES, Garbage, Sweeper, find_garbage
from icefloe.spark.maintain.jobs import LISTINGS, ROWS_PER_TASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from icefloe.format.ragged import Bytes
    from icefloe.spark.maintain.jobs import Place
    from icefloe.spark.maintain.staging import Run, Staging
    from icefloe.storage import Version

_ROW = np.dtype([("id", "V12"), ("size", "<u8")])
_PAGE = 1000
"""Objects that are taken out of storage at a time; a batch of deletions takes several."""
_RUN_BYTES = 2**27
"""Ids are left in storage when they take so much memory."""


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a collection share."""

    place: Place
    staging: Staging
    cutoff: datetime


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of objects, in one part of the ids."""

    phase: str
    span: range


@dataclass(frozen=True, slots=True)
class Found:
    """The garbage of a target."""

    target: Target
    listed: int
    count: int
    size: int
    runs: tuple[Run, ...]
    """Where it is staged; nowhere in a dry run."""


@dataclass(frozen=True, slots=True)
class Marked:
    """All that a task must know to delete safely."""

    snapshots: Bytes
    logs: Bytes
    manifests: Bytes
    dropped: Bytes
    version: Version | None
    late: Sequence[Run]
    """Chunks of snapshots that came in after the garbage was looked for."""


@dataclass(frozen=True, slots=True)
class Swept:
    deleted: int
    size: int
    failed: int
    errors: tuple[str, ...]
    start_over: bool


def old_snapshots(work: Work, span: range) -> Bytes:
    """Ids of the snapshot files that may go, as far as time goes."""
    pages = list_ids(work.place.open().storage, "snapshots/", span=span, concurrency=LISTINGS)
    return old_ids(pages, work.cutoff).ids()


def manifests_of(work: Work, snapshots: Bytes) -> Bytes:
    """Ids of the manifests that snapshots need, each once."""
    found = IdSet()
    for key, data in read_all(work.place.open().storage, "snapshots/", snapshots):
        found.add(manifest_ids(data, key))
    return found.ids()


def stage_chunks(work: Work, manifests: Bytes) -> list[Run]:
    """Leave the ids of the chunks that manifests refer to in storage."""
    found, runs = IdSet(), []
    for key, data in read_all(work.place.open().storage, "manifests/", manifests):
        found.add(chunk_ids(data, key))
        if found.peak_bytes > _RUN_BYTES:
            runs.append(work.staging.put_sorted(found.ids()))
            found = IdSet()
    if len(found):
        runs.append(work.staging.put_sorted(found.ids()))
    return runs


def find(
    work: Work, kept: Mapping[str, Bytes], live: Sequence[Run], dry_run: bool, target: Target
) -> Found:
    """List a part of the ids, and leave those that are garbage in storage.

    Args:
        work: what tasks share.
        kept: the ids that stay, by phase; those of chunks are in storage.
        live: where.
        dry_run: only count.
        target: the part.
    """
    stays = IdSet(kept.get(target.phase))
    if target.phase not in kept:
        stays.add(work.staging.rows(live, target.span, ObjectId.SIZE))
    storage, listed = work.place.open().storage, 0
    count = size = waiting = 0
    parts: list[Garbage] = []
    runs: list[Run] = []
    for page in list_ids(storage, PHASES[target.phase], span=target.span, concurrency=LISTINGS):
        listed += len(page.objects)
        for garbage in find_garbage([page], stays.contains, work.cutoff):
            count += len(garbage)
            size += int(garbage.size.sum())
            waiting += len(garbage)
            parts.append(garbage)
        if dry_run:
            parts = []
        elif waiting >= ROWS_PER_TASK:
            runs.append(_stage(work, parts))
            parts, waiting = [], 0
    if parts:
        runs.append(_stage(work, parts))
    return Found(target, listed, count, size, tuple(runs))


def delete(work: Work, marked: Marked, item: tuple[Target, Run]) -> Swept:
    """Delete garbage that is staged, but for what somebody came to need.

    What is gone counts as deleted: another attempt at the task may have done it.
    """
    target, run = item
    assets = work.place.open()
    marks = Marks(assets.storage, Meter(None), span=target.span)
    marks.snapshots.add(marked.snapshots)
    marks.logs.add(marked.logs)
    marks.manifests.add(marked.manifests)
    if target.phase == "chunks":
        marks.late_chunks.add(work.staging.rows(marked.late, target.span, ObjectId.SIZE))
    is_kept = {
        "snapshots": marks.snapshots.contains,
        "transaction_logs": marks.logs.contains,
        "manifests": marks.manifests.contains,
        "chunks": marks.late_chunks.contains,
    }[target.phase]
    keeper = Keeper(assets, marks, marked.dropped, marked.version)
    sweeper = Sweeper(assets.storage, Meter(None), dry_run=False, look_again=keeper.look_again)
    start_over = False
    try:
        sweeper.sweep(target.phase, _staged(work, run), is_kept)
    except StartOverError:
        start_over = True
    deleted = sweeper.count[target.phase]
    return Swept(deleted, sweeper.bytes, sweeper.failed, sweeper.errors, start_over)


def _stage(work: Work, parts: list[Garbage]) -> Run:
    garbage = Garbage.concat(parts)
    rows = np.empty(len(garbage), _ROW)
    rows["id"] = np.ascontiguousarray(garbage.id).view("V12").ravel()
    rows["size"] = garbage.size
    return work.staging.put(rows.view(np.uint8).reshape(len(rows), -1), np.array([0, len(rows)]))


def _staged(work: Work, run: Run) -> Iterator[Garbage]:
    rows = work.staging.rows([run], range(1), run.width).copy().view(_ROW).ravel()
    for start in range(0, len(rows), _PAGE):
        part = rows[start : start + _PAGE]
        ids = np.ascontiguousarray(part["id"]).view(np.uint8).reshape(-1, ObjectId.SIZE)
        yield Garbage(ids, part["size"].astype(np.uint64))
