"""Ragged columns: many byte strings in one buffer, without a Python object for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

type Bytes = NDArray[np.uint8]
type Ints = NDArray[np.int64]
type Rows = NDArray[np.int64] | NDArray[np.bool_] | slice

_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def windows(data: Bytes, width: int) -> NDArray[np.void]:
    """Every run of `width` bytes, as overlapping items: indexing copies whole runs at once."""
    return np.ndarray((len(data) - width + 1,), f"V{width}", buffer=data, strides=(1,))


def rows_by_value(values: NDArray[np.integer[Any]]) -> Iterable[tuple[int, Rows]]:
    """Each distinct value with the rows that hold it."""
    if not len(values):
        return
    low, high = int(values.min()), int(values.max())
    if low == high:
        yield low, slice(None)
        return
    # numpy sorts 16-bit integers by radix, several times faster.
    keys = values.astype(np.uint16) if low >= 0 and high < 1 << 16 else values
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    for rows in np.split(order, cuts):
        yield int(values[rows[0]]), rows


def copy_runs(target: Bytes, at: Ints, source: Bytes, start: Ints, length: Ints) -> None:
    """Copy `source[start[i]:][:length[i]]` to `target[at[i]:]` for all i.

    One numpy call per distinct length; n of them imply n**2 / 2 bytes, so the calls stay few.
    """
    for width, rows in rows_by_value(length):
        if width > 0:
            windows(target, width)[at[rows]] = windows(source, width)[start[rows]]


def copy_stretches(target: Bytes, at: Ints, source: Bytes, start: Ints, length: Ints) -> None:
    """Copy as `copy_runs` does, but what lies between two runs in the source may come along.

    Runs that lie in the source as they shall lie in the target go many at a time: those of a file
    that is written anew.
    """
    shift = start - at
    first = np.flatnonzero(np.diff(shift, prepend=shift[:1] - 1))
    if 8 * len(first) >= len(at):
        copy_runs(target, at, source, start, length)
        return
    last = np.append(first[1:], len(at)) - 1
    copy_runs(target, at[first], source, start[first], at[last] + length[last] - at[first])


def starts(lengths: Ints) -> Ints:
    """Where each run begins when runs of these lengths lie end to end."""
    ends = np.cumsum(lengths)
    return ends - lengths


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A column of byte strings: row i is `data[start[i] : start[i] + length[i]]`.

    A length of -1 marks an absent value. Rows may share bytes, so a column with few distinct values
    costs little; nothing is copied until someone asks for `packed` or `tolist`.
    """

    data: Bytes
    start: Ints
    length: Ints

    @classmethod
    def of(cls, values: Iterable[bytes | None]) -> Self:
        rows = list(values)
        length = np.fromiter((-1 if v is None else len(v) for v in rows), np.int64, len(rows))
        data = np.frombuffer(b"".join(v for v in rows if v is not None), np.uint8)
        return cls(data, starts(np.maximum(length, 0)), length)

    @classmethod
    def of_text(cls, values: Iterable[str | None]) -> Self:
        return cls.of(None if value is None else value.encode() for value in values)

    @classmethod
    def fixed(cls, values: NDArray[Any]) -> Self:
        """One row for each item along the first axis: its bytes."""
        values = np.ascontiguousarray(values)
        width = values[:1].nbytes if len(values) else 0
        count = len(values)
        data = values.reshape(-1).view(np.uint8)
        start = np.arange(count, dtype=np.int64)
        start *= width
        return cls(data, start, np.broadcast_to(np.int64(width), count))

    @classmethod
    def absent(cls, count: int) -> Self:
        return cls(np.zeros(0, np.uint8), np.zeros(count, np.int64), np.full(count, -1, np.int64))

    @classmethod
    def concat(cls, columns: Sequence[Ragged]) -> Self:
        if len(columns) == 1:
            return cls(columns[0].data, columns[0].start, columns[0].length)
        shifts = starts(np.array([len(column.data) for column in columns], np.int64))
        return cls(
            np.concatenate([np.zeros(0, np.uint8), *(column.data for column in columns)]),
            np.concatenate(
                [np.zeros(0, np.int64)]
                + [column.start + shift for column, shift in zip(columns, shifts, strict=True)]
            ),
            np.concatenate([np.zeros(0, np.int64), *(column.length for column in columns)]),
        )

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, row: int) -> bytes | None:
        length = int(self.length[row])
        if length < 0:
            return None
        start = int(self.start[row])
        return self.data[start : start + length].tobytes()

    @property
    def present(self) -> NDArray[np.bool_]:
        return self.length >= 0

    def is_ascii_around(self) -> bool:
        """Whether the rows, all present, lie close together and all bytes about them are ASCII.

        Short strings one behind the other are so, with their lengths and padding.
        """
        if not len(self):
            return True
        around = self.data[int(self.start.min()) : int((self.start + self.length).max())]
        return len(around) <= 4 * int(self.length.sum()) and int(around.max(initial=0)) < 0x80

    def take(self, rows: Rows) -> Ragged:
        return Ragged(self.data, self.start[rows], self.length[rows])

    def where(self, mask: NDArray[np.bool_]) -> Ragged:
        """This column with the rows outside `mask` absent."""
        return Ragged(self.data, self.start, np.where(mask, self.length, -1))

    def tolist(self) -> list[bytes | None]:
        packed = self.packed()
        data = packed.data.tobytes()
        ends = packed.start + packed.length
        return [
            data[start:end] if end >= start else None
            for start, end in zip(packed.start.tolist(), ends.tolist(), strict=True)
        ]

    def texts(self) -> list[str]:
        """The rows as str; every row must be present and UTF-8."""
        return [(value or b"").decode() for value in self.tolist()]

    def packed(self) -> Ragged:
        """The same rows with bytes of their own, end to end in row order."""
        size = np.maximum(self.length, 0)
        start = starts(size)
        data = np.empty(int(size.sum()), np.uint8)
        copy_runs(data, start, self.data, self.start, size)
        return Ragged(data, start, self.length)

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """All rows end to end, as items of `dtype`."""
        return self.packed().data.view(dtype)

    def distinct_places(self) -> tuple[Ints, Ints]:
        """A first row for each distinct (start, length), and for each row the number of its place.

        Rows that share bytes by construction fall together; equal bytes in two places do not. If
        nothing is shared, the first rows are all rows in order.
        """
        each = np.arange(len(self), dtype=np.int64)
        if bool((self.start[1:] > self.start[:-1]).all()):
            # In order, so nothing is shared: how a writer without sharing lays strings out.
            return each, each
        span = len(self.data) + 1
        if span <= 8 * len(self):
            first = np.full(span, -1, np.int64)
            first[self.start[::-1]] = np.arange(len(self) - 1, -1, -1)
            rows = first[self.start]
            if np.array_equal(self.length[rows], self.length):
                chosen = first[first >= 0]
                if len(chosen) == len(self):
                    return each, each
                first[self.start[chosen]] = np.arange(len(chosen))
                return chosen, first[self.start]
        # np.unique, but done after the sort where nothing is shared; runs in order sort fast.
        key = self.start * (span + 1) + self.length
        order = np.argsort(key, kind="stable")
        key = key[order]
        is_first = np.ones(len(key), np.bool_)
        is_first[1:] = key[1:] != key[:-1]
        if bool(is_first.all()):
            return each, each
        codes = np.empty(len(key), np.int64)
        codes[order] = np.cumsum(is_first) - 1
        return order[is_first], codes

    def distinct(self) -> tuple[Ragged, Ints]:
        """The distinct values, each once, and for each row the number of its value."""
        chosen, places = self.distinct_places()
        column = self.take(chosen)
        codes = np.empty(len(column), np.int64)
        firsts: list[Ints] = []
        count = 0
        for width, rows in rows_by_value(column.length):
            row_ids = np.arange(len(column), dtype=np.int64)[rows]
            first, code = _distinct_of_width(column, row_ids, width)
            codes[row_ids] = code + count
            firsts.append(row_ids[first])
            count += len(first)
        order = np.concatenate([np.zeros(0, np.int64), *firsts])
        return column.take(order), codes[places]

    def is_ascending(self) -> bool:
        """Whether the rows, all present, ascend strictly by their bytes.

        May be False of rows that do, if some end in NUL or a few are far longer than the others.
        """
        width = int(self.length.max(initial=1)) or 1
        if width * len(self) > 8 * int(self.length.sum()) + 2**20:
            return False
        padded = np.zeros(width * len(self), np.uint8)
        at = np.arange(len(self), dtype=np.int64) * width
        copy_runs(padded, at, self.data, self.start, self.length)
        keys = padded.view(f"S{width}")
        return bool((keys[:-1] < keys[1:]).all())

    def rows_equal(self, value: bytes) -> Ints:
        """The rows that hold this value."""
        rows = np.flatnonzero(self.length == len(value))
        if not value or not len(rows):
            return rows
        items = windows(self.data, len(value))[self.start[rows]]
        same = items.view(np.uint8).reshape(len(rows), -1) == np.frombuffer(value, np.uint8)
        equal: Ints = rows[same.all(axis=1)]
        return equal

    def equals(self, other: Ragged) -> bool:
        if not np.array_equal(self.length, other.length):
            return False
        mine, theirs = self, other
        if int(np.maximum(self.length, 0).sum()) > len(self.data):
            # Rows share bytes: compare each pair of places once.
            pairs = self.distinct_places()[1] * len(self) + other.distinct_places()[1]
            rows = np.unique(pairs, return_index=True)[1]
            mine, theirs = self.take(rows), other.take(rows)
        return np.array_equal(mine.packed().data, theirs.packed().data)


def _distinct_of_width(column: Ragged, rows: Ints, width: int) -> tuple[Ints, Ints]:
    """`np.unique` over rows of one width: first occurrences and codes."""
    if width <= 0 or len(rows) == 1:
        return np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    items = windows(column.data, width)[column.start[rows]]
    hashes = _hashes(items.view(np.uint8).reshape(len(rows), width))
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(items[first][codes], items):
        # Two values share a hash: sort the bytes themselves.
        _, first, codes = np.unique(items.view(f"S{width}"), return_index=True, return_inverse=True)
    return first.astype(np.int64), codes.astype(np.int64)


def _hashes(items: Bytes) -> NDArray[np.uint64]:
    width = items.shape[1]
    padded = np.zeros((len(items), width + -width % 8), np.uint8)
    padded[:, :width] = items
    hashes = np.zeros(len(items), np.uint64)
    for column in padded.view(np.uint64).T:
        hashes = (hashes ^ column) * _HASH_FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes
