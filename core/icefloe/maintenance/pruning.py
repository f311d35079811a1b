"""Taking snapshots out of the repo object: new parents for those left, and the logs they inherit.

Who walks from a snapshot to its parent must still learn of every change in between, so a snapshot
whose ancestors go away lists their transaction logs in `pruned_ancestor_tx_logs`, oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.descriptions import STAGED_ON
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.ragged import Ints, Ragged, starts
from icefloe.format.repo_info import Refs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.repo_info import RepoInfo, Snapshots

type Mask = NDArray[np.bool_]


def reachable(info: RepoInfo) -> Mask:
    """Which snapshots are the tip of a branch or tag, or an ancestor of one."""
    return ancestry(info.snapshots, np.concatenate([info.branches.snapshot, info.tags.snapshot]))


def ancestry(snapshots: Snapshots, tips: NDArray[np.uint32]) -> Mask:
    """Which snapshots are among these rows or their ancestors."""
    parents = snapshots.parent.tolist()
    seen = bytearray(len(parents))
    for tip in tips.tolist():
        row = tip
        while row >= 0 and not seen[row]:
            seen[row] = 1
            row = parents[row]
    return np.frombuffer(seen, np.bool_)


def with_footing(info: RepoInfo, kept: Mask, held: Mask) -> Mask:
    """Also keep what staged snapshots, and others outside all histories, were written on.

    A merge publishes a staged snapshot together with the staged ones below it, and compares with
    the published one below those: without them nobody could tell what it wrote.

    Args:
        info: the repo object.
        kept: the snapshots that stay.
        held: those in the history of a branch or tag.
    """
    snapshots = info.snapshots
    on_staged = np.zeros(len(snapshots), np.bool_)
    on_staged[snapshots.rows_named(STAGED_ON)] = True
    kept = kept.copy()
    rows = np.flatnonzero(kept & (on_staged | ~held) & (snapshots.parent >= 0))
    while len(rows):
        below = snapshots.parent[rows]
        kept[below] = True
        # One level a turn: chains of staged snapshots are short.
        rows = np.unique(below[on_staged[rows] & (snapshots.parent[below] >= 0)])
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class Orphans:
    """Snapshots whose parent goes away."""

    row: Ints
    ancestor: Ints
    """The row of the nearest ancestor at the boundary; -1 if there is none."""
    logs: Ragged
    """12-byte ids: the logs of all ancestors up to there and its own pruned list, oldest first."""


def orphans(snapshots: Snapshots, gone: Mask, boundary: Mask) -> Orphans:
    """What becomes of the children of `gone` snapshots if their history restarts at `boundary`."""
    parents = snapshots.parent.tolist()
    parentless = snapshots.parent < 0
    rows = np.flatnonzero(~gone & ~parentless & gone[snapshots.parent])
    ends = boundary.tolist()
    ancestors: list[int] = []
    lines: list[int] = []
    counts = []
    for row in rows.tolist():
        line = [row]
        above = parents[row]
        while above >= 0 and not ends[above]:
            line.append(above)
            above = parents[above]
        ancestors.append(above)
        counts.append(len(line))
        lines += reversed(line)
    logs = _logs(snapshots, np.array(lines, np.int64), np.array(counts, np.int64))
    return Orphans(rows, np.array(ancestors, np.int64), logs)


def _logs(snapshots: Snapshots, rows: Ints, counts: Ints) -> Ragged:
    """For lines of `counts` snapshots, end to end: the logs that the last of each inherits.

    That is the pruned list and the own id of each, but the last one's own id.
    """
    total = len(snapshots)
    both = Ragged.concat([snapshots.pruned, Ragged.fixed(snapshots.id)])
    pieces = np.stack([rows, rows + total], axis=1).ravel()
    is_own = np.zeros(len(pieces), np.bool_)
    is_own[2 * np.cumsum(counts) - 1] = True
    packed = both.take(pieces).where(~is_own).packed()
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(packed.length, 0))])
    size = np.diff(ends[2 * np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])])
    return Ragged(packed.data, starts(size), size)


def initial_row(snapshots: Snapshots, otherwise: Ints) -> Ints:
    """The row of the well-known first snapshot; old repositories have none, then `otherwise`."""
    row = snapshots.row(INITIAL_SNAPSHOT_ID)
    return otherwise if row is None else np.full(len(otherwise), row, np.int64)


def without(info: RepoInfo, gone: Mask, orphans: Orphans, parent: Ints) -> RepoInfo:
    """The repo object without these snapshots, which no ref may point to.

    Args:
        info: the repo object.
        gone: the rows to leave out.
        orphans: those to change.
        parent: the new parent of each orphan, as rows of `info`.
    """
    old = info.snapshots
    kept = np.flatnonzero(~gone)
    place = np.cumsum(~gone) - 1
    parents = old.parent.astype(np.int64)
    parents[orphans.row] = parent
    above = parents[kept]
    snapshots = old.take(kept, np.where(above < 0, -1, place[above]).astype(np.int32))
    if len(orphans.row):
        source = np.arange(len(old), dtype=np.int64)
        source[orphans.row] = len(old) + np.arange(len(orphans.row))
        pruned = Ragged.concat([old.pruned, orphans.logs]).take(source[kept])
        snapshots = replace(snapshots, pruned=pruned)
    return replace(
        info,
        snapshots=snapshots,
        branches=_moved(info.branches, place),
        tags=_moved(info.tags, place),
    )


def _moved(refs: Refs, place: Ints) -> Refs:
    return Refs(refs.name, place[refs.snapshot].astype(np.uint32))
