"""What the demonstration claims, computed from the repository and the files it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import icefloe
from demo import fields
from icefloe.format.updates import UpdateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from icefloe import Session, SnapshotInfo


@dataclass(frozen=True, slots=True)
class File:
    """One object of the repository, on a local disk."""

    name: str
    size: int
    written: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What lay on the disk when something happened."""

    label: str
    total: int
    """Bytes."""
    kept: int
    """Bytes of it that the garbage collection at the end has left."""


def files(folder: Path) -> list[File]:
    """All of a repository's; but for the repo object, none is ever written twice."""
    return [
        File(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file()
    ]


def moment(label: str, snapshot_id: str, before: Iterable[File], kept: set[str]) -> Moment:
    """What lay on the disk once a snapshot was written, from the files before a collection."""
    before = [*before]
    (time,) = (file.written for file in before if file.name == f"snapshots/{snapshot_id}")
    there = [file for file in before if file.written <= time]
    return Moment(
        label,
        sum(file.size for file in there),
        sum(file.size for file in there if file.name in kept),
    )


def garbage(repo: icefloe.Repository) -> Any:
    """What a garbage collection would delete if nothing were writing; nothing is changed."""
    return repo.garbage_collect(datetime.now(UTC), dry_run=True)


def staged_snapshots(repo: icefloe.Repository) -> list[SnapshotInfo]:
    """Every snapshot that was written apart from branches, oldest first; merged ones too."""
    ids = [
        str(update.new_snap_id)
        for update in repo.ops_log()
        if update.kind == UpdateKind.NEW_DETACHED_SNAPSHOT
    ]
    return [repo.lookup_snapshot(each) for each in reversed(ids)]


def reaction_seconds(repo: icefloe.Repository) -> float:
    """From the newest move of a branch to a staged snapshot to the newest plain commit."""
    times: dict[int, int] = {}
    for update in repo.ops_log():
        times.setdefault(update.kind, update.updated_at)
    return (times[UpdateKind.NEW_COMMIT] - times[UpdateKind.BRANCH_RESET]) / 1e6


def of_run(snapshots: Iterable[SnapshotInfo], run_id: str | None, task: str) -> list[SnapshotInfo]:
    """Those that a task of a run has written."""
    return [
        snapshot
        for snapshot in snapshots
        if snapshot.metadata.get("airflow.run_id") == run_id
        and str(snapshot.metadata.get("airflow.task_id")).rpartition(".")[2] == task
    ]


def most_per_write_key(snapshots: Iterable[SnapshotInfo]) -> int:
    """How many snapshots are registered under one write key, at most."""
    keys = [str(snapshot.metadata["icefloe.write_key"]) for snapshot in snapshots]
    return max(keys.count(key) for key in keys)


def read(session: Session, path: str, hours: slice = slice(None)) -> fields.Field:
    return np.asarray(zarr.open_array(session.store, path=path, mode="r")[hours])


def wrong_values(session: Session, days: Mapping[str, fields.Source]) -> int:
    """How many values of these days differ from what the generator gives."""
    wrong = 0
    for day, source in days.items():
        hours = fields.hours_of(day)
        numbers = range(hours.start, hours.stop)
        wrong += int((read(session, "t2m", hours) != fields.temperature(numbers, source)).sum())
        wrong += int((read(session, "tp", hours) != fields.precipitation(numbers)).sum())
    return wrong


def arrays(session: Session) -> list[tuple[str, zarr.Array[Any]]]:
    """All of them, by path."""
    group = zarr.open_group(session.store, mode="r")
    members = group.members(max_depth=None)
    return sorted((path, node) for path, node in members if isinstance(node, zarr.Array))


def hours(session: Session) -> int:
    """How long the time axis is."""
    return int(zarr.open_array(session.store, path="time", mode="r").shape[0])


def is_there(repo: icefloe.Repository, snapshot: SnapshotInfo) -> bool:
    try:
        repo.lookup_snapshot(snapshot.id)
    except icefloe.NotFoundError:
        return False
    return True
