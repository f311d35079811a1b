"""Ragged columns against plain lists."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format import ragged
from icefloe.format.ragged import Ragged, copy_stretches, rows_by_value, starts

values = st.lists(st.none() | st.binary(max_size=5) | st.sampled_from([b"", b"aa", b"ab\0"]))


@st.composite
def columns(draw):
    """A column and its values; rows may share bytes, overlap and come in any order."""
    items = draw(values)
    column = Ragged.of(items)
    if items:
        rows = draw(st.lists(st.integers(0, len(items) - 1), max_size=12))
        column = column.take(np.array(rows, np.int64))
        items = [items[row] for row in rows]
    return column, items


@given(columns())
def test_a_column_gives_back_its_values(case):
    column, items = case
    assert column.tolist() == items
    assert [column[row] for row in range(len(column))] == items
    assert column.present.tolist() == [item is not None for item in items]


@given(columns())
def test_packed_rows_lie_end_to_end(case):
    column, items = case
    packed = column.packed()
    assert packed.tolist() == items
    assert packed.data.tobytes() == b"".join(item or b"" for item in items)
    assert column.equals(packed)


@given(st.lists(columns(), max_size=4))
def test_concat_joins_the_lists(cases):
    joined = Ragged.concat([column for column, _ in cases])
    assert joined.tolist() == [item for _, items in cases for item in items]


@given(columns(), st.data())
def test_take_and_where_choose_rows(case, data):
    column, items = case
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items))), bool
    )
    assert column.take(mask).tolist() == [v for v, kept in zip(items, mask, strict=True) if kept]
    assert column.where(mask).tolist() == [
        v if kept else None for v, kept in zip(items, mask, strict=True)
    ]
    assert column.take(slice(1, 3)).tolist() == items[1:3]


@given(columns(), columns())
def test_columns_are_equal_if_their_values_are(one, other):
    assert one[0].equals(other[0]) == (one[1] == other[1])
    assert one[0].equals(Ragged.of(one[1]))


def assert_distinct(column, items):
    distinct, codes = column.distinct()
    found = distinct.tolist()
    assert len(set(found)) == len(found)
    assert set(found) == set(items)
    assert [found[code] for code in codes.tolist()] == items


@given(columns())
def test_distinct_finds_each_value_once(case):
    assert_distinct(*case)


@given(columns())
def test_distinct_survives_values_with_one_hash(case):
    original = ragged._hashes
    ragged._hashes = lambda items: np.zeros(len(items), np.uint64)
    try:
        assert_distinct(*case)
    finally:
        ragged._hashes = original


@given(columns())
def test_distinct_places_tell_rows_apart_by_where_they_lie(case):
    column, items = case
    chosen, codes = column.distinct_places()
    assert [items[chosen[code]] for code in codes.tolist()] == items
    places = [(int(column.start[r]), int(column.length[r])) for r in range(len(column))]
    assert len(chosen) == len(set(places))
    if len(chosen) == len(column):
        assert chosen.tolist() == codes.tolist() == list(range(len(column)))


@given(st.lists(st.binary(max_size=9), max_size=9), st.booleans())
def test_rows_ascend_if_each_is_less_than_the_next(items, in_order):
    items = sorted(set(items)) if in_order else items
    ascends = all(one < other for one, other in pairwise(items))
    has_nul = any(item.endswith(b"\0") for item in items)
    assert Ragged.of(items).is_ascending() <= ascends
    assert Ragged.of(items).is_ascending() or has_nul or not ascends


def test_a_long_row_among_many_short_ones_takes_no_memory_out_of_proportion():
    items = [b"%06d" % number for number in range(10_000)]
    assert Ragged.of(items).is_ascending()
    assert not Ragged.of([*items, b"9" * 2**20]).is_ascending()


@given(st.lists(st.binary(max_size=6), max_size=40), st.data())
def test_stretches_bring_the_same_runs_as_single_copies(items, data):
    """Sources that lie as the target does, but for some rows that lie elsewhere."""
    length = np.array([len(item) for item in items], np.int64)
    at = starts(length + 4 & -4)
    size = int((length + 4 & -4).sum())
    source = np.full(2 * size, 0xEE, np.uint8)
    start = at.copy()
    for row in data.draw(st.sets(st.integers(0, max(len(items) - 1, 0)), max_size=3)):
        if row < len(items):
            start[row] += size
    for item, place in zip(items, start.tolist(), strict=True):
        source[place : place + len(item)] = np.frombuffer(item, np.uint8)
    target = np.zeros(size, np.uint8)
    copy_stretches(target, at, source, start, length)
    assert Ragged(target, at, length).tolist() == items


@given(st.lists(st.integers(-3, 2**17), max_size=30))
def test_rows_by_value_partitions_the_rows(numbers):
    column = np.array(numbers, np.int64)
    found = {value: np.arange(len(column))[rows].tolist() for value, rows in rows_by_value(column)}
    assert found == {
        value: [row for row, number in enumerate(numbers) if number == value] for value in numbers
    }


def test_fixed_width_rows_are_the_bytes_of_the_items():
    rows = Ragged.fixed(np.arange(6, dtype="<u4").reshape(3, 2))
    assert rows.tolist() == [bytes([0, 0, 0, 0, 1, 0, 0, 0]), *rows.tolist()[1:]]
    assert rows.values(np.dtype("<u4")).tolist() == list(range(6))
    assert Ragged.fixed(np.zeros((2, 0), np.uint32)).tolist() == [b"", b""]
    assert Ragged.absent(2).tolist() == [None, None]
