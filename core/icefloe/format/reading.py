"""Read FlatBuffers by column: one numpy operation per field, whatever the number of tables.

Every offset is checked before it is followed, so hostile bytes end in FormatError, and the work
done is bounded by the size of the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import FormatError
from icefloe.format.ids import as_keys
from icefloe.format.layout import Field, Kind, Table
from icefloe.format.ragged import Bytes, Ints, Ragged, copy_runs, starts, windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARED = 2**26
"""Tables may share strings: all together, these may exceed the file by this many bytes."""


class Buffer:
    """A decompressed metadata file and what has been spent on reading it."""

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self.name = name
        self.size = len(data)
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        self._views: dict[str, NDArray[Any]] = {}
        # A table takes 4 bytes and the offset to it 4 more, unless a hostile writer shares tables.
        self._tables_left = self.size // 8 + 1
        self._bytes_left = 2 * self.size + _SHARED
        self.unknown: set[str] = set()
        """Tables with fields newer than our schemas: readable, but a rewrite would lose them."""

    def fail(self, reason: str) -> FormatError:
        return FormatError(f"{self.name}: {reason}", kind="invalid-flatbuffer")

    def root(self, table: Table) -> Tables:
        if self.size < 8:
            raise self.fail(f"{self.size} bytes are too few for a FlatBuffer")
        zero = np.zeros(1, np.int64)
        return Tables(self, table, zero + self.read(zero, np.dtype("<u4"), "root offset"))

    def read(self, position: Ints, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
        """The scalars at these byte positions; 32-bit and smaller ones as int64."""
        width = dtype.itemsize
        self.check(position, width, width, what)
        view = self._views.get(dtype.str)
        if view is None:
            view = np.frombuffer(self.bytes, dtype, self.size // width)
            self._views[dtype.str] = view
        values = view[position // width if width > 1 else position]
        return values.astype(np.int64) if width < 8 else values

    def check(self, position: Ints, width: int | Ints, alignment: int, what: str) -> None:
        """Refuse positions outside the buffer or misaligned, as the official reader does."""
        if not len(position):
            return
        # Its sign is that of the least position, its low bits are set if those of any are.
        bits = int(np.bitwise_or.reduce(position))
        end = position.max() + width if isinstance(width, int) else (position + width).max()
        if bits < 0 or int(end) > self.size:
            raise self.fail(f"{what} points outside the file")
        if bits & (alignment - 1):
            raise self.fail(f"{what} is misaligned")

    def check_utf8(self, column: Ragged, what: str) -> None:
        present = column.take(column.present)
        if present.is_ascii_around():
            return
        distinct = present.take(present.distinct_places()[0])
        size = distinct.length
        # A zero byte after each string: then the whole is UTF-8 exactly if every string is.
        joined = np.zeros(int(size.sum()) + len(size), np.uint8)
        copy_runs(joined, starts(size + 1), distinct.data, distinct.start, size)
        if joined.size and int(joined.max()) >= 0x80:
            try:
                joined.tobytes().decode()
            except UnicodeDecodeError:
                raise self.fail(f"{what} is not UTF-8") from None

    def spend(self, *, tables: int = 0, data: int = 0, what: str) -> None:
        self._tables_left -= tables
        self._bytes_left -= data
        if self._tables_left < 0 or self._bytes_left < 0:
            raise self.fail(f"{what} claims more than the file can hold")


def ids_ascend(raw: Bytes) -> bool:
    """Whether (n, size) ids ascend strictly by their bytes, as files list them."""
    keys = as_keys(raw)
    return bool((keys[:-1] < keys[1:]).all())


class Tables:
    """Tables of one kind, in order; its methods give one column each."""

    def __init__(self, buffer: Buffer, table: Table, position: Ints) -> None:
        self.buffer = buffer
        self.table = table
        self.position = position
        buffer.spend(tables=len(position), what=table.name)
        offset = buffer.read(position, np.dtype("<i4"), f"a {table.name}")
        vtable = position - offset
        if len(vtable) and bool((vtable == vtable[0]).all()):
            # One vtable for all, the common case: its offsets broadcast.
            vtable = vtable[:1]
        self._vtable = vtable
        self._vtable_size = buffer.read(vtable, np.dtype("<u2"), f"the vtable of a {table.name}")
        if len(vtable) and (int(self._vtable_size.min()) < 4 or (self._vtable_size & 1).any()):
            raise buffer.fail(f"the vtable of a {table.name} has no valid size")
        buffer.check(vtable, self._vtable_size, 2, f"the vtable of a {table.name}")
        self._note_unknown()

    def __len__(self) -> int:
        return len(self.position)

    def _note_unknown(self) -> None:
        size = int(self._vtable_size.max()) if len(self._vtable_size) else 0
        for slot in range(self.table.slots, (size - 4) // 2):
            if self._slot(slot).any():
                self.buffer.unknown.add(self.table.name)
                return

    def _slot(self, slot: int) -> Ints:
        """The field's offset in each table, 0 where absent; one element if all have the same."""
        at = 4 + 2 * slot
        known = self._vtable_size > at
        if bool(known.all()):
            return self.buffer.read(self._vtable + at, np.dtype("<u2"), "a vtable")
        offsets = np.zeros(len(self._vtable), np.int64)
        offsets[known] = self.buffer.read(self._vtable[known] + at, np.dtype("<u2"), "a vtable")
        return offsets

    def _what(self, field: Field) -> str:
        return f"{self.table.name}.{field.name}"

    def _places(
        self, field: Field, slot: int | None = None
    ) -> tuple[Ints, NDArray[np.bool_] | None]:
        """Positions of the field where present, and the mask of presence (None: everywhere)."""
        offsets = self._slot(field.slot if slot is None else slot)
        if len(offsets) and bool((offsets != 0).all()):
            return self.position + offsets, None
        present = np.broadcast_to(offsets != 0, self.position.shape)
        if field.required and len(self.position):
            raise self.buffer.fail(f"{self._what(field)} is required and missing")
        return (self.position + offsets)[present], present

    def _spread(
        self, values: NDArray[Any], present: NDArray[np.bool_] | None, default: int
    ) -> NDArray[Any]:
        if present is None:
            return values
        column = np.full((len(self), *values.shape[1:]), default, values.dtype)
        column[present] = values
        return column

    def has(self, name: str) -> NDArray[np.bool_]:
        _, present = self._places(self.table.fields[name])
        return np.ones(len(self), np.bool_) if present is None else present

    def scalar(self, name: str) -> NDArray[Any]:
        field = self.table.fields[name]
        places, present = self._places(field)
        values = self.buffer.read(places, np.dtype(field.dtype), self._what(field))
        return self._spread(values, present, field.default).astype(field.dtype, copy=False)

    def struct(self, name: str) -> Bytes:
        """The struct's bytes, one row a table; zeros where absent."""
        field = self.table.fields[name]
        places, present = self._places(field)
        width = field.dtype.itemsize
        self.buffer.check(places, width, field.alignment, self._what(field))
        if not len(places):
            return np.zeros((len(self), width), np.uint8)
        values = windows(self.buffer.bytes, width)[places].view(np.uint8).reshape(-1, width)
        return self._spread(values, present, 0)

    def vector(self, name: str, *, may_share: bool = False) -> Ragged:
        """A vector of scalars or structs, or a string unchecked: its bytes.

        Args:
            name: the field.
            may_share: tables may well point to one vector, so count it once against the budget.
        """
        field = self.table.fields[name]
        places, present = self._places(field)
        start, count = self._follow(places, field)
        length = count * field.dtype.itemsize
        self.buffer.check(start, length, 1, self._what(field))
        column = Ragged(
            self.buffer.bytes,
            self._spread(start, present, 0),
            self._spread(length, present, -1),
        )
        spent = length
        if may_share:
            spent = length[Ragged(self.buffer.bytes, start, length).distinct_places()[0]]
        self.buffer.spend(data=int(spent.sum()), what=self._what(field))
        return column

    def text(self, name: str, *, may_share: bool = False) -> Ragged:
        """A string field, checked to be UTF-8."""
        column = self.vector(name, may_share=may_share)
        self.buffer.check_utf8(column, self._what(self.table.fields[name]))
        return column

    def _follow(self, places: Ints, field: Field) -> tuple[Ints, Ints]:
        """Where the vectors' items begin, and how many there are."""
        what = self._what(field)
        at = places + self.buffer.read(places, np.dtype("<u4"), what)
        return at + 4, self.buffer.read(at, np.dtype("<u4"), what)

    def _items(self, name: str) -> tuple[Ints, Ints]:
        """Lengths of the vectors of offsets (-1: absent), and where all offsets lead."""
        field = self.table.fields[name]
        places, present = self._places(field)
        start, count = self._follow(places, field)
        self.buffer.check(start, count * 4, 4, self._what(field))
        total = int(count.sum())
        self.buffer.spend(data=4 * total, what=self._what(field))
        within = np.arange(total, dtype=np.int64) - np.repeat(starts(count), count)
        at = np.repeat(start, count) + 4 * within
        target = at + self.buffer.read(at, np.dtype("<u4"), self._what(field))
        return self._spread(count, present, -1), target

    def tables(self, name: str) -> tuple[Ints, Tables]:
        """A vector of tables: how many each table holds (-1: absent), and all end to end."""
        count, target = self._items(name)
        return count, Tables(self.buffer, self.table.fields[name].tables[0], target)

    def strings(self, name: str) -> tuple[Ints, Ragged]:
        """A vector of strings: how many each table holds (-1: absent), and all end to end."""
        field = self.table.fields[name]
        count, target = self._items(name)
        self.buffer.spend(tables=len(target), what=self._what(field))
        length = self.buffer.read(target, np.dtype("<u4"), self._what(field))
        self.buffer.check(target + 4, length, 1, self._what(field))
        self.buffer.spend(data=int(length.sum()), what=self._what(field))
        column = Ragged(self.buffer.bytes, target + 4, length)
        self.buffer.check_utf8(column, self._what(field))
        return count, column

    def child(self, name: str) -> tuple[NDArray[np.bool_], Tables]:
        """A single table: the mask of presence, and the tables that are there."""
        field = self.table.fields[name]
        places, present = self._places(field)
        target = places + self.buffer.read(places, np.dtype("<u4"), self._what(field))
        mask = np.ones(len(self), np.bool_) if present is None else present
        return mask, Tables(self.buffer, field.tables[0], target)

    def union(self, name: str) -> tuple[Bytes, dict[int, tuple[Ints, Tables]]]:
        """A union: each table's tag (0: absent); for each tag in use, its rows and their tables.

        A tag that the schema does not know is left out of the dictionary and noted as unknown.
        """
        field = self.table.fields[name]
        if field.kind is not Kind.UNION:
            raise TypeError(f"{self._what(field)} is not a union")
        tag_places, tag_present = self._places(field, field.slot - 1)
        tags = self._spread(
            self.buffer.read(tag_places, np.dtype("u1"), self._what(field)), tag_present, 0
        )
        places, present = self._places(field)
        if present is not None and bool((present != (tags != 0)).any()):
            raise self.buffer.fail(f"{self._what(field)} has a tag without a table, or the reverse")
        targets = places + self.buffer.read(places, np.dtype("<u4"), self._what(field))
        where = self._spread(targets, present, -1)
        members: dict[int, tuple[Ints, Tables]] = {}
        for tag in np.unique(tags).tolist():
            if 0 < tag <= len(field.tables):
                rows = np.flatnonzero(tags == tag)
                members[tag] = (rows, Tables(self.buffer, field.tables[tag - 1], where[rows]))
            elif tag:
                self.buffer.unknown.add(self._what(field))
        if field.required and bool((tags == 0).any()):
            raise self.buffer.fail(f"{self._what(field)} is required and missing")
        return tags.astype(np.uint8), members
