"""Checks of transaction logs: all that history needs are there and can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError
from icefloe.format import transaction_log
from icefloe.format.ids import SnapshotId
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.marking import read_all
from icefloe.maintenance.verification.findings import Finding, missing, unreadable, wrong_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.ragged import Bytes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.storage import Storage

FOLDER = "transactions/"
_FIX = "restore the file from a copy; until then, diffs and rebases across it fail"


@dataclass(frozen=True, slots=True, eq=False)
class NeededLogs:
    """Ids of logs that must be there; first snapshots need none: older versions wrote none."""

    needed: Bytes
    roots: Bytes
    """Of first snapshots: they must be sound, if they are there."""
    pruned: Bytes
    """Those of expired snapshots, which are needed, too."""

    @classmethod
    def of(cls, info: RepoInfo) -> NeededLogs:
        rows = info.snapshots
        pruned = IdSet(rows.pruned.packed().data.reshape(-1, SnapshotId.SIZE)).ids()
        needed = IdSet(np.concatenate([rows.id[rows.parent >= 0], pruned])).ids()
        return cls(needed, rows.id[rows.parent < 0], pruned)


def check_logs(storage: Storage, logs: NeededLogs, present: IdSet) -> Iterator[Finding]:
    """Check the logs of all snapshots, and of those that were expired."""
    pruned = IdSet(logs.pruned)
    is_there = present.contains(logs.needed)
    for raw in logs.needed[~is_there]:
        name = SnapshotId(raw.tobytes())
        is_pruned = bool(pruned.contains(raw[None])[0])
        by = f"a descendant of {name}, which was expired," if is_pruned else f"snapshot {name}"
        yield missing(f"{FOLDER}{name}", by, _FIX)
    roots = logs.roots[present.contains(logs.roots)]
    yield from _check_files(storage, np.concatenate([logs.needed[is_there], roots]))


def _check_files(storage: Storage, ids: Bytes) -> Iterator[Finding]:
    for key, data in read_all(storage, FOLDER, ids):
        try:
            log = transaction_log.decode(data, name=key)
        except FormatError as error:
            yield unreadable(key, error, _FIX)
            continue
        if f"{FOLDER}{log.id}" != key:
            yield wrong_id(key, log.id)
