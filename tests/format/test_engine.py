"""The columnar engine against the `flatbuffers` package, on tables of every kind of field."""

import struct
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatbuffers_oracle import Builder, Oracle, generate
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.layout import Kind
from icefloe.format.ragged import Ragged
from icefloe.format.reading import Buffer
from icefloe.format.writing import (
    Child,
    Lists,
    Structs,
    TableRows,
    Union,
    check_rewritable,
    write,
)

SCHEMA = """
struct Id { bytes: [uint8:12]; }
struct Pair { first: uint64; second: uint32; }
table Leaf { name: string; }
table Number { value: uint16; }
table Nothing { }
union Choice { Leaf, Number, Nothing }
table Item {
  byte: uint8 = 7;
  short: uint16;
  signed: int32;
  word: uint32 = 1;
  long: uint64;
  id: Id;
  pair: Pair;
  text: string;
  bytes: [uint8];
  words: [uint32];
  longs: [uint64];
  pairs: [Pair];
  texts: [string];
  leaf: Leaf;
  leaves: [Leaf];
  choice: Choice;
}
table Root { items: [Item]; sure: string (required); }
root_type Root;
file_identifier "Test";
"""
schema = generate.parse([SCHEMA])
oracle = Oracle(schema)
layout: dict = {}
exec(generate.render(schema), layout)


def blobs(item_size, max_items=4):
    sizes = st.integers(0, max_items).map(lambda n: n * item_size)
    return sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))


def pairs():
    # The four bytes of padding in a struct are no value.
    pair = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
    return pair.map(lambda values: struct.pack("<QI4x", *values))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
leaf = st.fixed_dictionaries({"name": st.none() | text})
choice = st.one_of(
    st.tuples(st.just(1), leaf),
    st.tuples(st.just(2), st.fixed_dictionaries({"value": st.integers(0, 2**16 - 1)})),
    st.just((3, {})),
)
item = st.fixed_dictionaries(
    {
        "byte": st.integers(0, 255) | st.just(7),
        "short": st.integers(0, 2**16 - 1) | st.just(0),
        "signed": st.integers(-(2**31), 2**31 - 1) | st.just(0),
        "word": st.integers(0, 2**32 - 1) | st.just(1),
        "long": st.integers(0, 2**64 - 1) | st.just(0),
        "id": st.none() | st.binary(min_size=12, max_size=12),
        "pair": st.none() | pairs(),
        "text": st.none() | text,
        "bytes": st.none() | blobs(1),
        "words": st.none() | blobs(4) | st.binary(min_size=8, max_size=8),
        "longs": st.none() | blobs(8),
        "pairs": st.none() | st.lists(pairs(), max_size=3).map(b"".join),
        "texts": st.none() | st.lists(text, max_size=3),
        "leaf": st.none() | leaf,
        "leaves": st.none() | st.lists(leaf, max_size=3),
        "choice": st.none() | choice,
    }
)
roots = st.fixed_dictionaries({"items": st.none() | st.lists(item, max_size=8), "sure": text})


def split(count, items):
    rest = iter(items)
    return [None if n < 0 else [next(rest) for _ in range(n)] for n in count.tolist()]


def records(tables):
    """What the engine reads, as the oracle's records."""
    columns = {
        name: READERS[field.kind](tables, name) for name, field in tables.table.fields.items()
    }
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ] or [{} for _ in range(len(tables))]


def read_struct(tables, name):
    rows = [row.tobytes() for row in tables.struct(name)]
    return [row if there else None for row, there in zip(rows, tables.has(name), strict=True)]


def read_text(tables, name):
    return [None if value is None else value.decode() for value in tables.text(name).tolist()]


def read_strings(tables, name):
    count, items = tables.strings(name)
    return split(count, items.texts())


def read_child(tables, name):
    present, children = tables.child(name)
    rest = iter(records(children))
    return [next(rest) if there else None for there in present]


def read_tables(tables, name):
    count, items = tables.tables(name)
    return split(count, records(items))


def read_union(tables, name):
    tags, members = tables.union(name)
    values = [None] * len(tables)
    for tag, (rows, children) in members.items():
        for row, record in zip(rows.tolist(), records(children), strict=True):
            values[row] = (tag, record)
    assert [value and value[0] for value in values] == [tag or None for tag in tags.tolist()]
    return values


READERS = {
    Kind.SCALAR: lambda tables, name: tables.scalar(name).tolist(),
    Kind.STRUCT: read_struct,
    Kind.STRING: read_text,
    Kind.VECTOR: lambda tables, name: tables.vector(name).tolist(),
    Kind.STRINGS: read_strings,
    Kind.TABLE: read_child,
    Kind.TABLES: read_tables,
    Kind.UNION: read_union,
}


def table_rows(table, rows):
    """The oracle's records, as the engine writes them."""
    columns = {
        name: WRITERS[field.kind](field, [row[name] for row in rows])
        for name, field in table.fields.items()
    }
    return TableRows(table, len(rows), columns)


def lists(values, items_of):
    count = np.array([-1 if value is None else len(value) for value in values], np.int64)
    return Lists(count, items_of([item for value in values for item in value or ()]))


def structs(field, values):
    width = field.dtype.itemsize
    raw = b"".join(bytes(width) if value is None else value for value in values)
    present = np.array([value is not None for value in values], np.bool_)
    return Structs(np.frombuffer(raw, np.uint8).reshape(-1, width), present)


def child(field, values):
    present = np.array([value is not None for value in values], np.bool_)
    return Child(present, table_rows(field.tables[0], [v for v in values if v is not None]))


def union(field, values):
    tags = np.array([0 if value is None else value[0] for value in values], np.uint8)
    members = {
        tag: table_rows(field.tables[tag - 1], [v[1] for v in values if v and v[0] == tag])
        for tag in set(tags.tolist()) - {0}
    }
    return Union(tags, members)


