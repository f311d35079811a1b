"""Trimming the ops log: old backups of the repo object go, recent operations stay listable.

Every update copies the repo object to `overwritten/` first. The log of operations runs through
some of these copies: each repo object holds the latest operations and names the copy that holds the
ones before. Which copies these are changes with every update, so every copy of the operations that
are kept stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from icefloe.clock import from_datetime, now, to_datetime
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.assets import Assets
    from icefloe.format.repo_info import RepoInfo
    from icefloe.storage import ObjectInfo

MIN_OPERATIONS = 1000
FOLDER = "overwritten/"
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """What was deleted, or would be."""

    backups_deleted: int
    bytes_deleted: int
    backups_kept: int
    operations_kept: int
    """How many are still listed."""
    failures: Mapping[str, str]
    dry_run: bool


def trim_ops_log(
    assets: Assets, *, keep: int | timedelta = MIN_OPERATIONS, dry_run: bool = False
) -> TrimResult:
    """Delete backups of the repo object that only operations older than `keep` need.

    Whatever happens later, the operations that are kept stay listed, by any client.

    Args:
        assets: the files of the repository.
        keep: how many of the latest operations to keep, or how old ones; never less than 1,000.
        dry_run: delete nothing.

    Raises:
        InvalidInputError: `keep` is negative.
        FormatError: a backup in the log is damaged.
    """
    if (keep if isinstance(keep, int) else keep / _MICROSECOND) < 0:
        raise InvalidInputError(f"keep is {keep!r}: operations cannot be kept less than 0")
    # Listed before the log is read: a backup that an update makes meanwhile is not in here.
    listed = [
        found
        for page in assets.storage.list(FOLDER)
        for found in page
        if found.key.startswith(f"{FOLDER}repo.")
    ]
    count, oldest, needed = _kept(assets, keep)
    # A copy younger than the oldest operation kept may belong to an update that is under way.
    bound = to_datetime(oldest)
    garbage = [found for found in listed if found.key not in needed and found.modified < bound]
    return _delete(assets, garbage, len(listed) - len(garbage), count, dry_run)


def _kept(assets: Assets, keep: int | timedelta) -> tuple[int, int, set[str]]:
    """How many operations stay, the time of the oldest, and the backups that they need."""
    limit = keep if isinstance(keep, int) else MIN_OPERATIONS
    since = from_datetime(to_datetime(now()) - keep) if isinstance(keep, timedelta) else None
    needed: set[str] = set()
    count, oldest = 0, 0
    for name, info in repo_objects(assets):
        if name is not None:
            needed.add(FOLDER + name)
        times = info.updates.updated_at.tolist()
        for path, at in zip(info.updates.backup_path.tolist(), times, strict=True):
            if count >= max(limit, MIN_OPERATIONS) and (since is None or at < since):
                return count, oldest, needed
            if path is not None:
                needed.add(FOLDER + path.decode())
            count, oldest = count + 1, at
    return count, oldest, needed


def repo_objects(assets: Assets) -> Iterator[tuple[str | None, RepoInfo]]:
    """The repo object, then the backups that continue its log, with their names.

    Ends where a backup was removed.

    Raises:
        FormatError: a backup is damaged.
    """
    name: str | None = None
    info: RepoInfo | None = assets.repo()[0]
    seen: set[str | None] = set()
    # A damaged file may name itself.
    while info is not None and name not in seen:
        yield name, info
        seen.add(name)
        name = info.repo_before_updates
        info = None if name is None else assets.backup(name)


def _delete(
    assets: Assets, garbage: list[ObjectInfo], kept: int, operations: int, dry_run: bool
) -> TrimResult:
    sizes = {found.key: found.size for found in garbage}
    failures = {} if dry_run or not sizes else assets.storage.delete([*sizes]).failures
    return TrimResult(
        backups_deleted=len(sizes) - len(failures),
        bytes_deleted=sum(sizes.values()) - sum(sizes[key] for key in failures),
        backups_kept=kept + len(failures),
        operations_kept=operations,
        failures=failures,
        dry_run=dry_run,
    )
