"""What changed between two snapshots, told by path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.changes import rows_with_ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.ids import NodeId
    from icefloe.format.nodes import Nodes
    from icefloe.format.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Diff:
    """Paths of what is new, gone or changed; a node that came and went again is in no list."""

    new_groups: frozenset[str] = frozenset()
    new_arrays: frozenset[str] = frozenset()
    deleted_groups: frozenset[str] = frozenset()
    deleted_arrays: frozenset[str] = frozenset()
    updated_groups: frozenset[str] = frozenset()
    updated_arrays: frozenset[str] = frozenset()
    chunk_index: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict)
    """By array, the (n, dimensions) coordinates of chunks written or deleted, sorted."""
    moved_nodes: tuple[tuple[str, str], ...] = ()

    @property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """The coordinates as lists, which `chunk_index` has as columns."""
        return {path: index.tolist() for path, index in self.chunk_index.items()}

    def is_empty(self) -> bool:
        return not any(getattr(self, name) for name in Diff.__slots__)

    def __repr__(self) -> str:
        lines = [
            f"{name.replace('_', ' ')}: {', '.join(sorted(paths))}"
            for name in Diff.__slots__
            if name not in ("chunk_index", "moved_nodes") and (paths := getattr(self, name))
        ]
        lines += [f"updated chunks of {path}: {len(at)}" for path, at in self.chunk_index.items()]
        lines += [f"moved: {source} -> {target}" for source, target in self.moved_nodes]
        return "\n".join(["<icefloe.Diff>", *(f"  {line}" for line in lines)])


def tell(log: TransactionLog, places: Mapping[NodeId, str]) -> Diff:
    """A log in words of paths, for the nodes that have one in `places`."""

    def named(ids: Iterable[NodeId]) -> frozenset[str]:
        return frozenset(places[node_id] for node_id in ids if node_id in places)

    new = log.new_groups | log.new_arrays
    gone = log.deleted_groups | log.deleted_arrays
    return Diff(
        new_groups=named(log.new_groups - gone),
        new_arrays=named(log.new_arrays - gone),
        deleted_groups=named(log.deleted_groups - new),
        deleted_arrays=named(log.deleted_arrays - new),
        updated_groups=named(log.updated_groups - gone - new),
        updated_arrays=named(log.updated_arrays - gone - new),
        chunk_index={
            places[node_id]: index
            for node_id, index in log.updated_chunks.items()
            if node_id in places and node_id not in gone
        },
        moved_nodes=tuple((move.source, move.target) for move in log.moves),
    )


def between(log: TransactionLog, before: Nodes, after: Nodes) -> Diff:
    """A log in words of paths: those after it, and those before it for what is gone."""
    ids = ids_in(log)
    return tell(log, places_of(before, ids) | places_of(after, ids))


def places_of(nodes: Nodes, ids: Collection[NodeId]) -> dict[NodeId, str]:
    """Where nodes stand, for those of the ids that are there."""
    rows = rows_with_ids(nodes, ids)
    texts = nodes.path.take(rows).texts()
    return {nodes[row].id: text for row, text in zip(rows.tolist(), texts, strict=True)}


def ids_in(log: TransactionLog) -> set[NodeId]:
    """Every node that a log speaks of."""
    return {
        *log.new_groups,
        *log.new_arrays,
        *log.deleted_groups,
        *log.deleted_arrays,
        *log.updated_groups,
        *log.updated_arrays,
        *log.updated_chunks,
    }
