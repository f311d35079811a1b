"""Expiring snapshots: old ones leave the history, and their changes fold into those that stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from icefloe.clock import from_datetime
from icefloe.errors import InternalError, InvalidInputError
from icefloe.format.ids import encode_ids
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs
from icefloe.format.updates import Update, UpdateKind
from icefloe.maintenance.cutoff import agreed_time
from icefloe.maintenance.pruning import (
    Mask,
    ancestry,
    initial_row,
    orphans,
    reachable,
    with_footing,
    without,
)
from icefloe.refs import ancestors, branch_row
from icefloe.repo_update import UPDATES_PER_FILE, update_repo

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.format.repo_info import RepoInfo

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Retention:
    """What a branch keeps: snapshots written at `older_than` or later, and the last `keep_last`."""

    older_than: datetime
    keep_last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What an expiration did, or would do."""

    released_snapshots: frozenset[str]
    """No longer listed; garbage collection will delete their files."""
    edited_snapshots: frozenset[str]
    """Have a new parent."""
    deleted_branches: tuple[str, ...]
    deleted_tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    default: Retention
    branches: Mapping[str, Retention] | None
    """Those to expire and nothing else; None for all branches, tags and detached snapshots."""
    delete_branches: bool
    delete_tags: bool


def expire_snapshots(
    assets: Assets,
    older_than: datetime,
    *,
    keep_last: int | None = None,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    branches: Collection[str] | Mapping[str, Retention] | None = None,
    dry_run: bool = False,
    updates_per_file: int = UPDATES_PER_FILE,
) -> ExpireResult:
    """Release every snapshot written before `older_than`, in one compare-and-swap.

    Never released are snapshots without a parent, the tip of main, and the tips of other branches
    and of tags unless those are deleted, and what a staged snapshot that stays was written on. A
    snapshot whose parent is released becomes a child of the first snapshot of its line.

    Args:
        assets: the files of the repository.
        older_than: the bound, exclusive; naive times are local.
        keep_last: how many snapshots every branch that stays keeps, its tip among them.
        delete_expired_branches: delete branches whose tip is older, whatever `keep_last` says;
            never main.
        delete_expired_tags: delete tags whose tip is older; their names stay taken.
        branches: expire these alone: snapshots that another branch holds stay, and so do those that
            no branch holds. A mapping says for each branch what it keeps; where several hold a
            snapshot, it stays if one of them keeps it.
        dry_run: change nothing.
        updates_per_file: the repository's setting of that name.

    Raises:
        NotFoundError: there is no such branch.
        ReadOnlyError: the repository's status takes no writes.
        StorageError: this machine's clock and the store's disagree (kind `clocks-disagree`).
    """
    policy = _Policy(
        default=Retention(older_than, keep_last),
        branches=_per_branch(branches, Retention(older_than, keep_last)),
        delete_branches=delete_expired_branches,
        delete_tags=delete_expired_tags,
    )
    _check(policy)
    if dry_run:
        return _expired(assets.repo()[0], policy)[1]
    if not assets.storage.read_only:
        agreed_time(assets.storage)
    result: ExpireResult | None = None

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        nonlocal result
        changed, result = _expired(info, policy)
        return changed, Update(kind=UpdateKind.EXPIRATION_RAN, updated_at=0)

    update_repo(assets, change, updates_per_file=updates_per_file)
    if result is None:
        raise InternalError("the repo object was updated without a change")
    return result


def _per_branch(
    branches: Collection[str] | Mapping[str, Retention] | None, default: Retention
) -> Mapping[str, Retention] | None:
    if branches is None or isinstance(branches, Mapping):
        return branches
    return dict.fromkeys(branches, default)


def _check(policy: _Policy) -> None:
    for retention in (policy.default, *(policy.branches or {}).values()):
        if retention.keep_last is not None and retention.keep_last < 0:
            raise InvalidInputError(f"keep_last is {retention.keep_last}: it counts snapshots")


def _expired(info: RepoInfo, policy: _Policy) -> tuple[RepoInfo, ExpireResult]:
    snapshots = info.snapshots
    parentless = snapshots.parent < 0
    old = ~parentless & (snapshots.flushed_at < _bounds(info, policy))
    deleted_branches = [
        name
        for name, tip in info.branches.todict().items()
        if policy.delete_branches and name != MAIN and old[tip] and _governs(policy, name)
    ]
    deleted_tags = [
        name for name, tip in info.tags.todict().items() if policy.delete_tags and old[tip]
    ]
    # Refs about to go count: what they hold stays in line with the first snapshot of its history.
    held = reachable(info)
    info = replace(
        info,
        branches=_without_names(info.branches, deleted_branches),
        tags=_without_names(info.tags, deleted_tags),
        deleted_tags=_with_names(info.deleted_tags, deleted_tags),
    )
    gone = ~with_footing(info, ~old | _protected(info, policy), reachable(info))
    changed = orphans(snapshots, gone, parentless)
    # Lines that no ref holds go to the well-known first snapshot, as the official library does it.
    fallback = initial_row(snapshots, changed.ancestor)
    parent = np.where(held[changed.row], changed.ancestor, fallback)
    result = ExpireResult(
        released_snapshots=_names(snapshots.id[gone]),
        edited_snapshots=_names(snapshots.id[changed.row]),
        deleted_branches=tuple(deleted_branches),
        deleted_tags=tuple(deleted_tags),
    )
    return without(info, gone, changed, parent), result


def _bounds(info: RepoInfo, policy: _Policy) -> NDArray[np.uint64]:
    """For each snapshot, the time before which it is old; 0 where it never is."""
    if policy.branches is None:
        return np.full(len(info.snapshots), _time(policy.default), np.uint64)
    bounds = np.full(len(info.snapshots), np.iinfo(np.uint64).max, np.uint64)
    named = np.zeros(len(bounds), np.bool_)
    for name, retention in policy.branches.items():
        mask = ancestry(info.snapshots, np.array([branch_row(info, name)], np.uint32))
        bounds[mask] = np.minimum(bounds[mask], _time(retention))
        named |= mask
    others = [tip for name, tip in info.branches.todict().items() if name not in policy.branches]
    elsewhere = ancestry(info.snapshots, np.array(others, np.uint32))
    bounds[elsewhere | ~named] = 0
    return bounds


def _time(retention: Retention) -> np.uint64:
    return np.uint64(max(from_datetime(retention.older_than), 0))


def _protected(info: RepoInfo, policy: _Policy) -> Mask:
    """Tips of the refs that are left, and the last snapshots of the branches that are left."""
    mask = np.zeros(len(info.snapshots), np.bool_)
    mask[info.branches.snapshot] = True
    mask[info.tags.snapshot] = True
    for name, tip in info.branches.todict().items():
        retention = policy.default if policy.branches is None else policy.branches.get(name)
        if retention is not None and retention.keep_last:
            mask[[*islice(ancestors(info, tip), retention.keep_last)]] = True
    return mask


def _governs(policy: _Policy, branch: str) -> bool:
    return policy.branches is None or branch in policy.branches


def _without_names(refs: Refs, names: list[str]) -> Refs:
    gone = set(names)
    return Refs.of({name: row for name, row in refs.todict().items() if name not in gone})


def _with_names(column: Ragged, names: list[str]) -> Ragged:
    every = sorted({*column.texts(), *names}, key=str.encode)
    return Ragged.of_text(every)


def _names(ids: NDArray[np.uint8]) -> frozenset[str]:
    return frozenset(encode_ids(ids).astype(str).tolist())
