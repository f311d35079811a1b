"""Snapshots as pages and the API show them, and pages of history."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from airflow_icechunk.plugin import graph
from airflow_icechunk.plugin.drawing import Drawing, draw
from airflow_icechunk.plugin.errors import ViewError
from icefloe import WRITE_KEY, InvalidInputError, NotFoundError
from icefloe.history import snapshot_info
from icefloe.refs import branch_row, snapshot_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from airflow_icechunk.plugin.graph import Ints
    from icefloe.format.repo_info import Refs, RepoInfo

MAIN = "main"
MAX_NAMES = 200
"""Branches and tags that are listed."""
MAX_FOUND = 100
"""Snapshots of one run that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The task that made a snapshot, as the metadata says: anyone may have written that."""

    dag_id: str
    run_id: str
    task_id: str | None
    map_index: int | None
    try_number: int | None

    @property
    def path(self) -> str:
        """Of the page of the task or run, relative to Airflow."""
        place = f"dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"
        if self.task_id is None:
            return place
        place += f"/tasks/{quote(self.task_id, safe='')}"
        is_mapped = self.map_index is not None and self.map_index >= 0
        return f"{place}/mapped/{self.map_index}" if is_mapped else place


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any]
    origin: Origin | None
    write_key: str | None
    branches: list[str]
    tags: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some snapshots, newest first."""

    commits: list[Commit]
    total: int
    """Of the whole history."""
    begin: int
    """How many are newer than the first one here."""
    after: str | None
    """What to ask for to see older ones; None where there are none."""
    drawing: Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A branch or a tag."""

    name: str
    snapshot_id: str
    written_at: datetime
    message: str


def history(
    info: RepoInfo, *, branch: str | None = None, limit: int = 50, after: str | None = None
) -> History:
    """A part of the history of a branch, or of all branches and tags.

    :param branch: None for all.
    :param limit: how many snapshots at most.
    :param after: the snapshot above the first one; None starts at the newest.
    :raises icefloe.NotFoundError: there is no such branch or snapshot.
    """
    snapshots = info.snapshots
    if branch is None:
        tips = np.concatenate([info.branches.snapshot, info.tags.snapshot])
    else:
        tips = np.array([branch_row(info, branch)])
    chosen = graph.ancestors(snapshots.parent, tips)
    order = graph.newest_first(snapshots.parent, snapshots.flushed_at, chosen)
    begin = 0 if after is None else _place(info, order, after) + 1
    rows = order[begin : begin + limit]
    end = begin + len(rows)
    chains = graph.lines(snapshots.parent, order, _of_main(info))
    return History(
        commits=commits(info, rows),
        total=len(order),
        begin=begin,
        after=str(snapshots.id_at(rows[-1])) if end < len(order) else None,
        drawing=draw(chains, begin, end),
    )


def commits(info: RepoInfo, rows: Iterable[int] | Ints) -> list[Commit]:
    """Rows of the repo object, told in full."""
    chosen = np.fromiter(rows, np.int64)
    branches, tags = _names_at(info.branches, chosen), _names_at(info.tags, chosen)
    return [_commit(info, row, branches.get(row, []), tags.get(row, [])) for row in chosen.tolist()]


def commit(info: RepoInfo, snapshot_id: str) -> Commit:
    """One snapshot.

    :raises icefloe.NotFoundError: there is none.
    """
    (found,) = commits(info, [snapshot_row(info, snapshot_id)])
    return found


def containing(info: RepoInfo, snapshot_id: str) -> tuple[list[str], list[str]]:
    """Branches and tags in whose history a snapshot is; main before all."""
    reached = graph.descendants(info.snapshots.parent, snapshot_row(info, snapshot_id))
    found = []
    for refs in (info.branches, info.tags):
        hits = np.flatnonzero(reached[refs.snapshot])
        first = np.isin(hits, refs.name.rows_equal(MAIN.encode()))
        hits = hits[np.argsort(~first, kind="stable")][:MAX_NAMES]
        found.append(refs.name.take(hits).texts())
    return found[0], found[1]


def names(info: RepoInfo, refs: Refs) -> list[Name]:
    """The branches or tags that changed last, newest first; of branches, main before all."""
    time = info.snapshots.flushed_at[refs.snapshot]
    is_main = np.zeros(len(refs), np.bool_)
    is_main[refs.name.rows_equal(MAIN.encode())] = refs is info.branches
    rows = np.lexsort((time, is_main))[::-1][:MAX_NAMES]
    found = zip(refs.name.take(rows).texts(), refs.snapshot[rows].tolist(), strict=True)
    listed = []
    for name, row in found:
        at = snapshot_info(info, row)
        listed.append(
            Name(name=name, snapshot_id=at.id, written_at=at.written_at, message=at.message)
        )
    return listed


def of_run(info: RepoInfo, dag_id: str, run_id: str, kept: Iterable[str] = ()) -> list[Commit]:
    """The snapshots that a Dag run made, staged ones too, newest first.

    :param kept: more of them, which the run need not have made, where they are still there.
    """
    snapshots = info.snapshots
    more = []
    for snapshot_id in kept:
        with suppress(NotFoundError, InvalidInputError):
            more.append(snapshot_row(info, snapshot_id))
    rows = np.intersect1d(
        snapshots.rows_with("airflow.run_id", run_id), snapshots.rows_with("airflow.dag_id", dag_id)
    )
    rows = np.union1d(rows, np.array(more, rows.dtype))
    newest = rows[np.argsort(snapshots.flushed_at[rows])[::-1]]
    return commits(info, newest[:MAX_FOUND])


def _commit(info: RepoInfo, row: int, branches: list[str], tags: list[str]) -> Commit:
    found = snapshot_info(info, row)
    key = found.metadata.get(WRITE_KEY)
    return Commit(
        id=found.id,
        parent_id=found.parent_id,
        written_at=found.written_at,
        message=found.message,
        metadata=found.metadata,
        origin=_origin(found.metadata),
        write_key=key if isinstance(key, str) else None,
        branches=branches,
        tags=tags,
    )


def _origin(metadata: Mapping[str, Any]) -> Origin | None:
    dag_id, run_id, task_id = (
        value if isinstance(value := metadata.get(f"airflow.{name}"), str) and value else None
        for name in ("dag_id", "run_id", "task_id")
    )
    map_index, try_number = (
        value if isinstance(value := metadata.get(f"airflow.{name}"), int) else None
        for name in ("map_index", "try_number")
    )
    if dag_id is None or run_id is None:
        return None
    return Origin(
        dag_id=dag_id,
        run_id=run_id,
        task_id=task_id,
        map_index=map_index,
        try_number=try_number,
    )


def _names_at(refs: Refs, rows: Ints) -> dict[int, list[str]]:
    hits = np.flatnonzero(np.isin(refs.snapshot, rows))[:MAX_NAMES]
    found: dict[int, list[str]] = {}
    for row, name in zip(refs.snapshot[hits].tolist(), refs.name.take(hits).texts(), strict=True):
        found.setdefault(row, []).append(name)
    return found


def _of_main(info: RepoInfo) -> graph.Mask:
    tip = info.branches.snapshot[info.branches.name.rows_equal(MAIN.encode())]
    return graph.ancestors(info.snapshots.parent, tip)


def _place(info: RepoInfo, order: Ints, snapshot_id: str) -> int:
    found = np.flatnonzero(order == snapshot_row(info, snapshot_id))
    if not len(found):
        raise ViewError(404, f"Snapshot {snapshot_id} is not in this history any more.")
    return int(found[0])
