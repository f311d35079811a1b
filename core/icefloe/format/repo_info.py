"""The repo object: refs, history, status, config and ops log, in the one file that changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from icefloe.errors import AlreadyExistsError, NotFoundError
from icefloe.format import header, wire
from icefloe.format.ids import SnapshotId, as_keys
from icefloe.format.metadata import Json, decode_items, decode_value, encode_values, item_lists
from icefloe.format.nodes import item_rows
from icefloe.format.ragged import Bytes, Ints, Ragged, starts
from icefloe.format.reading import Buffer, Tables, ids_ascend
from icefloe.format.status import Availability, RepoStatus, read_status, status_rows
from icefloe.format.updates import Updates, read_updates
from icefloe.format.writing import Child, Column, Lists, Structs, TableRows, check_rewritable, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What the repo object knows of one snapshot."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    """Microseconds since the epoch."""
    message: str
    metadata: Mapping[str, Json] = field(default_factory=dict)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshots:
    """All snapshots as columns, sorted by id; parents are rows (-1: none)."""

    id: Bytes
    parent: NDArray[np.int32]
    flushed_at: NDArray[np.uint64]
    message: Ragged
    metadata_count: Ints
    """Metadata items; -1 where the vector is absent."""
    metadata_name: Ragged
    metadata_value: Ragged
    pruned: Ragged
    """12-byte ids of transaction logs, end to end; absent where there are none."""

    @classmethod
    def of(cls, infos: list[SnapshotInfo]) -> Self:
        rows = sorted(infos, key=lambda info: info.id.raw)
        number = {info.id: row for row, info in enumerate(rows)}
        items = [encode_values(info.metadata) for info in rows]
        return cls(
            id=np.frombuffer(b"".join(info.id.raw for info in rows), np.uint8).reshape(-1, 12),
            parent=np.array(
                [-1 if info.parent_id is None else number[info.parent_id] for info in rows],
                np.int32,
            ),
            flushed_at=np.array([info.flushed_at for info in rows], np.uint64),
            message=Ragged.of_text(info.message for info in rows),
            metadata_count=np.array([len(names) for names, _ in items], np.int64),
            metadata_name=Ragged.concat([names for names, _ in items]),
            metadata_value=Ragged.concat([values for _, values in items]),
            pruned=Ragged.of(_pruned_bytes(info) for info in rows),
        )

    def __len__(self) -> int:
        return len(self.id)

    def row(self, snapshot_id: SnapshotId) -> int | None:
        """The row of a snapshot, by binary search."""
        row = self._place(snapshot_id)
        return row if row < len(self) and self.id[row].tobytes() == snapshot_id.raw else None

    def _place(self, snapshot_id: SnapshotId) -> int:
        keys = as_keys(self.id)
        return int(np.searchsorted(keys, np.frombuffer(snapshot_id.raw, keys.dtype))[0])

    def id_at(self, row: int) -> SnapshotId:
        return SnapshotId(self.id[row].tobytes())

    def __getitem__(self, row: int) -> SnapshotInfo:
        parent = int(self.parent[row])
        pruned = self.pruned[row] or b""
        return SnapshotInfo(
            self.id_at(row),
            None if parent < 0 else self.id_at(parent),
            int(self.flushed_at[row]),
            (self.message[row] or b"").decode(),
            self.metadata(row),
            tuple(SnapshotId(pruned[at : at + 12]) for at in range(0, len(pruned), 12)),
        )

    def metadata(self, row: int) -> dict[str, Json]:
        rows = item_rows(self.metadata_count, np.array([row], np.int64))
        names, values = self.metadata_name.take(rows), self.metadata_value.take(rows)
        place = f"repo: snapshot {self.id_at(row)}"
        return {
            name: decode_value(value or b"", spec_version=2, name=f"{place}: metadata {name!r}")
            for name, value in zip(names.texts(), values.tolist(), strict=True)
        }

    def rows_with(self, name: str, value: Json) -> Ints:
        """Rows whose metadata has this item, found without decoding all others."""
        names, values = encode_values({name: value})
        hits = self.metadata_name.rows_equal(names[0] or b"")
        return self._owners(hits[self.metadata_value.take(hits).rows_equal(values[0] or b"")])

    def rows_named(self, name: str) -> Ints:
        """Rows whose metadata has an item of this name."""
        return self._owners(self.metadata_name.rows_equal(name.encode()))

    def _owners(self, items: Ints) -> Ints:
        owner = np.repeat(np.arange(len(self)), np.maximum(self.metadata_count, 0))
        return owner[items]

    def take(self, rows: Ints, parent: NDArray[np.int32]) -> Snapshots:
        """These rows with new parents, given as rows of the result."""
        items = item_rows(self.metadata_count, rows)
        return Snapshots(
            id=self.id[rows],
            parent=parent,
            flushed_at=self.flushed_at[rows],
            message=self.message.take(rows),
            metadata_count=self.metadata_count[rows],
            metadata_name=self.metadata_name.take(items),
            metadata_value=self.metadata_value.take(items),
            pruned=self.pruned.take(rows),
        )

    def equals(self, other: Snapshots) -> bool:
        for name in Snapshots.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            same = mine.equals(theirs) if isinstance(mine, Ragged) else np.array_equal(mine, theirs)
            if not same:
                return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Refs:
    """Branches or tags as columns, sorted by name; targets are rows of `Snapshots`."""

    name: Ragged
    snapshot: NDArray[np.uint32]

    @classmethod
    def of(cls, refs: Mapping[str, int]) -> Self:
        names = sorted(refs, key=str.encode)
        return cls(Ragged.of_text(names), np.array([refs[name] for name in names], np.uint32))

    def __len__(self) -> int:
        return len(self.snapshot)

    def todict(self) -> dict[str, int]:
        return dict(zip(self.name.texts(), self.snapshot.tolist(), strict=True))

    def equals(self, other: Refs) -> bool:
        return self.name.equals(other.name) and np.array_equal(self.snapshot, other.snapshot)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RepoInfo:
    """A repo object. Values are never changed: each method gives a new one."""

    branches: Refs
    tags: Refs
    deleted_tags: Ragged
    snapshots: Snapshots
    status: RepoStatus
    updates: Updates
    """Newest first, never empty; the first has no backup path."""
    spec_version: int = 2
    metadata: Mapping[str, Json] | None = None
    repo_before_updates: str | None = None
    config: bytes | None = None
    """FlexBuffers, kept byte for byte unless somebody changes the configuration."""
    enabled_feature_flags: tuple[int, ...] | None = None
    disabled_feature_flags: tuple[int, ...] | None = None
    extra: bytes | None = None
    unknown: frozenset[str] = frozenset()

    def with_snapshot(self, info: SnapshotInfo) -> RepoInfo:
        """With one more snapshot, and all rows that move because of it adjusted.

        Raises:
            NotFoundError: the parent is not listed.
            AlreadyExistsError: the snapshot is listed.
        """
        old = self.snapshots
        at = old._place(info.id)
        if at < len(old) and old.id_at(at) == info.id:
            raise AlreadyExistsError(
                f"snapshot {info.id} is listed already", kind="snapshot-already-exists"
            )
        parent = -1
        if info.parent_id is not None:
            found = old.row(info.parent_id)
            if found is None:
                raise NotFoundError(
                    f"parent snapshot {info.parent_id} is not listed", kind="snapshot-not-found"
                )
            parent = found + (found >= at)
        names, values = encode_values(info.metadata)
        item = int(np.maximum(old.metadata_count[:at], 0).sum())
        message, metadata_name, metadata_value, pruned = insert(
            [
                (old.message, at, Ragged.of_text([info.message])),
                (old.metadata_name, item, names),
                (old.metadata_value, item, values),
                (old.pruned, at, Ragged.of([_pruned_bytes(info)])),
            ]
        )
        snapshots = Snapshots(
            id=np.insert(old.id, at, np.frombuffer(info.id.raw, np.uint8), axis=0),
            parent=np.insert(_shifted(old.parent, at), at, parent),
            flushed_at=np.insert(old.flushed_at, at, info.flushed_at),
            message=message,
            metadata_count=np.insert(old.metadata_count, at, len(names)),
            metadata_name=metadata_name,
            metadata_value=metadata_value,
            pruned=pruned,
        )
        return replace(
            self,
            snapshots=snapshots,
            branches=Refs(self.branches.name, _shifted(self.branches.snapshot, at)),
            tags=Refs(self.tags.name, _shifted(self.tags.snapshot, at)),
        )

    def equals(self, other: RepoInfo) -> bool:
        plain = (
            "status",
            "spec_version",
            "metadata",
            "repo_before_updates",
            "config",
            "enabled_feature_flags",
            "disabled_feature_flags",
            "extra",
        )
        columns = ("branches", "tags", "deleted_tags", "snapshots", "updates")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            getattr(self, name).equals(getattr(other, name)) for name in columns
        )


def insert(changes: Sequence[tuple[Ragged, int, Ragged]]) -> list[Ragged]:
    """Each column with its values before its row.

    Columns of one file share the file's buffer, so it is copied once for all of them.
    """
    pools = {id(part.data): part.data for column, _, values in changes for part in (column, values)}
    begins = starts(np.array([len(pool) for pool in pools.values()], np.int64))
    shift = dict(zip(pools, begins.tolist(), strict=True))
    data = np.concatenate(list(pools.values()))
    return [
        Ragged(
            data,
            np.insert(
                column.start + shift[id(column.data)], at, values.start + shift[id(values.data)]
            ),
            np.insert(column.length, at, values.length),
        )
        for column, at, values in changes
    ]


def _shifted[T: np.integer[Any]](rows: NDArray[T], at: int) -> NDArray[T]:
    """Row numbers after one row came in before `at`."""
    return rows + (rows >= at).astype(rows.dtype)


def _pruned_bytes(info: SnapshotInfo) -> bytes | None:
    return b"".join(item.raw for item in info.pruned_ancestor_tx_logs) or None


def encode(repo: RepoInfo, *, level: int = 1) -> bytes:
    """The file's bytes.

    Every update of a repository waits for this, and random ids fill most of it: level 3 would take
    half as long again for 4 % fewer bytes.
    """
    check_rewritable(repo.unknown, "the repo object")
    one = np.ones(1, np.int64)
    snapshots = repo.snapshots
    columns: dict[str, Column] = {
        "spec_version": np.array([repo.spec_version], np.uint8),
        "tags": Lists(one * len(repo.tags), _ref_rows(repo.tags)),
        "branches": Lists(one * len(repo.branches), _ref_rows(repo.branches)),
        "deleted_tags": Lists(one * len(repo.deleted_tags), repo.deleted_tags),
        "snapshots": Lists(
            one * len(snapshots),
            TableRows(
                wire.SNAPSHOT_INFO,
                len(snapshots),
                {
                    "id": Structs(snapshots.id),
                    "parent_offset": snapshots.parent,
                    "flushed_at": snapshots.flushed_at,
                    "message": snapshots.message,
                    "metadata": item_lists(
                        snapshots.metadata_count, snapshots.metadata_name, snapshots.metadata_value
                    ),
                    "pruned_ancestor_tx_logs": snapshots.pruned,
                },
            ),
        ),
        "status": Child(np.ones(1, np.bool_), status_rows([repo.status])),
        "latest_updates": Lists(one * len(repo.updates), repo.updates.rows()),
        "repo_before_updates": Ragged.of_text([repo.repo_before_updates]),
        "config": Ragged.of([repo.config]),
        "enabled_feature_flags": Ragged.of([_flag_bytes(repo.enabled_feature_flags)]),
        "disabled_feature_flags": Ragged.of([_flag_bytes(repo.disabled_feature_flags)]),
        "extra": Ragged.of([repo.extra]),
    }
    if repo.metadata is not None:
        names, values = encode_values(repo.metadata)
        columns["metadata"] = item_lists([len(names)], names, values)
    payload = write(TableRows(wire.REPO, 1, columns), wire.FILE_IDENTIFIER)
    return header.pack(payload, header.FileType.REPO_INFO, level=level)


def decode(data: bytes | memoryview, *, name: str = "repo") -> RepoInfo:
    """Read a repo object.

    Raises:
        FormatError: naming `name` and what is wrong.
    """
    _, payload = header.unpack(data, header.FileType.REPO_INFO, name=name)
    buffer = Buffer(payload, name)
    root = buffer.root(wire.REPO)
    _, tags = root.tables("tags")
    _, branches = root.tables("branches")
    _, deleted_tags = root.strings("deleted_tags")
    _, updates = root.tables("latest_updates")
    (status,) = read_status(*root.child("status"))
    metadata_count, metadata = root.tables("metadata")
    snapshots = _read_snapshots(root)
    before = root.text("repo_before_updates")[0]
    return RepoInfo(
        branches=_read_refs(branches, len(snapshots)),
        tags=_read_refs(tags, len(snapshots)),
        deleted_tags=deleted_tags,
        snapshots=snapshots,
        status=status or RepoStatus(Availability.ONLINE, 0),
        updates=read_updates(updates),
        spec_version=int(root.scalar("spec_version")[0]),
        metadata=decode_items(metadata, spec_version=2) if metadata_count[0] >= 0 else None,
        repo_before_updates=None if before is None else before.decode(),
        config=root.vector("config")[0],
        enabled_feature_flags=_read_flags(root.vector("enabled_feature_flags")[0]),
        disabled_feature_flags=_read_flags(root.vector("disabled_feature_flags")[0]),
        extra=root.vector("extra")[0],
        unknown=frozenset(buffer.unknown),
    )


def _ref_rows(refs: Refs) -> TableRows:
    return TableRows(wire.REF, len(refs), {"name": refs.name, "snapshot_index": refs.snapshot})


def _read_refs(refs: Tables, snapshots: int) -> Refs:
    targets = refs.scalar("snapshot_index")
    if len(targets) and int(targets.max()) >= snapshots:
        raise refs.buffer.fail("a Ref points past the list of snapshots")
    return Refs(refs.text("name"), targets)


def _read_snapshots(root: Tables) -> Snapshots:
    _, infos = root.tables("snapshots")
    count, items = infos.tables("metadata")
    parent = infos.scalar("parent_offset")
    flushed_at = infos.scalar("flushed_at")
    ids = infos.struct("id")
    if not ids_ascend(ids):
        raise root.buffer.fail("the snapshots do not ascend by id, each id once")
    if len(parent) and (int(parent.max()) >= len(infos) or int(parent.min()) < -1):
        raise root.buffer.fail("a SnapshotInfo points past the list of snapshots")
    if not _is_acyclic(parent, flushed_at):
        raise root.buffer.fail("a snapshot is its own ancestor")
    pruned = infos.vector("pruned_ancestor_tx_logs")
    return Snapshots(
        id=ids,
        parent=parent,
        flushed_at=flushed_at,
        message=infos.text("message"),
        metadata_count=count,
        metadata_name=items.text("name"),
        metadata_value=items.vector("value"),
        pruned=pruned.where(pruned.length != 0),
    )


def _is_acyclic(parent: NDArray[np.int32], flushed_at: NDArray[np.uint64]) -> bool:
    above = parent.astype(np.int64)
    if bool(((above < 0) | (flushed_at[above] < flushed_at)).all()):
        # Time runs backwards along every step, as honest writers see to.
        return True
    # Ancestors 1, 2, 4, ... steps away: a chain without a cycle has fewer steps than rows.
    for _ in range(len(above).bit_length()):
        above = np.where(above < 0, -1, above[above])
    return bool((above < 0).all())


def _flag_bytes(flags: tuple[int, ...] | None) -> bytes | None:
    return None if flags is None else np.array(sorted(flags), "<u2").tobytes()


def _read_flags(raw: bytes | None) -> tuple[int, ...] | None:
    return None if raw is None else tuple(sorted(np.frombuffer(raw, "<u2").tolist()))
