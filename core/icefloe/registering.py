"""Entering written snapshots into the history: commits, amendments, staged writes, publishing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe import config as configuration
from icefloe.descriptions import WRITE_KEY
from icefloe.errors import NotFoundError, SessionStateError
from icefloe.format.repo_info import Refs, SnapshotInfo
from icefloe.format.updates import Update, UpdateKind
from icefloe.publication import Publication, Registration
from icefloe.ref_changes import branch_moved, require_flag
from icefloe.refs import ancestors, branch_row, snapshot_row
from icefloe.splitting import with_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.format.ids import SnapshotId
    from icefloe.format.repo_info import RepoInfo

_KINDS = {
    Registration.COMMIT: UpdateKind.NEW_COMMIT,
    Registration.AMENDMENT: UpdateKind.COMMIT_AMENDED,
    Registration.DETACHED: UpdateKind.NEW_DETACHED_SNAPSHOT,
}


class Registrar:
    """One publication as a change of the repo object; `registered` is what came of it."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self.registered = publication.snapshot.id

    def __call__(self, info: RepoInfo) -> tuple[RepoInfo, Update] | None:
        wanted = self._publication
        branch = None if wanted.registration is Registration.DETACHED else wanted.branch
        if wanted.write_key is not None:
            found = find_write(info, wanted.write_key, branch)
            if found is not None:
                # Another attempt at the same write came first, or our own whose answer was lost.
                self.registered = found
                return None
        _require_registered(info, wanted.needs)
        if wanted.moves_nodes:
            require_flag(info, "move_node")
        info = with_split_rules(info, wanted.split_rules)
        if branch is None:
            parent = info.snapshots.row(wanted.base)
            if parent is None:
                raise NotFoundError(
                    f"snapshot {wanted.base}, which this write stands on, was expired",
                    kind="snapshot-not-found",
                )
            return self._with_snapshot(info, wanted.base, None), self._update(None)
        tip = info.snapshots.id_at(branch_row(info, branch))
        if tip != wanted.base:
            raise branch_moved(branch, str(wanted.base), str(tip))
        if wanted.registration is Registration.AMENDMENT:
            return self._amended(info, branch, tip)
        return self._with_snapshot(info, tip, branch), self._update(branch)

    def _amended(self, info: RepoInfo, branch: str, tip: SnapshotId) -> tuple[RepoInfo, Update]:
        old = info.snapshots[snapshot_row(info, str(tip))]
        if old.parent_id is None:
            raise SessionStateError(
                "the first snapshot of a repository cannot be amended: commit instead",
                kind="no-amend-for-initial-commit",
            )
        changed = self._with_snapshot(info, old.parent_id, branch, old.pruned_ancestor_tx_logs)
        return changed, replace(self._update(branch), previous_snap_id=tip)

    def _with_snapshot(
        self,
        info: RepoInfo,
        parent: SnapshotId,
        branch: str | None,
        pruned: tuple[SnapshotId, ...] = (),
    ) -> RepoInfo:
        snapshot = self._publication.snapshot
        grown = info.with_snapshot(
            SnapshotInfo(
                snapshot.id,
                parent,
                snapshot.flushed_at,
                snapshot.message,
                snapshot.metadata,
                pruned,
            )
        )
        return grown if branch is None else with_tip(grown, branch, snapshot.id)

    def _update(self, branch: str | None) -> Update:
        return Update(
            kind=_KINDS[self._publication.registration],
            updated_at=0,
            name=branch,
            new_snap_id=self._publication.snapshot.id,
        )


def _require_registered(info: RepoInfo, ids: Iterable[SnapshotId]) -> None:
    """Raises NotFoundError if one was dropped: its files may be gone, or about to go."""
    gone = sorted(str(item) for item in ids if info.snapshots.row(item) is None)
    if gone:
        raise NotFoundError(
            f"snapshot {', '.join(gone)}, whose chunks this write uses, was expired or collected "
            "as garbage meanwhile: write them again",
            kind="snapshot-not-found",
        )


def with_tip(info: RepoInfo, branch: str, snapshot_id: SnapshotId) -> RepoInfo:
    """With the branch at a snapshot."""
    branches = info.branches.todict()
    branches[branch] = snapshot_row(info, str(snapshot_id))
    return replace(info, branches=Refs.of(branches))


def find_write(info: RepoInfo, write_key: str, branch: str | None) -> SnapshotId | None:
    """The snapshot with this write key: in the branch's history, or anywhere for None."""
    rows = set(info.snapshots.rows_with(WRITE_KEY, write_key).tolist())
    if rows and branch is not None:
        rows &= set(ancestors(info, branch_row(info, branch)))
    return info.snapshots.id_at(min(rows)) if rows else None


def with_split_rules(info: RepoInfo, rules: Mapping[str, tuple[int, ...]]) -> RepoInfo:
    """With splits that were chosen for arrays added to the configuration, for all clients."""
    if not rules:
        return info
    config = configuration.decode(info.config)
    for path, sizes in rules.items():
        config = with_rule(config, path, sizes)
    return replace(info, config=configuration.encode(config, info.config))