WRITERS = {
    Kind.SCALAR: lambda field, values: np.array(values, field.dtype),
    Kind.STRUCT: structs,
    Kind.STRING: lambda field, values: Ragged.of_text(values),
    Kind.VECTOR: lambda field, values: Ragged.of(values),
    Kind.STRINGS: lambda field, values: lists(values, Ragged.of_text),
    Kind.TABLE: child,
    Kind.TABLES: lambda field, values: lists(values, partial(table_rows, field.tables[0])),
    Kind.UNION: union,
}


def read(data):
    buffer = Buffer(data, "the file")
    root = buffer.root(layout["ROOT"])
    (record,) = records(root)
    return record, buffer


@given(roots, st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_tables_of_any_other_writer_are_read(record, force_defaults, share_strings, seed):
    builder = Builder(oracle, Random(seed), force_defaults, share_strings)
    data = builder.finish(record, "Root")
    assert oracle.read(data, "Root") == record
    value, buffer = read(data)
    assert value == record
    assert not buffer.unknown


@given(roots)
def test_what_the_engine_writes_is_read_by_the_oracle(record):
    data = write(table_rows(layout["ROOT"], [record]), b"Test").tobytes()
    assert oracle.read(data, "Root") == record
    assert data[4:8] == b"Test"
    value, buffer = read(data)
    assert value == record
    assert not buffer.unknown


def test_rows_with_the_same_fields_share_one_vtable_and_equal_places_one_string():
    word = Ragged.of([b"shared text"])
    rows = TableRows(
        layout["ITEM"], 1000, {"text": word.take(np.zeros(1000, np.int64)), "long": np.arange(1000)}
    )
    root = {"items": Lists(np.array([1000]), rows), "sure": Ragged.of([b""])}
    data = write(TableRows(layout["ROOT"], 1, root), b"Test").tobytes()
    assert data.count(b"shared text") == 1
    assert len(data) < 1000 * (4 + 24) + 200
    record = oracle.read(data, "Root")
    assert {item["text"] for item in record["items"]} == {"shared text"}
    assert [item["long"] for item in record["items"]] == list(range(1000))
    assert read(data)[0] == record


@pytest.mark.parametrize("extra_slots", [1, 3])
def test_fields_of_a_newer_schema_are_readable_but_refuse_a_rewrite(extra_slots):
    record = {"items": [dict.fromkeys(layout["ITEM"].fields)], "sure": "x"}
    plain = Builder(oracle, Random(0)).finish(record, "Root")
    data = Builder(oracle, Random(0), extra_slots=extra_slots).finish(record, "Root")
    value, buffer = read(data)
    assert value == read(plain)[0]
    assert buffer.unknown == {"Root", "Item"}
    with pytest.raises(InvalidInputError, match=r"the file.*Item, Root") as caught:
        check_rewritable(frozenset(buffer.unknown), "the file")
    assert caught.value.kind == "unknown-fields"


def test_an_unknown_union_tag_is_kept_apart_and_noted():
    record = {"items": [{**dict.fromkeys(layout["ITEM"].fields), "choice": (3, {})}], "sure": "x"}
    data = bytearray(Builder(oracle, Random(0)).finish(record, "Root"))
    slot = oracle.slots("Item")["choice"].number - 1
    table = Buffer(bytes(data), "f").root(layout["ROOT"]).tables("items")[1]
    at = int(table.position[0] + table._slot(slot)[0])
    assert data[at] == 3
    data[at] = 9
    buffer = Buffer(bytes(data), "f")
    _, items = buffer.root(layout["ROOT"]).tables("items")
    tags, members = items.union("choice")
    assert tags.tolist() == [9]
    assert members == {}
    assert buffer.unknown == {"Item.choice"}


def test_a_missing_required_field_is_named():
    data = Builder(oracle, Random(0)).finish({"items": [], "sure": None}, "Root")
    with pytest.raises(FormatError, match=r"the file: Root\.sure is required and missing"):
        read(data)


def test_tables_that_share_a_child_beyond_reason_are_refused():
    """Thirty levels that each point twice to the next would unfold to 2**30 tables."""
    text = 'table Node { left: [Node]; } root_type Node; file_identifier "Test";'
    tree = generate.parse([text])
    out = Builder(Oracle(tree), Random(0)).out
    node = None
    for _ in range(30):
        out.StartVector(4, 2 if node else 0, 4)
        for _ in range(2 if node else 0):
            out.PrependUOffsetTRelative(node)
        children = out.EndVector()
        out.StartObject(1)
        out.PrependUOffsetTRelativeSlot(0, children, 0)
        node = out.EndObject()
    out.Finish(node)
    space = {}
    exec(generate.render(tree).replace("tables=(NODE,)", "tables=()"), space)
    table = space["NODE"]
    object.__setattr__(table.fields["left"], "tables", (table,))
    tables = Buffer(bytes(out.Output()), "bomb").root(table)
    with pytest.raises(FormatError, match="claims more than the file can hold"):  # noqa: PT012
        for _ in range(30):
            _, tables = tables.tables("left")


def test_more_than_flatbuffers_can_address_is_refused():
    data = np.zeros(2**20, np.uint8)
    many = Ragged(data, np.arange(3000), np.full(3000, 2**20 - 3000, np.int64))
    items = TableRows(layout["ITEM"], 3000, {"bytes": many})
    root = {"items": Lists(np.array([3000]), items), "sure": Ragged.of([b""])}
    with pytest.raises(InvalidInputError, match="2 GiB") as caught:
        write(TableRows(layout["ROOT"], 1, root), b"Test")
    assert caught.value.kind == "too-large"
