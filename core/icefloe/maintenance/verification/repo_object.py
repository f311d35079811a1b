"""Checks of the repo object: refs, history, and the log of operations."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from icefloe.descriptions import STAGED_ON
from icefloe.errors import FormatError
from icefloe.maintenance.ops_log import FOLDER, MIN_OPERATIONS, repo_objects
from icefloe.maintenance.verification.findings import Finding, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.assets import Assets
    from icefloe.format.ragged import Ragged
    from icefloe.format.repo_info import RepoInfo

_FILE = "repo"
_REWRITE = "any update by icefloe, such as creating a tag, writes the lists in order"
_ROLL_BACK = "roll back to a copy in overwritten/"


def check_repo(info: RepoInfo) -> Iterator[Finding]:
    yield from _check_refs(info)
    yield from _check_history(info)
    yield from _check_staged(info)
    yield from _check_updates(info)


def _check_refs(info: RepoInfo) -> Iterator[Finding]:
    names = {
        "branches": info.branches.name,
        "tags": info.tags.name,
        "deleted tags": info.deleted_tags,
    }
    for what, column in names.items():
        if not _ascends(column):
            yield _finding("unsorted-refs", f"the {what} do not ascend by name", _REWRITE)
    if b"main" not in info.branches.name.tolist():
        yield _finding("missing-main", "there is no branch main", "create it")
    for name in sorted(set(info.tags.name.texts()) & set(info.deleted_tags.texts())):
        message = f"the tag {name!r} is among the deleted ones too"
        yield _finding("deleted-tag", message, "delete it again, and use another name")


def _check_history(info: RepoInfo) -> Iterator[Finding]:
    rows = info.snapshots
    is_young = (rows.parent >= 0) & (rows.flushed_at <= rows.flushed_at[rows.parent])
    for row in np.flatnonzero(is_young).tolist():
        yield Finding(
            severity="warning",
            kind="time-order",
            file=_FILE,
            message=f"snapshot {rows.id_at(row)} is not younger than its parent",
            what_to_do="mind that reading the state as of a time may give the wrong snapshot",
        )


def _check_staged(info: RepoInfo) -> Iterator[Finding]:
    """Staged snapshots without the staged one below them: official clients do not spare that."""
    rows = info.snapshots
    for row in rows.rows_named(STAGED_ON).tolist():
        item = rows[row]
        if item.metadata[STAGED_ON] != str(item.parent_id):
            yield Finding(
                severity="warning",
                kind="staged-base-gone",
                file=_FILE,
                message=f"snapshot {item.id} stands on the staged snapshot "
                f"{item.metadata[STAGED_ON]}, which was expired or collected",
                what_to_do="write it again: it cannot be published; garbage collection removes it",
            )


def _check_updates(info: RepoInfo) -> Iterator[Finding]:
    updates = info.updates
    if not len(updates):
        yield _finding("ops-log", "the list of updates is empty", _ROLL_BACK)
        return
    if bool(updates.backup_path.present[0]):
        yield _finding("ops-log", "the latest update names a backup", _ROLL_BACK)
    if bool((updates.updated_at[:-1] <= updates.updated_at[1:]).any()):
        yield _finding("ops-log", "the updates are not ordered by time, latest first", _ROLL_BACK)


def check_ops_log(assets: Assets) -> Iterator[Finding]:
    """Whether at least the operations that trimming leaves are listed."""
    times: list[int] = []
    pointer = None
    try:
        for _, info in repo_objects(assets):
            times += info.updates.updated_at.tolist()
            pointer = info.repo_before_updates
    except FormatError as error:
        # Messages of format errors begin with the file.
        file = error.message.partition(":")[0]
        yield unreadable(file, error, "delete the file: the log will end before it")
        return
    if pointer is not None:
        yield Finding(
            severity="info" if len(times) >= MIN_OPERATIONS else "warning",
            kind="ops-log-cut",
            file=FOLDER + pointer,
            message=f"the ops log ends after {len(times)} operations: this file is missing",
            what_to_do="nothing, if the log was trimmed; else restore the file from a copy",
        )


def _ascends(column: Ragged) -> bool:
    return all((a or b"") < (b or b"") for a, b in pairwise(column.tolist()))


def _finding(kind: str, message: str, what_to_do: str) -> Finding:
    return Finding(severity="error", kind=kind, file=_FILE, message=message, what_to_do=what_to_do)
