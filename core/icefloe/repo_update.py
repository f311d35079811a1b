"""Replacing the repo object: each change is one compare-and-swap, with a backup and a log entry."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.clock import next_time, now
from icefloe.errors import (
    ConflictError,
    FormatError,
    IcefloeError,
    ReadOnlyError,
    UnknownOutcomeError,
)
from icefloe.format.ids import ObjectId
from icefloe.format.repo_info import RepoInfo
from icefloe.format.status import Availability
from icefloe.format.updates import Update, Updates

if TYPE_CHECKING:
    from icefloe.assets import Assets, File, KnownRepo
    from icefloe.storage import Version

UPDATES_PER_FILE = 1000
_YEAR_3000_MS = 32503680000000
_IMMEDIATE = 5
"""Lost races that are run again at once."""

type Change = Callable[[RepoInfo], tuple[RepoInfo, Update] | None]
"""From the repo object as it is to what it shall be, and the entry for the ops log.

The entry's time is set later. None: nothing is to be changed.
"""


MAX_TRIES = 1000
INITIAL_WAIT = 0.005
MAX_WAIT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How often a lost race is run again, and how long to wait before: seconds, with jitter.

    Who won a race does not wait before the next one. If losers waited ever longer, one writer in a
    tight loop would shut all others out; so the wait stays below what one attempt takes.
    """

    count: int = MAX_TRIES
    initial: float = INITIAL_WAIT
    maximum: float = MAX_WAIT

    def wait(self, failed: int) -> None:
        bound = self.initial * 2 ** max(failed - _IMMEDIATE, 0)
        time.sleep(random.uniform(0, min(bound, self.maximum)))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A first attempt without waiting: a repo object that is known, and a name for its backup.

    The backup is to be written beforehand, together with whatever else the change needs.
    """

    known: KnownRepo
    backup: str

    @property
    def file(self) -> File:
        return f"overwritten/{self.backup}", self.known.data


_FRESH = 60.0
"""Seconds for which a repo object may be guessed to be still there."""
_SMALL = 2**20
"""Bytes of a repo object that we rather send than have the store copy it."""


def prepare(assets: Assets) -> Prepared | None:
    """A first attempt on the repo object as it was last met; None if that is old, or large."""
    known = assets.known_repo
    if known is None or len(known.data) > _SMALL or time.monotonic() - known.at > _FRESH:
        return None
    return Prepared(known, _backup_name())


def update_repo(
    assets: Assets,
    change: Change,
    *,
    updates_per_file: int = UPDATES_PER_FILE,
    attempts: Attempts = Attempts(),
    whatever_status: bool = False,
    prepared: Prepared | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Apply a change to the repo object as it is now.

    The change sees what is replaced on every attempt, so what it checks holds at the moment of the
    swap.

    Args:
        assets: the repository's files.
        change: what to do.
        updates_per_file: entries of the ops log in one repo object; older ones are in its backup.
        attempts: how often to try.
        whatever_status: do it though the repository is read-only or offline.
        prepared: what to try first, without reading.
        ready: returns when all that the changed object refers to is written, or raises.

    Raises:
        ConflictError: the object kept changing through all attempts, or the change itself
            conflicts.
        ReadOnlyError: the storage or the repository's status takes no writes.
    """
    assets.storage.require_writable()
    race = _Race(assets, change, updates_per_file, whatever_status, ready)
    if prepared is not None and race.run_prepared(prepared):
        return
    # A first attempt on what may be an old repo object is a race, too, but never the only one.
    lost = race.attempts
    for failed in range(1 + lost, max(attempts.count, 1 + lost) + 1):
        if race.run():
            return
        attempts.wait(failed)
    raise ConflictError(
        f"{assets.storage.url}: the repo object kept changing through {attempts.count} attempts",
        kind="update-attempts-exhausted",
    )


