"""What stands between two changes of one snapshot, and who gives way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from icefloe.changes import rows_with_ids
from icefloe.chunk_edits import rows_in
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.format import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.changes import ChangeSet
    from icefloe.format.ids import NodeId
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog


class ConflictType(Enum):
    """Why two changes cannot both hold."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11
    DeleteOfGroupWithNewNodes = 12
    """We delete a group under which they created something. The official library misses this."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One conflict, at the path of our node, or of theirs where we have none.

    The chunks are those that both wrote.
    """

    conflict_type: ConflictType
    path: str
    conflicted_chunks: list[list[int]] | None = None

    def __str__(self) -> str:
        text = f"{self.conflict_type.name} at {self.path}"
        if self.conflicted_chunks:
            shown = ", ".join(str(tuple(coords)) for coords in self.conflicted_chunks[:5])
            more = len(self.conflicted_chunks) - 5
            text += f", chunks {shown}" + (f" and {more} more" if more > 0 else "")
        return text


class RebaseFailedError(ConflictError):
    """The changes conflict with a commit, and the solver does not say who gives way.

    The session is based on the last commit before that one, and keeps its changes.
    """

    KIND = "rebase-failed"

    def __init__(self, snapshot: str, conflicts: list[Conflict]) -> None:
        told = "; ".join(str(conflict) for conflict in conflicts[:5])
        more = f"; and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__(f"the changes conflict with commit {snapshot}: {told}{more}")
        self.snapshot = snapshot
        self.conflicts = conflicts


