"""Write FlatBuffers by column: tables of one shape become fixed-size records in one numpy array.

Blocks are laid out from the front: a table before what it points to, so that all offsets run
forward. Rows that hold the same set of fields share a vtable and a block of records; short vectors
of one length lie inside the record, which keeps their offsets constant and the file small once
compressed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.format.layout import Field, Kind, Table
from icefloe.format.ragged import Bytes, Ints, Ragged, copy_runs, rows_by_value, starts

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        InvalidInputError: it would exceed what FlatBuffers can address.
    """
    writer = _Writer()
    start = writer.allocate(8, 8)
    (position,) = writer.tables(root)
    block = writer.block(start, 8)
    block[:4].view("<u4")[0] = position
    block[4:] = np.frombuffer(identifier, np.uint8)
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


@dataclass(slots=True)
class _Writer:
    """Blocks of bytes with their final positions."""

    size: int = 0
    blocks: list[tuple[int, Bytes]] = field(default_factory=list)
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

    def block(self, position: int, size: int) -> Bytes:
        data = np.zeros(size, np.uint8)
        self.blocks.append((position, data))
        return data

    def finish(self) -> Bytes:
        out = np.zeros(self.size + -self.size % 8, np.uint8)
        for position, data in self.blocks:
            out[position : position + len(data)] = data
        return out

    def tables(self, rows: TableRows) -> Ints:
        """Write tables with all that they point to; their positions."""
        slotted = [
            part
            for layout in rows.table.fields.values()
            if layout.name in rows.columns
            for part in _slots_of(layout, rows.columns[layout.name])
        ]
        position = np.zeros(rows.count, np.int64)
        records: list[tuple[Any, NDArray[Any], list[_Slotted]]] = []
        for pattern, chosen in rows_by_value(_patterns(slotted, rows.count)):
            parts = [part for bit, part in enumerate(slotted) if pattern >> bit & 1]
            count = len(position[chosen])
            record = self._records(parts, rows.table.slots, count)
            position[chosen] = record[0]
            records.append((chosen, record[1], parts))
        for part in slotted:
            self._fill(part, position, records)
        return position

    def _records(self, parts: list[_Slotted], slots: int, count: int) -> tuple[Ints, NDArray[Any]]:
        """Reserve the records of one shape; their positions and a structured view on them."""
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
        # A zero-width field (an empty embedded vector) has no numpy type: leave it out.
        kept = [i for i, form in enumerate(formats) if form != "V0"]
        dtype = np.dtype(
            {
                "names": [names[i] for i in kept],
                "formats": [formats[i] for i in kept],
                "offsets": [offsets[i] for i in kept],
                "itemsize": stride,
            }
        )
        record = self.block(start, stride * count).view(dtype)
        position = start + stride * np.arange(count, dtype=np.int64)
        record["vtable"] = position - vtable_at
        return position, record

    def _vtable(self, data: bytes) -> int:
        if data not in self.vtables:
            position = self.allocate(len(data), 4)
            self.block(position, len(data))[:] = np.frombuffer(data, np.uint8)
            self.vtables[data] = position
        return self.vtables[data]

    def _fill(
        self,
        part: _Slotted,
        position: Ints,
        records: list[tuple[Any, NDArray[Any], list[_Slotted]]],
    ) -> None:
        """Write one field of all records, and what it points to."""
        name = str(part.field.slot)
        target = None
        if not (part.embedded or part.dtype.kind == "V" or isinstance(part.column, np.ndarray)):
            target = self._targets(part)
        for chosen, record, parts in records:
            if all(other is not part for other in parts):
                continue
            if target is not None:
                at = position[chosen] + record.dtype.fields[name][1]  # type: ignore[index]
                record[name] = target[chosen] - at
            elif part.embedded and isinstance(part.column, Ragged):
                _embed(part, part.column.take(chosen), record)
            elif isinstance(part.column, Structs):
                width = part.dtype.itemsize
                values = np.ascontiguousarray(part.column.values[chosen])
                record[name] = values.view(f"V{width}").reshape(-1)
            elif isinstance(part.column, np.ndarray):
                record[name] = part.column[chosen]

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
        column = column.take(present)
        chosen, places = column.distinct_places()
        rows = column.take(chosen)
        size = rows.length + (4 + terminated)
        size += -size % alignment
        start = self.allocate(int(size.sum()), alignment, shift=4)
        at = starts(size)
        block = self.block(start, int(size.sum()))
        block.view("<u4")[at // 4] = rows.length // layout.dtype.itemsize
        copy_runs(block, at + 4, rows.data, rows.start, rows.length)
        target = np.full(len(present), -1, np.int64)
        target[present] = (start + at)[places]
        return target

    def lists(self, column: Lists) -> Ints:
        """Write vectors of offsets and their items; positions, -1 where absent."""
        count = np.maximum(column.count, 0)
        size = np.where(count > 0, 4 + 4 * count, 0)
        empty = -1
        if bool((column.count == 0).any()):
            # One empty vector serves all rows.
            empty = self.allocate(4, 4)
            self.block(empty, 4)
        start = self.allocate(int(size.sum()), 4)
        at = starts(size)
        block = self.block(start, int(size.sum())).view("<u4")
        filled = count > 0
        block[at[filled] // 4] = count[filled]
        within = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(starts(count), count)
        slot = np.repeat(at + 4, count) + 4 * within
        items = column.items
        if isinstance(items, Ragged):
            target = self.runs(items, _STRING, terminated=True)
        else:
            target = self.tables(items)
        block[slot // 4] = target - (start + slot)
        return np.where(column.count < 0, -1, np.where(filled, start + at, empty))


_STRING = Field("item", 0, Kind.STRING)


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
