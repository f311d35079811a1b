"""What a session has changed since its base snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.adoption import Adopted, joined_manifests, outside_cells
from icefloe.chunk_edits import ChunkEdits, EditColumns, rows_in
from icefloe.errors import InvalidInputError
from icefloe.format import paths
from icefloe.format.ids import NodeId, as_keys
from icefloe.format.nodes import ManifestRefs, Node
from icefloe.format.transaction_log import Move, TransactionLog, union_of_coordinates
from icefloe.splitting import cells

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from icefloe.format.ids import SnapshotId
    from icefloe.format.nodes import ArrayData, Nodes
    from icefloe.format.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class DeletedNode:
    """A node of the base snapshot that is gone."""

    path: str
    is_array: bool


@dataclass(slots=True)
class ChangeSet:
    """Changes to nodes by path, and to chunks by node id.

    The nodes here hold no manifests: those of a node in the base snapshot are looked up there by
    id, so that the changes can be carried over to another base.
    """

    nodes: dict[str, Node | None] = field(default_factory=dict)
    """What stands at a path now; None where something of the base stood and nothing does."""
    created: set[NodeId] = field(default_factory=set)
    updated: set[NodeId] = field(default_factory=set)
    """Nodes of the base with another zarr.json."""
    deleted: dict[NodeId, DeletedNode] = field(default_factory=dict)
    moves: dict[NodeId, Move] = field(default_factory=dict)
    """Every node that moved, those below another one too, from where the base has it."""
    chunks: dict[NodeId, ChunkEdits] = field(default_factory=dict)
    adopted: dict[NodeId, Adopted] = field(default_factory=dict)
    borrowed: set[SnapshotId] = field(default_factory=set)
    """Snapshots whose own chunks the edits refer to: a commit needs them registered still."""

    def copy(self) -> ChangeSet:
        """These changes, in an object that others do not change."""
        return ChangeSet(
            nodes=dict(self.nodes),
            created=set(self.created),
            updated=set(self.updated),
            deleted=dict(self.deleted),
            moves=dict(self.moves),
            chunks={node_id: edits.copy() for node_id, edits in self.chunks.items()},
            adopted=dict(self.adopted),
            borrowed=set(self.borrowed),
        )

    def settle(self) -> None:
        """Sort all edits: until the next change, reading them changes nothing inside."""
        for edits in self.chunks.values():
            edits.columns()

    def __bool__(self) -> bool:
        edited = any(self.chunks.values())
        return bool(self.nodes or self.deleted or self.moves or self.adopted or edited)

    def live(self) -> Iterator[Node]:
        """The nodes that were created, updated or moved."""
        return (node for node in self.nodes.values() if node is not None)

    def set_node(self, node: Node, *, is_new: bool) -> None:
        node = without_manifests(node)
        if is_new:
            self.created.add(node.id)
        elif node.id not in self.created:
            self.updated.add(node.id)
        self.nodes[node.path] = node
        if node.array is not None and node.id in self.chunks:
            self.chunks[node.id].clip(grid(node.array))

    def delete_node(self, node: Node, *, in_base: bool) -> None:
        """Delete a node; `in_base` says whether the base snapshot has one at its path."""
        self.chunks.pop(node.id, None)
        self.adopted.pop(node.id, None)
        self.updated.discard(node.id)
        if node.id in self.created:
            self.created.discard(node.id)
        else:
            self.deleted[node.id] = DeletedNode(node.path, node.array is not None)
        if in_base:
            self.nodes[node.path] = None
        else:
            self.nodes.pop(node.path, None)

    def move_node(self, node: Node, target: str, *, in_base: bool) -> None:
        """Give a node another path; `in_base` says whether the base has one at the old path."""
        if in_base:
            self.nodes[node.path] = None
        else:
            self.nodes.pop(node.path, None)
        self.nodes[target] = without_manifests(replace(node, path=target))
        source = self.moves[node.id].source if node.id in self.moves else node.path
        self.moves[node.id] = Move(source, target, node.id, node.array is not None)

    def edits(self, node: Node) -> ChunkEdits:
        """The chunk edits of an array, to be added to.

        Raises:
            InvalidInputError: the node is a group.
        """
        if node.array is None:
            raise InvalidInputError(f"{node.path} is a group and has no chunks")
        if node.id not in self.chunks:
            self.chunks[node.id] = ChunkEdits(len(node.array.shape))
        return self.chunks[node.id]

    def edit_columns(self) -> dict[NodeId, EditColumns]:
        """The chunk edits of all arrays that have some."""
        return {node_id: edits.columns() for node_id, edits in self.chunks.items() if edits}

    def adopt(self, node: Node, adopted: Adopted) -> None:
        """Put manifests in place of all that the array has in their cells."""
        if node.id in self.chunks:
            edits = self.chunks[node.id].columns()
            inside = rows_in(cells(edits.index, adopted.sizes), adopted.cells)
            self.chunks[node.id].replace(edits.take(~inside))
            # The manifests may hold those edits: the log has to list them in any case.
            index = union_of_coordinates([adopted.index, edits.take(inside).index])
            adopted = replace(adopted, index=index)
        before = self.adopted.get(node.id)
        self.adopted[node.id] = adopted if before is None else before.then(adopted)

    def changed_chunks(self) -> dict[NodeId, NDArray[np.uint32]]:
        """The coordinates of all chunks written or deleted, by array."""
        changed = {key: edits.index for key, edits in self.edit_columns().items()}
        for key, adopted in self.adopted.items():
            parts = [adopted.index, *([changed[key]] if key in changed else [])]
            changed[key] = union_of_coordinates(parts)
        return {key: index for key, index in changed.items() if len(index)}

    def log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """The transaction log of a commit of these changes."""
        is_array = {node.id: node.array is not None for node in self.live()}

        def those(ids: Collection[NodeId], *, arrays: bool) -> frozenset[NodeId]:
            return frozenset(node_id for node_id in ids if is_array[node_id] == arrays)

        def gone(*, arrays: bool) -> frozenset[NodeId]:
            return frozenset(key for key, node in self.deleted.items() if node.is_array == arrays)

        return TransactionLog(
            id=snapshot_id,
            new_groups=those(self.created, arrays=False),
            new_arrays=those(self.created, arrays=True),
            deleted_groups=gone(arrays=False),
            deleted_arrays=gone(arrays=True),
            updated_groups=those(self.updated, arrays=False),
            updated_arrays=those(self.updated, arrays=True),
            updated_chunks=self.changed_chunks(),
            moves=tuple(move for move in self.moves.values() if move.source != move.target),
        )


class View:
    """The nodes of a snapshot with changes over them."""

    def __init__(self, base: Snapshot, changes: ChangeSet) -> None:
        self.base = base
        self.changes = changes
        self._manifests: dict[NodeId, ManifestRefs] = {}

    def node(self, path: str) -> Node | None:
        """The group or array at a path; an array's manifests are those of the base."""
        if path in self.changes.nodes:
            node = self.changes.nodes[path]
            if node is None or node.array is None:
                return node
            return replace(node, array=replace(node.array, manifests=self.manifests(node)))
        row = self.base.nodes.row(path)
        if row is None:
            return None
        node = self.base.nodes[row]
        if node.array is None or node.id not in self.changes.adopted:
            return node
        return replace(node, array=replace(node.array, manifests=self.manifests(node)))

    def paths(self, below: str = "/") -> list[str]:
        """Paths of all nodes under `below`, itself left out, in byte order."""
        rows = self.base.nodes.below(below)
        chosen = np.arange(rows.start, rows.stop, dtype=np.int64)
        found = self.base.nodes.path.take(chosen).texts()
        if not self.changes.nodes:
            return found
        known = set(found)
        for path, node in self.changes.nodes.items():
            if node is None:
                known.discard(path)
            elif paths.is_descendant(path, below):
                known.add(path)
        return sorted(known, key=str.encode)

    def path_of(self, node_id: NodeId) -> str | None:
        """Where a node stands now; None if it is gone."""
        for node in self.changes.live():
            if node.id == node_id:
                return node.path
        if node_id in self.changes.deleted:
            return None
        rows = rows_with_ids(self.base.nodes, [node_id])
        return (self.base.nodes.path[int(rows[0])] or b"").decode() if len(rows) else None

    def manifests(self, node: Node) -> ManifestRefs:
        """The manifests of an array: the base's, whatever its path there, and those adopted."""
        return self._with_adopted(node, self._of_base(node))

    def _of_base(self, node: Node) -> ManifestRefs:
        rank = 0 if node.array is None else len(node.array.shape)
        if node.id in self.changes.created:
            return ManifestRefs.none(rank)
        if node.id not in self._manifests:
            rows = rows_with_ids(self.base.nodes, [node.id])
            self._manifests[node.id] = (
                self.base.nodes.manifests(int(rows[0])) if len(rows) else ManifestRefs.none(rank)
            )
        return self._manifests[node.id]

    def _with_adopted(self, node: Node, manifests: ManifestRefs) -> ManifestRefs:
        adopted = self.changes.adopted.get(node.id)
        if adopted is None:
            return manifests
        kept = outside_cells(manifests, adopted.sizes, adopted.cells)
        return joined_manifests([kept, adopted.manifests])


def rows_with_ids(nodes: Nodes, ids: Collection[NodeId]) -> NDArray[np.int64]:
    """Rows of the nodes that have one of these ids, in row order."""
    if not ids:
        return np.zeros(0, np.int64)
    wanted = np.frombuffer(b"".join(node_id.raw for node_id in ids), np.uint8)
    return np.flatnonzero(np.isin(as_keys(nodes.id), as_keys(wanted.reshape(-1, NodeId.SIZE))))


def without_manifests(node: Node) -> Node:
    if node.array is None or not len(node.array.manifests):
        return node
    none = ManifestRefs.none(len(node.array.shape))
    return replace(node, array=replace(node.array, manifests=none))


def grid(array: ArrayData) -> NDArray[np.uint32]:
    """Chunks along each dimension."""
    return np.array([dimension.num_chunks for dimension in array.shape], np.uint32)
