"""The past of a repository: ancestry, the ops log, diffs, and a picture of the branches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe import diffs
from icefloe.clock import to_datetime
from icefloe.errors import ConflictError, InvalidInputError, NotFoundError
from icefloe.format.ids import encode_ids
from icefloe.format.transaction_log import TransactionLog
from icefloe.rebasing import Step
from icefloe.refs import ancestors, branch_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from icefloe.assets import Assets
    from icefloe.diffs import Diff
    from icefloe.format.ids import SnapshotId
    from icefloe.format.metadata import Json
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.snapshot import ManifestFiles
    from icefloe.format.updates import Update


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One entry of a history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest of a snapshot; `size_bytes` counts the whole file."""

    id: str
    size_bytes: int
    num_chunk_refs: int


def snapshot_info(info: RepoInfo, row: int) -> SnapshotInfo:
    item = info.snapshots[row]
    return SnapshotInfo(
        str(item.id),
        None if item.parent_id is None else str(item.parent_id),
        to_datetime(item.flushed_at),
        item.message,
        item.metadata,
    )


def manifest_file_infos(files: ManifestFiles) -> list[ManifestFileInfo]:
    rows = zip(
        encode_ids(files.id).tolist(),
        files.size_bytes.tolist(),
        files.num_chunk_refs.tolist(),
        strict=True,
    )
    return [ManifestFileInfo(name.decode(), size, count) for name, size, count in rows]


def steps_between(info: RepoInfo, base: SnapshotId, row: int) -> list[Step]:
    """The commits after `base` up to a row, oldest first.

    Where commits were expired, the next one that is left brings their logs along.

    Raises:
        ConflictError: `base` is not in the history of that row.
    """
    steps: list[Step] = []
    for at in ancestors(info, row):
        item = info.snapshots[at]
        if item.id == base:
            return steps[::-1]
        logs = (*item.pruned_ancestor_tx_logs, item.id)
        if base in item.pruned_ancestor_tx_logs:
            since = item.pruned_ancestor_tx_logs.index(base) + 1
            steps.append(Step(item.id, logs[since:]))
            return steps[::-1]
        steps.append(Step(item.id, logs))
    raise ConflictError(
        f"snapshot {base} is not in the history of {info.snapshots.id_at(row)}: "
        "the branch was reset, amended or expired since; start anew from its tip",
        kind="history-rewritten",
    )


def branch_steps(info: RepoInfo, branch: str, base: SnapshotId) -> list[Step]:
    return steps_between(info, base, branch_row(info, branch))


def ops_log(assets: Assets) -> Iterator[Update]:
    """All updates, newest first, across the backups; it ends early where one was removed."""
    info: RepoInfo | None = assets.repo()[0]
    pointer: str | None = None
    seen: set[str | None] = {None}
    while info is not None:
        for row in range(len(info.updates)):
            update = info.updates[row]
            # The newest entry of a backup does not know the backup's name.
            yield replace(update, backup_path=pointer) if row == 0 else update
        pointer = info.repo_before_updates
        # A damaged file may name itself.
        info = None if pointer is None or pointer in seen else assets.backup(pointer)
        seen.add(pointer)


def diff(assets: Assets, info: RepoInfo, old: int, new: int) -> Diff:
    """What changed from one row to a later one of the same history.

    Raises:
        InvalidInputError: the first is not an ancestor of the second.
    """
    first, last = info.snapshots.id_at(old), info.snapshots.id_at(new)
    try:
        steps = steps_between(info, first, new)
    except ConflictError as error:
        raise InvalidInputError(
            f"snapshot {first} is not an ancestor of {last}", kind="bad-snapshot-chain-for-diff"
        ) from error
    merged = TransactionLog(id=last)
    try:
        for log in assets.transaction_logs([item for step in steps for item in step.logs]):
            merged = merged.merged(log)
    except NotFoundError as error:
        raise NotFoundError(
            f"a transaction log between {first} and {last} is gone, so nobody can tell what "
            "changed between them",
            kind="transaction-log-not-found",
        ) from error
    return diffs.between(merged, assets.snapshot(first).nodes, assets.snapshot(last).nodes)


def graph(info: RepoInfo, *, limit: int | None = None) -> str:
    """The snapshots of all branches and tags as text, newest first, one column for each line.

    A snapshot follows its parent in one column; where histories part, `/` leads from one column to
    another.
    """
    labels = _labels(info)
    rows = sorted(
        {row for start in labels for row in ancestors(info, start)},
        key=lambda row: (int(info.snapshots.flushed_at[row]), row),
        reverse=True,
    )
    lines: list[str] = []
    columns: list[int | None] = []
    for row in rows[:limit]:
        joining = [at for at, wanted in enumerate(columns) if wanted == row]
        here = joining[0] if joining else _free_column(columns)
        for other in joining[1:]:
            lines.append(_bars(columns, other, "/"))
            columns[other] = None
        parent = int(info.snapshots.parent[row])
        lines.append(f"{_bars(columns, here, '*')}  {_title(info, row, labels)}")
        columns[here] = parent if parent >= 0 else None
        while columns and columns[-1] is None:
            columns.pop()
    return "\n".join(lines)


def _labels(info: RepoInfo) -> dict[int, list[str]]:
    labels: dict[int, list[str]] = {}
    for name, row in info.branches.todict().items():
        labels.setdefault(row, []).append(name)
    for name, row in info.tags.todict().items():
        labels.setdefault(row, []).append(f"tag: {name}")
    return labels


def _free_column(columns: list[int | None]) -> int:
    if None in columns:
        return columns.index(None)
    columns.append(None)
    return len(columns) - 1


def _bars(columns: list[int | None], at: int, mark: str) -> str:
    marks = [" " if wanted is None else "|" for wanted in columns]
    marks[at] = mark
    return " ".join(marks).rstrip()


def _title(info: RepoInfo, row: int, labels: dict[int, list[str]]) -> str:
    item = snapshot_info(info, row)
    names = f" ({', '.join(sorted(labels[row]))})" if row in labels else ""
    message = item.message.splitlines()[0] if item.message else ""
    return f"{item.id}{names} {item.written_at:%Y-%m-%d %H:%M} {message}"
