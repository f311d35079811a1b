"""Checks of transaction logs: all that history needs are there and can be read."""

from __future__ import annotations

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

_FOLDER = "transactions/"
_FIX = "restore the file from a copy; until then, diffs and rebases across it fail"


def check_logs(storage: Storage, info: RepoInfo, present: IdSet) -> Iterator[Finding]:
    """Check the logs of all snapshots, and of those that were expired.

    First snapshots need none: older versions wrote none.
    """
    snapshots = info.snapshots
    pruned = IdSet(snapshots.pruned.packed().data.reshape(-1, SnapshotId.SIZE))
    needed = IdSet(np.concatenate([snapshots.id[snapshots.parent >= 0], pruned.ids()])).ids()
    is_there = present.contains(needed)
    for raw in needed[~is_there]:
        name = SnapshotId(raw.tobytes())
        is_pruned = bool(pruned.contains(raw[None])[0])
        by = f"a descendant of {name}, which was expired," if is_pruned else f"snapshot {name}"
        yield missing(f"{_FOLDER}{name}", by, _FIX)
    roots = snapshots.id[snapshots.parent < 0]
    roots = roots[present.contains(roots)]
    yield from _check_files(storage, np.concatenate([needed[is_there], roots]))


def _check_files(storage: Storage, ids: Bytes) -> Iterator[Finding]:
    for key, data in read_all(storage, _FOLDER, ids):
        try:
            log = transaction_log.decode(data, name=key)
        except FormatError as error:
            yield unreadable(key, error, _FIX)
            continue
        if f"{_FOLDER}{log.id}" != key:
            yield wrong_id(key, log.id)
