"""Transaction logs: which nodes and chunks a snapshot changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format import header, wire
from icefloe.format.chunk_refs import is_ascending, sort_order
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.paths import segment_key
from icefloe.format.ragged import Ragged, starts
from icefloe.format.reading import Buffer, Tables, ids_ascend
from icefloe.format.writing import Column, Lists, Structs, TableRows, check_rewritable, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

ID_LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)


@dataclass(frozen=True, slots=True)
class Move:
    """A node that changed its path."""

    source: str
    target: str
    node_id: NodeId
    is_array: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TransactionLog:
    """A transaction log file. Its id is that of the snapshot it belongs to."""

    id: SnapshotId
    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, NDArray[np.uint32]] = field(default_factory=dict)
    """(n, dimensions) coordinates of chunks written or deleted, sorted, each once."""
    moves: tuple[Move, ...] = ()
    extra: bytes | None = None
    unknown: frozenset[str] = frozenset()

    def equals(self, other: TransactionLog) -> bool:
        names = ("id", *ID_LISTS, "moves", "extra")
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            and self.updated_chunks.keys() == other.updated_chunks.keys()
            and all(
                np.array_equal(coords, other.updated_chunks[node_id])
                for node_id, coords in self.updated_chunks.items()
            )
        )

    def merged(self, later: TransactionLog) -> TransactionLog:
        """Both logs as one, under this log's id: the union of every list."""
        chunks = dict(self.updated_chunks)
        for node_id, coords in later.updated_chunks.items():
            # The official client lists an array whose chunks it all left to others, without any.
            parts = [it for it in (chunks.get(node_id), coords) if it is not None and len(it)]
            chunks[node_id] = union_of_coordinates(parts) if parts else coords
        lists = {name: getattr(self, name) | getattr(later, name) for name in ID_LISTS}
        return replace(self, **lists, updated_chunks=chunks, moves=self.moves + later.moves)


def union_of_coordinates(parts: Iterable[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """All rows of the parts, sorted, each once."""
    given = list(parts)
    rows = given[0] if len(given) == 1 else np.concatenate(given)
    if is_ascending(rows):
        return rows
    rows = rows[sort_order(rows)]
    keep = np.ones(len(rows), np.bool_)
    keep[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[keep]


def encode(log: TransactionLog, *, level: int = 3) -> bytes:
    """The file's bytes."""
    check_rewritable(log.unknown, f"transaction log {log.id}")
    nodes = sorted(log.updated_chunks, key=lambda node_id: node_id.raw)
    coords = [log.updated_chunks[node_id] for node_id in nodes]
    chunk_rows = TableRows(
        wire.CHUNK_INDICES,
        sum(map(len, coords)),
        {"coords": Ragged.concat([Ragged.fixed(part) for part in coords])},
    )
    arrays = TableRows(
        wire.ARRAY_UPDATED_CHUNKS,
        len(nodes),
        {
            "node_id": Structs(_id_bytes(nodes)),
            "chunks": Lists(np.array([len(part) for part in coords], np.int64), chunk_rows),
        },
    )
    moves = sorted(log.moves, key=lambda move: segment_key(move.target))
    columns: dict[str, Column] = {
        "id": Structs(np.frombuffer(log.id.raw, np.uint8).reshape(1, -1)),
        "updated_chunks": Lists(np.array([len(nodes)], np.int64), arrays),
        "moved_nodes": Lists(
            np.array([len(moves)], np.int64),
            TableRows(
                wire.MOVE_OPERATION,
                len(moves),
                {
                    "from": Ragged.of_text(move.source for move in moves),
                    "to": Ragged.of_text(move.target for move in moves),
                    "node_id": Structs(_id_bytes([move.node_id for move in moves])),
                    "node_type": np.array([move.is_array for move in moves], np.uint8),
                },
            ),
        ),
        "extra": Ragged.of([log.extra]),
    }
    for name in ID_LISTS:
        ids = sorted(node_id.raw for node_id in getattr(log, name))
        columns[name] = Ragged.of([b"".join(ids)])
    payload = write(TableRows(wire.TRANSACTION_LOG, 1, columns), wire.FILE_IDENTIFIER)
    return header.pack(payload, header.FileType.TRANSACTION_LOG, level=level)


def decode(data: bytes | memoryview, *, name: str = "transaction log") -> TransactionLog:
    """Read a transaction log of spec version 1 or 2.

    Raises:
        FormatError: naming `name` and what is wrong.
    """
    _, payload = header.unpack(data, header.FileType.TRANSACTION_LOG, name=name)
    buffer = Buffer(payload, name)
    root = buffer.root(wire.TRANSACTION_LOG)
    lists = {field: _read_ids(root.vector(field)[0] or b"") for field in ID_LISTS}
    _, moves = root.tables("moved_nodes")
    return TransactionLog(
        id=SnapshotId(root.struct("id")[0].tobytes()),
        **lists,
        updated_chunks=_read_chunks(root),
        moves=_read_moves(moves),
        extra=root.vector("extra")[0],
        unknown=frozenset(buffer.unknown),
    )


def _id_bytes(ids: list[NodeId]) -> NDArray[np.uint8]:
    raw = b"".join(node_id.raw for node_id in ids)
    return np.frombuffer(raw, np.uint8).reshape(-1, NodeId.SIZE)


def _read_ids(raw: bytes) -> frozenset[NodeId]:
    size = NodeId.SIZE
    return frozenset(NodeId(raw[at : at + size]) for at in range(0, len(raw), size))


def _read_chunks(root: Tables) -> dict[NodeId, NDArray[np.uint32]]:
    _, arrays = root.tables("updated_chunks")
    counts, chunks = arrays.tables("chunks")
    coords = chunks.vector("coords")
    node_ids = arrays.struct("node_id")
    if not ids_ascend(node_ids):
        raise root.buffer.fail("the arrays do not ascend by node id, each id once")
    result: dict[NodeId, NDArray[np.uint32]] = {}
    first = starts(counts).tolist()
    for row, (start, count) in enumerate(zip(first, counts.tolist(), strict=True)):
        part = coords.take(slice(start, start + count))
        lengths = part.length
        width = int(lengths[0]) if count else 0
        if count and bool((lengths != width).any()):
            raise root.buffer.fail("coordinates of one array differ in their number of dimensions")
        values = part.values(np.dtype("<u4")).reshape(count, width // 4)
        result[NodeId(node_ids[row].tobytes())] = values
    return result


def _read_moves(moves: Tables) -> tuple[Move, ...]:
    if not len(moves):
        return ()
    sources, targets = moves.text("from"), moves.text("to")
    if not bool((sources.present & targets.present & moves.has("node_id")).all()):
        raise moves.buffer.fail("a MoveOperation lacks from, to or node_id")
    ids = moves.struct("node_id")
    types = moves.scalar("node_type").tolist()
    found = [
        Move(source, target, NodeId(ids[row].tobytes()), bool(types[row]))
        for row, (source, target) in enumerate(zip(sources.texts(), targets.texts(), strict=True))
    ]
    return tuple(sorted(found, key=lambda move: segment_key(move.target)))
