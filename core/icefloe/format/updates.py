"""The ops log: what was done to a repository, one as a value, many as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from icefloe.format import wire
from icefloe.format.ids import SnapshotId
from icefloe.format.ragged import Bytes, Ragged, Rows
from icefloe.format.status import RepoStatus, read_status, status_rows
from icefloe.format.writing import Child, Column, Structs, TableRows, Union

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from icefloe.format.reading import Tables


class UpdateKind(IntEnum):
    """What happened. Values are the tags of the union."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One entry of the ops log; the fields that its kind has no use for are None.

    A number that no `UpdateKind` has comes from a newer writer; only its time and path are known.
    `backup_path` names the copy of the repo object whose newest update is this one.
    """

    kind: UpdateKind | int
    updated_at: int
    """Microseconds since the epoch."""
    backup_path: str | None = None
    name: str | None = None
    """The branch or tag."""
    previous_snap_id: SnapshotId | None = None
    new_snap_id: SnapshotId | None = None
    from_version: int | None = None
    to_version: int | None = None
    flag_id: int | None = None
    flag_value: bool | None = None
    """None where the explicit setting was removed."""
    status: RepoStatus | None = None


_MEMBERS = wire.UPDATE.fields["update_type"].tables
_NAME_FIELDS = ("name", "branch")
_ID_FIELDS = ("previous_snap_id", "new_snap_id")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Updates:
    """Updates as columns, newest first; what a row's kind has no use for holds nothing there."""

    kind: Bytes
    updated_at: NDArray[np.uint64]
    backup_path: Ragged
    name: Ragged
    previous_snap_id: Bytes
    new_snap_id: Bytes
    numbers: NDArray[np.uint16]
    """(n, 3): from and to version; or flag id, value and whether it is set."""
    statuses: tuple[RepoStatus | None, ...]
    """For rows of kind REPO_STATUS_CHANGED, in order."""

    @classmethod
    def of(cls, updates: Iterable[Update]) -> Self:
        rows = list(updates)
        return cls(
            kind=np.array([row.kind for row in rows], np.uint8),
            updated_at=np.array([row.updated_at for row in rows], np.uint64),
            backup_path=Ragged.of_text(row.backup_path for row in rows),
            name=Ragged.of_text(row.name for row in rows),
            previous_snap_id=_ids([row.previous_snap_id for row in rows]),
            new_snap_id=_ids([row.new_snap_id for row in rows]),
            numbers=np.array([_numbers(row) for row in rows], np.uint16).reshape(-1, 3),
            statuses=tuple(
                row.status for row in rows if row.kind == UpdateKind.REPO_STATUS_CHANGED
            ),
        )

    @classmethod
    def concat(cls, parts: Sequence[Updates]) -> Self:
        columns: dict[str, Any] = {}
        for name in cls.__slots__:
            values = [getattr(part, name) for part in parts]
            if name == "statuses":
                columns[name] = tuple(status for value in values for status in value)
            elif isinstance(values[0], Ragged):
                columns[name] = Ragged.concat(values)
            else:
                columns[name] = np.concatenate(values)
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Rows) -> Updates:
        statuses = np.empty(len(self), object)
        statuses[self.kind == UpdateKind.REPO_STATUS_CHANGED] = self.statuses
        columns: dict[str, Any] = {}
        for name in Updates.__slots__:
            value = getattr(self, name)
            if name == "statuses":
                changed = self.kind[rows] == UpdateKind.REPO_STATUS_CHANGED
                value = tuple(statuses[rows][changed].tolist())
            else:
                value = value.take(rows) if isinstance(value, Ragged) else value[rows]
            columns[name] = value
        return Updates(**columns)

    def __getitem__(self, row: int) -> Update:
        kind = int(self.kind[row])
        columns = _MEMBERS[kind - 1].fields if kind <= len(_MEMBERS) else {}
        first, second, third = (int(number) for number in self.numbers[row])
        has_versions = kind == UpdateKind.REPO_MIGRATED
        is_flag = kind == UpdateKind.FEATURE_FLAG_CHANGED
        status = None
        if kind == UpdateKind.REPO_STATUS_CHANGED:
            status = self.statuses[int((self.kind[:row] == kind).sum())]
        return Update(
            kind=UpdateKind(kind) if kind in set(UpdateKind) else kind,
            updated_at=int(self.updated_at[row]),
            backup_path=_text(self.backup_path[row]),
            name=_text(self.name[row]),
            previous_snap_id=_id(self.previous_snap_id[row], "previous_snap_id" in columns),
            new_snap_id=_id(self.new_snap_id[row], "new_snap_id" in columns),
            from_version=first if has_versions else None,
            to_version=second if has_versions else None,
            flag_id=first if is_flag else None,
            flag_value=bool(second) if is_flag and third else None,
            status=status,
        )

    def equals(self, other: Updates) -> bool:
        for name in Updates.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Ragged):
                same = mine.equals(theirs)
            else:
                same = mine == theirs if name == "statuses" else np.array_equal(mine, theirs)
            if not same:
                return False
        return True

    def rows(self) -> TableRows:
        """The tables to write."""
        members: dict[int, TableRows] = {}
        for tag in np.unique(self.kind).tolist():
            members[tag] = self._member_rows(tag)
        columns: dict[str, Column] = {
            "update_type": Union(self.kind, members),
            "updated_at": self.updated_at,
            "backup_path": self.backup_path,
        }
        return TableRows(wire.UPDATE, len(self), columns)

    def _member_rows(self, tag: int) -> TableRows:
        table = _MEMBERS[tag - 1]
        chosen = np.flatnonzero(self.kind == tag)
        columns: dict[str, Column] = {}
        numbers = iter(range(3))
        for name, layout in table.fields.items():
            if name in _NAME_FIELDS:
                columns[name] = self.name.take(chosen)
            elif name in _ID_FIELDS:
                columns[name] = Structs(getattr(self, name)[chosen])
            elif name == "status":
                present = np.array([status is not None for status in self.statuses], np.bool_)
                known = [status for status in self.statuses if status is not None]
                columns[name] = Child(present, status_rows(known))
            else:
                columns[name] = self.numbers[chosen, next(numbers)].astype(layout.dtype)
        return TableRows(table, len(chosen), columns)


