"""Carrying changes over commits that others made meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes import rows_with_ids
from icefloe.chunk_edits import rows_in
from icefloe.conflicts import ConflictType, RebaseFailedError, VersionSelection, detect
from icefloe.errors import ConflictError, InvalidInputError, NotFoundError, SessionStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.assets import Assets
    from icefloe.changes import ChangeSet
    from icefloe.conflicts import Conflict, ConflictSolver
    from icefloe.format.ids import SnapshotId
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True)
class Step:
    """A commit that others made, and the logs that tell all it changed, oldest first."""

    id: SnapshotId
    logs: tuple[SnapshotId, ...]


def read_logs(assets: Assets, step: Step) -> list[TransactionLog]:
    """The logs of a step.

    Raises:
        ConflictError: one was removed, so nobody can tell what changed.
    """
    try:
        return assets.transaction_logs(step.logs)
    except NotFoundError as error:
        raise ConflictError(
            f"a transaction log on the way to commit {step.id} is gone, so conflicts with it "
            "cannot be told: start anew from the tip of the branch",
            kind="rebase-tx-log-pruned",
        ) from error


def fast_forward(changes: ChangeSet, steps: Sequence[Step], assets: Assets) -> Snapshot | None:
    """The last commit's snapshot, if we and the others only wrote chunks, and no chunk twice.

    None where that is not so: then `rebase` goes from commit to commit. This way costs one round
    trip however many commits there are, so a writer that is far behind does not fall back further.
    """
    if not steps or changes.adopted:
        return None
    try:
        after, logs = assets.snapshot_and_logs(
            steps[-1].id, [log for step in steps for log in step.logs]
        )
    except NotFoundError:
        return None
    if any(_changes_nodes(log) for log in logs):
        return None
    ours = {node_id: edits.index for node_id, edits in changes.edit_columns().items()}
    touched = {node_id for log in logs for node_id in log.updated_chunks}
    if not touched.isdisjoint(changes.updated | changes.deleted.keys() | changes.moves.keys()):
        return None
    for log in logs:
        for node_id, index in log.updated_chunks.items():
            if node_id in ours and bool(rows_in(index, ours[node_id]).any()):
                return None
    return after


def _changes_nodes(log: TransactionLog) -> bool:
    return bool(
        log.new_groups
        or log.new_arrays
        or log.deleted_groups
        or log.deleted_arrays
        or log.updated_groups
        or log.updated_arrays
        or log.moves
    )


def rebase(
    changes: ChangeSet, base: Snapshot, step: Step, assets: Assets, solver: ConflictSolver
) -> Snapshot:
    """Fit changes, made on `base`, to the commit after it; the commit's snapshot.

    Raises:
        RebaseFailedError: the solver lets a conflict stand; the changes are as they were.
    """
    if changes.adopted:
        raise SessionStateError(
            "manifests that others wrote cannot be rebased: flush this session, and publish what "
            "it wrote with Repository.merge_snapshots",
            kind="adopted-manifests",
        )
    after = assets.snapshot(step.id)
    conflicts = [
        conflict
        for log in read_logs(assets, step)
        for conflict in detect(changes, log, base, after)
    ]
    choices = [(conflict, solver.choose(conflict)) for conflict in conflicts]
    failed = [conflict for conflict, choice in choices if choice is VersionSelection.Fail]
    if failed:
        raise RebaseFailedError(str(step.id), failed)
    _drop_chunks(
        changes, [it for it, choice in choices if choice is VersionSelection.UseTheirs], base
    )
    _forget_deleted(changes, after)
    return after


def _drop_chunks(changes: ChangeSet, conflicts: Sequence[Conflict], base: Snapshot) -> None:
    """Forget our edits of the chunks in conflict: theirs show."""
    for conflict in conflicts:
        if conflict.conflict_type is not ConflictType.ChunkDoubleUpdate:
            raise InvalidInputError(f"only chunks can be left to the others, not: {conflict}")
        row = base.nodes.row(conflict.path)
        if row is None:
            continue
        edits = changes.chunks[base.nodes[row].id]
        columns = edits.columns()
        chunks = conflict.conflicted_chunks or []
        # The rank cannot be left to numpy: coordinates in an array without dimensions are empty.
        lost = np.array(chunks, np.uint32).reshape(len(chunks), columns.index.shape[1])
        edits.replace(columns.take(~rows_in(columns.index, lost)))


def _forget_deleted(changes: ChangeSet, after: Snapshot) -> None:
    """Nodes that they deleted as we did need no deleting; what they put in their place stays."""
    rows = rows_with_ids(after.nodes, changes.deleted.keys())
    still = {after.nodes[row].id for row in rows.tolist()}
    for node_id in changes.deleted.keys() - still:
        path = changes.deleted.pop(node_id).path
        if changes.nodes.get(path, ...) is None:
            del changes.nodes[path]