class VersionSelection(Enum):
    """Who gives way."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


class ConflictSolver(Protocol):
    """Decides who gives way. Where it is "theirs", we forget our edits of the chunks concerned."""

    def choose(self, conflict: Conflict) -> VersionSelection: ...


def check_rebase(solver: ConflictSolver | None, tries: int) -> None:
    """Raises InvalidInputError for what a commit could not rebase with, before it is tried."""
    if isinstance(solver, type) or not (
        solver is None or callable(getattr(solver, "choose", None))
    ):
        raise InvalidInputError(
            f"rebase_with is {solver!r}: pass a solver, for example ConflictDetector()",
            kind="invalid-solver",
        )
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 0:
        raise InvalidInputError(
            f"rebase_tries is {tries!r}: pass how often to rebase, 0 or more", kind="invalid-tries"
        )


@dataclass(frozen=True, slots=True)
class ConflictDetector:
    """Solves nothing: a rebase succeeds only where there is no conflict."""

    def choose(self, conflict: Conflict) -> VersionSelection:
        return VersionSelection.Fail


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver:
    """Solves chunks that both wrote, and our deletion of what they updated; nothing else."""

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def choose(self, conflict: Conflict) -> VersionSelection:
        match conflict.conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return self.on_chunk_conflict
            case ConflictType.DeleteOfUpdatedArray if not self.fail_on_delete_of_updated_array:
                return VersionSelection.UseOurs
            case ConflictType.DeleteOfUpdatedGroup if not self.fail_on_delete_of_updated_group:
                return VersionSelection.UseOurs
            case _:
                return VersionSelection.Fail


@dataclass(slots=True)
class _Detection:
    """One look at our changes and one commit of theirs."""

    changes: ChangeSet
    log: TransactionLog
    before: Snapshot
    after: Snapshot
    names: dict[NodeId, str] = field(default_factory=dict)

    def conflicts(self) -> Iterator[Conflict]:
        for move in self.log.moves:
            yield Conflict(ConflictType.MoveOperationCannotBeRebased, move.target)
        yield from self._our_moves()
        self.names = self._paths()
        yield from self._new_nodes()
        yield from self._updated_nodes()
        yield from self._chunks()
        yield from self._deleted_nodes()

    def _our_moves(self) -> Iterator[Conflict]:
        """Our moves stand only where they did nothing to what moves, or to where it goes."""
        moves = self.changes.moves
        if not moves:
            return
        log = self.log
        touched = log.updated_arrays | log.updated_groups | log.deleted_arrays | log.deleted_groups
        nodes = self.after.nodes
        for node_id, move in moves.items():
            taken = nodes.row(move.target)
            is_rival = taken is not None and nodes[taken].id not in moves
            above = paths.parent(move.target)
            homeless = above not in self.changes.nodes and nodes.row(above) is None
            if node_id in touched or is_rival or homeless:
                yield Conflict(ConflictType.MoveOperationCannotBeRebased, move.target)
        sources = {move.source for move in moves.values()}
        new = rows_with_ids(nodes, log.new_arrays | log.new_groups)
        for path in nodes.path.take(new).texts():
            if not sources.isdisjoint(paths.ancestors(path)):
                yield Conflict(ConflictType.MoveOperationCannotBeRebased, path)

    def _paths(self) -> dict[NodeId, str]:
        """Where our touched nodes of the base stand, for the reader of a conflict."""
        ids = {*self.changes.updated, *self.changes.chunks, *self.changes.deleted}
        nodes = self.before.nodes
        rows = rows_with_ids(nodes, ids)
        texts = nodes.path.take(rows).texts()
        return {nodes[row].id: text for row, text in zip(rows.tolist(), texts, strict=True)}

    def _new_nodes(self) -> Iterator[Conflict]:
        gone = {node.path: node_id for node_id, node in self.changes.deleted.items()}
        nodes = self.after.nodes
        for node in self.changes.live():
            if node.id not in self.changes.created:
                continue
            row = nodes.row(node.path)
            # Deleting and creating anew is fine as long as it is the same node that goes.
            if row is not None and gone.get(node.path) != nodes[row].id:
                yield Conflict(ConflictType.NewNodeConflictsWithExistingNode, node.path)
            for ancestor in paths.ancestors(node.path):
                if ancestor in gone:
                    continue
                above = nodes.row(ancestor)
                is_array = above is not None and nodes.rank[above] >= 0
                if is_array or (above is None and self.before.nodes.row(ancestor) is not None):
                    yield Conflict(ConflictType.NewNodeInInvalidGroup, node.path)
                    break

    def _updated_nodes(self) -> Iterator[Conflict]:
        theirs = self.log.updated_arrays | self.log.updated_groups
        for node_id in sorted(self.changes.updated):
            path = self.names.get(node_id, str(node_id))
            if node_id in theirs:
                yield Conflict(ConflictType.ZarrMetadataDoubleUpdate, path)
            if node_id in self.log.deleted_arrays:
                yield Conflict(ConflictType.ZarrMetadataUpdateOfDeletedArray, path)
            if node_id in self.log.deleted_groups:
                yield Conflict(ConflictType.ZarrMetadataUpdateOfDeletedGroup, path)

    def _chunks(self) -> Iterator[Conflict]:
        for node_id, edits in self.changes.edit_columns().items():
            if node_id in self.changes.created:
                continue
            path = self.names.get(node_id, str(node_id))
            if node_id in self.log.deleted_arrays:
                yield Conflict(ConflictType.ChunksUpdatedInDeletedArray, path)
            if node_id in self.log.updated_arrays:
                yield Conflict(ConflictType.ChunksUpdatedInUpdatedArray, path)
            theirs = self.log.updated_chunks.get(node_id)
            if theirs is not None and len(theirs):
                both = edits.index[rows_in(edits.index, theirs)]
                if len(both):
                    yield Conflict(ConflictType.ChunkDoubleUpdate, path, both.tolist())

    def _deleted_nodes(self) -> Iterator[Conflict]:
        touched = self.log.updated_arrays | self.log.updated_groups | self.log.updated_chunks.keys()
        for node_id, node in sorted(self.changes.deleted.items()):
            if node_id in touched:
                kind = (
                    ConflictType.DeleteOfUpdatedArray
                    if node.is_array
                    else ConflictType.DeleteOfUpdatedGroup
                )
                yield Conflict(kind, node.path)
        groups = {node.path for node in self.changes.deleted.values() if not node.is_array}
        if not groups:
            return
        new = rows_with_ids(self.after.nodes, self.log.new_arrays | self.log.new_groups)
        for path in self.after.nodes.path.take(new).texts():
            if not groups.isdisjoint(paths.ancestors(path)):
                yield Conflict(ConflictType.DeleteOfGroupWithNewNodes, path)


def detect(
    changes: ChangeSet, log: TransactionLog, before: Snapshot, after: Snapshot
) -> list[Conflict]:
    """Conflicts of our changes with one commit of theirs, which led from `before` to `after`."""
    return list(_Detection(changes, log, before, after).conflicts())
