"""Replacing the repo object: each change is one compare-and-swap, with a backup and a log entry."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ConflictError, FormatError, ReadOnlyError
from icefloe.format.ids import ObjectId
from icefloe.format.repo_info import RepoInfo
from icefloe.format.status import Availability
from icefloe.format.updates import Update, Updates

if TYPE_CHECKING:
    from icefloe.assets import Assets

ATTEMPTS = 100
UPDATES_PER_FILE = 1000
_YEAR_3000_MS = 32503680000000

type Change = Callable[[RepoInfo], tuple[RepoInfo, Update]]
"""From the repo object as it is to what it shall be, and the entry for the ops log.

The entry's time is set later.
"""


def update_repo(assets: Assets, change: Change, *, updates_per_file: int) -> None:
    """Apply a change to the repo object as it is now.

    The change sees fresh data on every attempt, so what it checks holds at the moment of the swap.

    Raises:
        ConflictError: the object kept changing through all attempts, or the change itself
            conflicts.
        ReadOnlyError: the repository's status takes no writes.
    """
    tried: set[bytes | None] = set()
    for attempt in range(ATTEMPTS):
        info, version = assets.repo()
        if not tried.isdisjoint(info.updates.backup_path.tolist()):
            # An earlier swap landed, its answer was lost, and others have written since: the name
            # of our backup, which nobody else could choose, is in the log.
            return
        require_online(info)
        if not len(info.updates):
            raise FormatError("repo: the list of updates is empty", kind="no-updates")
        changed, update = change(info)
        backup = _backup_name()
        tried.add(backup.encode())
        update = replace(update, updated_at=next_time(int(info.updates.updated_at[0])))
        changed = _log(changed, update, backup, updates_per_file)
        try:
            assets.back_up_repo(backup, expected=version)
            assets.swap_repo(changed, expected=version)
        except ConflictError:
            time.sleep(random.uniform(0, min(0.05 * 2 ** max(attempt - 4, 0), 30.0)))
            continue
        return
    raise ConflictError(
        f"{assets.storage.url}: the repo object kept changing through {ATTEMPTS} attempts",
        kind="update-attempts-exhausted",
    )


def require_online(info: RepoInfo) -> None:
    """Raises ReadOnlyError unless the status of the repository allows writes."""
    if info.status.availability != Availability.ONLINE:
        reason = f": {info.status.reason}" if info.status.reason else ""
        raise ReadOnlyError(
            f"the repository is not online (status {info.status.availability!r}){reason}",
            kind="repository-not-online",
        )


def now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def next_time(after: int) -> int:
    """Now, but later than `after`: clocks differ, and times must ascend."""
    return max(now(), after + 1)


def _log(info: RepoInfo, update: Update, backup: str, limit: int) -> RepoInfo:
    """The repo object with one more update, older ones left to the backup beyond `limit`."""
    latest = replace(info.updates[0], backup_path=backup)
    older = info.updates.take(np.arange(1, len(info.updates), dtype=np.int64))
    updates = Updates.concat([Updates.of([update, latest]), older])
    before = info.repo_before_updates
    # Entries without a backup cannot be found again elsewhere, so they are never dropped.
    droppable = np.flatnonzero(updates.backup_path.present[limit:])
    if len(droppable):
        kept = limit + int(droppable[0])
        before = (updates.backup_path[kept] or b"").decode()
        updates = updates.take(np.arange(kept, dtype=np.int64))
    return replace(info, updates=updates, repo_before_updates=before)


def _backup_name() -> str:
    """Newest first when listed; the random part keeps two writers apart."""
    return f"repo.{_YEAR_3000_MS - now() // 1000:014}.{ObjectId.random()}"