def read_updates(updates: Tables) -> Updates:
    """The columns of a vector of updates."""
    count = len(updates)
    tags, members = updates.union("update_type")
    name = Ragged.absent(count)
    ids = {field: np.zeros((count, SnapshotId.SIZE), np.uint8) for field in _ID_FIELDS}
    numbers = np.zeros((count, 3), np.uint16)
    statuses: tuple[RepoStatus | None, ...] = ()
    for rows, tables in members.values():
        column = 0
        for field in tables.table.fields:
            if field in _NAME_FIELDS:
                text = tables.text(field)
                start, length = name.start.copy(), name.length.copy()
                start[rows], length[rows] = text.start, text.length
                name = Ragged(text.data, start, length)
            elif field in _ID_FIELDS:
                ids[field][rows] = tables.struct(field)
            elif field == "status":
                statuses = read_status(*tables.child(field))
            else:
                numbers[rows, column] = tables.scalar(field)
                column += 1
    return Updates(
        kind=tags,
        updated_at=updates.scalar("updated_at"),
        backup_path=updates.text("backup_path"),
        name=name,
        previous_snap_id=ids["previous_snap_id"],
        new_snap_id=ids["new_snap_id"],
        numbers=numbers,
        statuses=statuses,
    )


def _numbers(update: Update) -> tuple[int, int, int]:
    if update.kind == UpdateKind.FEATURE_FLAG_CHANGED:
        return update.flag_id or 0, int(bool(update.flag_value)), int(update.flag_value is not None)
    return update.from_version or 0, update.to_version or 0, 0


def _ids(ids: list[SnapshotId | None]) -> Bytes:
    size = SnapshotId.SIZE
    raw = b"".join(bytes(size) if item is None else item.raw for item in ids)
    return np.frombuffer(raw, np.uint8).reshape(-1, size)


def _id(raw: Bytes, present: bool) -> SnapshotId | None:
    return SnapshotId(raw.tobytes()) if present else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
