"""Write FlatBuffers by column: tables of one shape become fixed-size records in one numpy array.

Blocks are laid out from the front: a table before what it points to, so that all offsets run
forward. Rows that hold the same set of fields share a vtable and a block of records; short vectors
of one length lie inside the record, which keeps their offsets constant and the file small once
compressed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.format.layout import Field, Kind, Table
from icefloe.format.ragged import (
    Bytes,
    Ints,
    Ragged,
    Rows,
    copy_runs,
    copy_stretches,
    rows_by_value,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_SIZE = 2**31 - 1
"""FlatBuffers offsets have 32 bits, and the signed ones reach half as far."""
_MAX_EMBEDDED = 64
_OFFSET = np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """Tables to be written: columns of `count` rows by field name; fields left out are absent."""

    table: Table
    count: int
    columns: Mapping[str, Column]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A vector of tables or strings for each row: how many (-1: absent), and all end to end."""

    count: Ints
    items: TableRows | Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A single table for the rows in `present`."""

    present: NDArray[np.bool_]
    rows: TableRows


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """A table chosen by tag: for each tag in use, its tables in row order."""

    tags: Bytes
    members: Mapping[int, TableRows]


@dataclass(frozen=True, slots=True, eq=False)
class Structs:
    """Structs as rows of bytes, absent outside `present`."""

    values: Bytes
    present: NDArray[np.bool_] | None = None


type Column = NDArray[Any] | Structs | Ragged | Lists | Child | Union


def check_rewritable(unknown: frozenset[str], name: str) -> None:
    """Refuse to write anew what was read with fields of a newer schema: they would be lost.

    Raises:
        InvalidInputError: naming the file and the tables that hold such fields.
    """
    if unknown:
        raise InvalidInputError(
            f"{name} holds fields that this version of icefloe does not know "
            f"(in {', '.join(sorted(unknown))}); writing it anew would lose them: upgrade icefloe",
            kind="unknown-fields",
        )


def write(root: TableRows, identifier: bytes) -> Bytes:
    """The finished buffer of the one table in `root`.

    Raises:
        InvalidInputError: it would exceed what FlatBuffers can address, or a field that readers
            require is missing somewhere.
    """
    writer = _Writer()
    start = writer.allocate(8, 8)
    (position,) = writer.tables(root)
    writer.put(start, struct.pack("<I4s", position, identifier))
    return writer.finish()


@dataclass(slots=True)
class _Slotted:
    """One field of a record: where it lies and which rows have it."""

    field: Field
    column: Column
    dtype: np.dtype[Any]
    alignment: int
    present: NDArray[np.bool_] | None
    embedded: int = 0
    """Bytes of the vector that lies inside the record, its length prefix included."""

    @property
    def is_offset(self) -> bool:
        """Whether it points to something outside the record."""
        return not self.embedded and not isinstance(self.column, np.ndarray | Structs)


@dataclass(frozen=True, slots=True)
class _Records:
    """Tables with the same set of fields: their rows among all, and where and how they lie."""

    rows: Rows
    parts: list[_Slotted]
    vtable: int
    position: Ints
    dtype: np.dtype[Any]

    def fill(self, targets: Mapping[int, Ints], block: Bytes) -> None:
        """Write all fields; `targets` has the positions that an offset field points to."""
        record = block.view(self.dtype)
        record["vtable"] = self.position - self.vtable
        for part in self.parts:
            name = str(part.field.slot)
            match part.column:
                case np.ndarray():
                    record[name] = part.column[self.rows]
                case Structs(values=values):
                    chosen = np.ascontiguousarray(values[self.rows])
                    record[name] = chosen.view(f"V{part.dtype.itemsize}").reshape(-1)
                case Ragged() if part.embedded:
                    _embed(part, part.column.take(self.rows), record)
                case _:
                    at = self.position + int(self.dtype.fields[name][1])  # type: ignore[index]
                    record[name] = targets[part.field.slot][self.rows] - at


@dataclass(slots=True)
class _Writer:
    """Gives all things their places first; then one buffer of the right size is filled."""

    size: int = 0
    fills: list[tuple[int, int, Callable[[Bytes], None]]] = field(default_factory=list)
    vtables: dict[bytes, int] = field(default_factory=dict)

    def allocate(self, size: int, alignment: int, shift: int = 0) -> int:
        """Reserve a place whose position + shift is aligned."""
        position = self.size + -(self.size + shift) % alignment
        self.size = position + size
        if self.size > MAX_SIZE:
            raise InvalidInputError(
                "the metadata exceeds the 2 GiB that a FlatBuffer can address: "
                "write it in smaller parts",
                kind="too-large",
            )
        return position

    def fill(self, position: int, size: int, work: Callable[[Bytes], None]) -> None:
        """Have a place filled in the end; `work` gets its bytes, all zero."""
        self.fills.append((position, size, work))

    def put(self, position: int, data: bytes) -> None:
        def work(block: Bytes) -> None:
            block[:] = np.frombuffer(data, np.uint8)

        self.fill(position, len(data), work)

    def finish(self) -> Bytes:
        out = np.zeros(self.size + -self.size % 8, np.uint8)
        while self.fills:
            # What one fill holds is free before the next.
            position, size, work = self.fills.pop()
            work(out[position : position + size])
        return out

    def tables(self, rows: TableRows) -> Ints:
        """Write tables with all that they point to; their positions."""
        _check_required(rows)
        slotted = [
            part
            for layout in rows.table.fields.values()
            if layout.name in rows.columns
            for part in _slots_of(layout, rows.columns[layout.name])
        ]
        position = np.zeros(rows.count, np.int64)
        shapes: list[_Records] = []
        for pattern, chosen in rows_by_value(_patterns(slotted, rows.count)):
            parts = [part for bit, part in enumerate(slotted) if pattern >> bit & 1]
            records = self._records(chosen, parts, rows.table.slots, len(position[chosen]))
            if isinstance(chosen, slice):
                # All tables have one shape; a second copy of their positions would be large.
                position = records.position
            else:
                position[chosen] = records.position
            shapes.append(records)
        targets = {part.field.slot: self._targets(part) for part in slotted if part.is_offset}
        for records in shapes:
            size = len(records.position) * records.dtype.itemsize
            self.fill(int(records.position[0]), size, partial(records.fill, targets))
        return position

    def _records(self, rows: Rows, parts: list[_Slotted], slots: int, count: int) -> _Records:
        """Reserve the records of one shape."""
        ordered = sorted(parts, key=lambda part: -part.alignment)
        names, formats, offsets = ["vtable"], ["<i4"], [0]
        at, table_size = 4, 4
        vtable = np.zeros(2 + slots, "<u2")
        for part in ordered:
            at += -at % part.alignment
            names.append(str(part.field.slot))
            formats.append(part.dtype.str)
            offsets.append(at)
            vtable[2 + part.field.slot] = at
            at += part.dtype.itemsize
            table_size = at
        for part in ordered:
            if part.embedded:
                at += -at % 4
                names += [f"{part.field.slot}.count", f"{part.field.slot}.items"]
                formats += ["<u4", f"V{part.embedded - 4}"]
                offsets += [at, at + 4]
                at += part.embedded
        alignment = max([4, *(part.alignment for part in parts)])
        stride = at + -at % alignment
        vtable[0], vtable[1] = vtable.nbytes, table_size
        vtable_at = self._vtable(vtable.tobytes())
        start = self.allocate(stride * count, alignment)
        dtype = np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": stride}
        )
        position = start + stride * np.arange(count, dtype=np.int64)
        return _Records(rows, parts, vtable_at, position, dtype)

    def _vtable(self, data: bytes) -> int:
        if data not in self.vtables:
            self.vtables[data] = self.allocate(len(data), 4)
            self.put(self.vtables[data], data)
        return self.vtables[data]

    def _targets(self, part: _Slotted) -> Ints:
        """Write what the rows of an offset field point to; positions, -1 where absent."""
        match part.column:
            case Ragged():
                text = part.field.kind is Kind.STRING
                return self.runs(part.column, part.field, terminated=text)
            case Lists():
                return self.lists(part.column)
            case Child(present=present, rows=rows):
                target = np.full(len(present), -1, np.int64)
                target[present] = self.tables(rows)
                return target
            case Union(tags=tags, members=members):
                target = np.full(len(tags), -1, np.int64)
                for tag, rows in members.items():
                    target[tags == tag] = self.tables(rows)
                return target
            case _:
                raise TypeError(f"{part.field.name}: {type(part.column).__name__} has no targets")

    def runs(self, column: Ragged, layout: Field, *, terminated: bool) -> Ints:
        """Write vectors of scalars or strings, shared ones once; positions, -1 where absent."""
        alignment = max(4, layout.alignment)
        present = column.present
        if not bool(present.all()):
            column = column.take(present)
        chosen, places = column.distinct_places()
        is_shared = len(chosen) < len(column)
        rows = column.take(chosen) if is_shared else column
        size = rows.length + (3 + terminated + alignment) & -alignment
        at = starts(size)
        start = self.allocate(int(size.sum()), alignment, shift=4)

        def work(block: Bytes) -> None:
            copy_stretches(block, at + 4, rows.data, rows.start, rows.length)
            block.view("<u4")[at >> 2] = rows.length // layout.dtype.itemsize
            if terminated:
                block[at + 4 + rows.length] = 0

        self.fill(start, int(size.sum()), work)
        position = start + at
        target = np.full(len(present), -1, np.int64)
        target[present] = position[places] if is_shared else position
        return target

    def lists(self, column: Lists) -> Ints:
        """Write vectors of offsets and their items; positions, -1 where absent."""
        count = np.maximum(column.count, 0)
        is_filled = count > 0
        size = np.where(is_filled, 4 + 4 * count, 0)
        # One empty vector serves all rows.
        empty = self.allocate(4, 4) if bool((column.count == 0).any()) else -1
        start = self.allocate(int(size.sum()), 4)
        at = starts(size)
        items = column.items
        if isinstance(items, Ragged):
            target = self.runs(items, _STRING, terminated=True)
        else:
            target = self.tables(items)

        def work(block: Bytes) -> None:
            words = block.view("<u4")
            words[at[is_filled] >> 2] = count[is_filled]
            # In place: at its peak, a commit holds these numbers for every chunk that changed.
            slot = np.repeat(at + 4 - 4 * starts(count), count)
            slot += np.arange(0, 4 * len(target), 4, dtype=np.int64)
            offset = target - slot
            offset -= start
            slot >>= 2
            words[slot] = offset

        self.fill(start, int(size.sum()), work)
        return np.where(column.count < 0, -1, np.where(is_filled, start + at, empty))


_STRING = Field("item", 0, Kind.STRING)


def _check_required(rows: TableRows) -> None:
    """Readers refuse a table without a required field, so none is ever written."""
    for layout in rows.table.fields.values():
        if not layout.required or not rows.count:
            continue
        column = rows.columns.get(layout.name)
        if column is None or _presence(column) is not None:
            raise InvalidInputError(
                f"{rows.table.name}.{layout.name} is required and missing", kind="missing-field"
            )


def _slots_of(layout: Field, column: Column) -> list[_Slotted]:
    """The slots that a column takes: two for a union, none for a scalar that is all default."""
    present = _presence(column)
    match column:
        case np.ndarray():
            if bool((column == layout.default).all()):
                return []
            return [_Slotted(layout, column, np.dtype(layout.dtype), layout.alignment, present)]
        case Structs():
            return [_Slotted(layout, column, np.dtype(layout.dtype), layout.alignment, present)]
        case Union(tags=tags):
            tag = Field(layout.name, layout.slot - 1, Kind.SCALAR)
            return [
                _Slotted(tag, tags, np.dtype("u1"), 1, present),
                _Slotted(layout, column, _OFFSET, 4, present),
            ]
    embedded = _embedded_size(layout, column) if isinstance(column, Ragged) else 0
    return [_Slotted(layout, column, _OFFSET, 4, present, embedded)]


def _presence(column: Column) -> NDArray[np.bool_] | None:
    """Which rows have the field; None if all do."""
    match column:
        case np.ndarray():
            return None
        case Structs(present=present) | Child(present=present) | Ragged(present=present):
            mask = present
        case Lists(count=count):
            mask = count >= 0
        case Union(tags=tags):
            mask = tags > 0
    return None if mask is None or bool(mask.all()) else mask


def _embedded_size(layout: Field, column: Ragged) -> int:
    """What the vector takes inside the record, or 0 if it has to lie elsewhere.

    That needs one short length for all, and rows that do not share bytes.
    """
    if layout.kind is not Kind.VECTOR or layout.alignment > 4 or len(column) < 2:
        return 0
    length = int(column.length[0])
    if not 0 < length <= _MAX_EMBEDDED or bool((column.length != length).any()):
        return 0
    if layout.dtype.itemsize == 1 and len(column.distinct_places()[0]) < len(column):
        return 0
    return 4 + length + -length % 4


def _embed(part: _Slotted, column: Ragged, record: NDArray[Any]) -> None:
    fields = record.dtype.fields
    name = str(part.field.slot)
    if fields is None or not len(record):
        return
    width = int(column.length[0])
    record[name] = fields[f"{name}.count"][1] - fields[name][1]
    record[f"{name}.count"] = width // part.field.dtype.itemsize
    items = np.zeros((len(column), part.embedded - 4), np.uint8)
    copy_runs(
        items.reshape(-1),
        np.arange(len(column), dtype=np.int64) * (part.embedded - 4),
        column.data,
        column.start,
        column.length,
    )
    record[f"{name}.items"] = items.view(f"V{part.embedded - 4}").reshape(-1)


def _patterns(slotted: list[_Slotted], count: int) -> NDArray[np.int64]:
    """Which fields each row has, as bits."""
    always = sum(1 << bit for bit, part in enumerate(slotted) if part.present is None)
    patterns = np.full(count, always, np.int64)
    for bit, part in enumerate(slotted):
        if part.present is not None:
            patterns |= part.present.astype(np.int64) << bit
    return patterns