class _Race:
    """All attempts at one change. Each says whether that was the last one."""

    def __init__(
        self,
        assets: Assets,
        change: Change,
        limit: int,
        whatever_status: bool,
        ready: Callable[[], None],
    ) -> None:
        self._assets = assets
        self._change = change
        self._limit = limit
        self._whatever_status = whatever_status
        self._ready = ready
        self._tried: set[bytes] = set()
        """The names of our backups."""
        self._known: set[bytes] = set()
        """The names in the log before our first try."""

    @property
    def attempts(self) -> int:
        """How often the swap was tried."""
        return len(self._tried)

    def run_prepared(self, prepared: Prepared) -> bool:
        known = prepared.known
        try:
            changed = self._changed(known.info)
        except IcefloeError:
            # Only the repo object as it is now may refuse a change.
            return False
        return changed is not None and self._swap(
            known.info, known.version, changed, prepared.backup
        )

    def run(self) -> bool:
        info, version = self._assets.repo()
        if self._tried and _has_landed(self._assets, info, self._tried, self._known):
            # An earlier swap landed, its answer was lost, and others have written since.
            return True
        changed = self._changed(info)
        if changed is None:
            return True
        backup = _backup_name()
        try:
            self._assets.back_up_repo(backup, expected=version)
        except ConflictError:
            return False
        return self._swap(info, version, changed, backup)

    def _changed(self, info: RepoInfo) -> tuple[RepoInfo, Update] | None:
        if not self._whatever_status:
            require_online(info)
        if not len(info.updates):
            raise FormatError("repo: the list of updates is empty", kind="no-updates")
        return self._change(info)

    def _swap(
        self, info: RepoInfo, version: Version, changed: tuple[RepoInfo, Update], backup: str
    ) -> bool:
        if not self._tried:
            self._known = _backup_names(info)
        self._tried.add(backup.encode())
        new = self._assets.encoded_repo(_log(info, *changed, backup=backup, limit=self._limit))
        self._ready()
        try:
            self._assets.swap_repo(new, expected=version)
        except ConflictError:
            return False
        return True


def _has_landed(assets: Assets, info: RepoInfo, tried: set[bytes], known: set[bytes]) -> bool:
    """Whether the ops log has one of our swaps, told by the name of its backup.

    Nobody else could choose such a name. The log runs on in the backups themselves; it is followed
    until it reaches what was there before our first try.

    Args:
        assets: the repository's files.
        info: the repo object as it is now.
        tried: the names of our backups.
        known: the names in the log before our first try.

    Raises:
        UnknownOutcomeError: somebody removed a part of the log that would tell.
    """
    while True:
        names = _backup_names(info)
        if not names.isdisjoint(tried):
            return True
        before = info.repo_before_updates
        if before is None or not names.isdisjoint(known):
            return False
        older = assets.backup(before)
        if older is None:
            raise UnknownOutcomeError(
                f"{assets.storage.url}: overwritten/{before} was removed, so nobody can tell "
                "whether a change whose answer was lost is there: look before you retry"
            )
        info = older


def _backup_names(info: RepoInfo) -> set[bytes]:
    """The backups that a repo object tells of, which reach back as far as its updates."""
    names = {name for name in info.updates.backup_path.tolist() if name is not None}
    before = info.repo_before_updates
    return names if before is None else names | {before.encode()}


def require_online(info: RepoInfo) -> None:
    """Raises ReadOnlyError unless the status of the repository allows writes."""
    if info.status.availability != Availability.ONLINE:
        raise ReadOnlyError(
            f"the repository is {_status_text(info)}: no writes until Repository.set_status "
            "brings it online",
            kind="repository-not-online",
        )


def require_readable(info: RepoInfo) -> None:
    """Raises ReadOnlyError if the repository is offline, for readers too."""
    if info.status.availability == Availability.OFFLINE:
        raise ReadOnlyError(
            f"the repository is {_status_text(info)}: neither reads nor writes until "
            "Repository.set_status brings it back",
            kind="repository-offline",
        )


def _status_text(info: RepoInfo) -> str:
    known = info.status.availability
    name = known.name.lower().replace("_", "-") if isinstance(known, Availability) else f"{known}"
    return f"{name} ({info.status.reason})" if info.status.reason else name


def _log(old: RepoInfo, info: RepoInfo, update: Update, *, backup: str, limit: int) -> RepoInfo:
    """The repo object with one more update, older ones left to the backup beyond `limit`."""
    update = replace(update, updated_at=next_time(int(old.updates.updated_at[0])))
    latest = replace(old.updates[0], backup_path=backup)
    older = old.updates.take(np.arange(1, len(old.updates), dtype=np.int64))
    updates = Updates.concat([Updates.of([update, latest]), older])
    before = old.repo_before_updates
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
