"""Chunk references and manifests: every kind, any number of dimensions, and the single lookup."""

import time
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatbuffers_oracle import OFFICIAL, Builder, Oracle
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import header, manifest
from icefloe.format.chunk_refs import ChunkRefs, InlineRef, NativeRef, VirtualRef
from icefloe.format.header import FileType
from icefloe.format.ids import ChunkId, ManifestId, NodeId
from icefloe.format.lookup import find_ref
from icefloe.format.manifest import ArrayManifest, LocationCompression, Manifest
from icefloe.format.ragged import Ragged

oracle = Oracle(OFFICIAL)
ID = ManifestId(bytes(range(12)))
NODE = NodeId(b"the node")

sizes = st.integers(1, 2**64 - 1)
offsets = st.integers(0, 2**64 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
refs = st.one_of(
    st.builds(InlineRef, st.binary(max_size=20)),
    st.builds(NativeRef, st.binary(min_size=12, max_size=12).map(ChunkId), offsets, sizes),
    st.builds(
        VirtualRef,
        text,
        offsets,
        sizes,
        checksum_etag=st.none() | text,
        checksum_last_modified=st.none() | st.integers(1, 2**32 - 1),
    ),
)


@st.composite
def arrays(draw):
    rank = draw(st.integers(0, 4))
    coords = st.tuples(*[st.integers(0, 3) | st.integers(0, 2**32 - 1)] * rank)
    items = draw(st.dictionaries(coords, refs, max_size=8))
    return rank, sorted(items.items())


node_ids = st.binary(min_size=8, max_size=8).map(NodeId)
manifests = st.dictionaries(node_ids, st.tuples(arrays(), st.none() | st.binary()), max_size=3)


def manifest_of(contents, extra=None):
    return Manifest(
        ID,
        tuple(
            ArrayManifest(node_id, ChunkRefs.of(items, rank), more)
            for node_id, ((rank, items), more) in sorted(contents.items())
        ),
        extra,
    )


def payload_of(data):
    return header.unpack(data, FileType.MANIFEST, name="m")[1]


@given(manifests, st.none() | st.binary(max_size=5), st.sampled_from([1, 1000]))
def test_manifests_of_mixed_kinds_and_ranks_survive(contents, extra, min_refs):
    value = manifest_of(contents, extra)
    data = manifest.encode(value, compression=LocationCompression(min_refs=min_refs))
    read = manifest.decode(data)
    assert read.equals(value)
    assert value.equals(read)
    payload = payload_of(data)
    for node_id, ((_, items), more) in contents.items():
        (found,) = [item for item in read.arrays if item.node_id == node_id]
        assert found.extra == more
        for row, (coords, ref) in enumerate(items):
            assert found.refs[row] == ref
            assert found.refs.row(coords) == row
            assert find_ref(payload, node_id, coords) == ref
    assert find_ref(payload, NodeId(b"elsewhere"[:8]), (0,)) is None


@given(manifests)
def test_the_oracle_reads_what_we_write(contents):
    truth = oracle.read(payload_of(manifest.encode(manifest_of(contents))), "Manifest")
    assert truth["compression_algorithm"] == 0
    assert [item["node_id"] for item in truth["arrays"]] == sorted(node.raw for node in contents)
    for item in truth["arrays"]:
        (_, items), _ = contents[NodeId(item["node_id"])]
        assert [tuple(np.frombuffer(ref["index"], "<u4").tolist()) for ref in item["refs"]] == [
            coords for coords, _ in items
        ]
        for found, (_, ref) in zip(item["refs"], items, strict=True):
            match ref:
                case InlineRef(data=data):
                    expected = {"inline": data}
                case NativeRef():
                    expected = {"chunk_id": ref.chunk_id.raw}
                case VirtualRef():
                    expected = {
                        "location": ref.location,
                        "checksum_etag": ref.checksum_etag,
                        "checksum_last_modified": ref.checksum_last_modified or 0,
                    }
            if not isinstance(ref, InlineRef):
                expected |= {"offset": ref.offset, "length": ref.length}
            blank = dict.fromkeys(found) | {"offset": 0, "length": 0, "checksum_last_modified": 0}
            assert found == blank | {"index": found["index"]} | expected


def ref_record(**fields):
    blank = dict.fromkeys(oracle.slots("ChunkRef"))
    return blank | {"index": b"", "offset": 0, "length": 5, "checksum_last_modified": 0} | fields


def foreign(records, **root):
    record = {
        "id": ID.raw,
        "arrays": [{"node_id": NODE.raw, "refs": records, "extra": None}],
        "location_dictionary": None,
        "compression_algorithm": 0,
        "extra": None,
    }
    data = Builder(oracle, Random(0)).finish(record | root, "Manifest")
    return header.pack(data, FileType.MANIFEST)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"chunk_id": bytes(12), "location": "x", "inline": b"i"},
            NativeRef(ChunkId(bytes(12)), 0, 5),
        ),
        ({"location": "x", "inline": b"i"}, VirtualRef("x", 0, 5)),
        ({"inline": b"i"}, InlineRef(b"i")),
        ({"inline": b""}, InlineRef(b"")),
    ],
)
def test_the_payload_is_looked_for_in_the_official_order(fields, expected):
    data = foreign([ref_record(**fields)])
    assert manifest.decode(data).arrays[0].refs[0] == expected
    assert find_ref(payload_of(data), NODE, ()) == expected


def test_a_ref_without_payload_is_refused():
    data = foreign([ref_record()])
    with pytest.raises(FormatError, match="the file: a ChunkRef has neither"):
        manifest.decode(data, name="the file")
    with pytest.raises(FormatError, match="the file: a ChunkRef has neither"):
        find_ref(payload_of(data), NODE, (), name="the file")


def test_a_compressed_location_needs_a_dictionary():
    data = foreign([ref_record(compressed_location=b"frame of some bytes")])
    with pytest.raises(FormatError, match="no dictionary"):
        manifest.decode(data)
    with pytest.raises(FormatError, match="no dictionary"):
        find_ref(payload_of(data), NODE, ())


def test_a_location_that_is_not_utf8_is_refused_also_when_compressed():
    count = 1200
    index = np.arange(count, dtype=np.uint32).reshape(-1, 1)
    urls = Ragged.of(
        b"s3://bucket/a/long/prefix/for/all/of/them/\xff%06d" % n for n in range(count)
    )
    ones = np.ones(count, np.uint64)
    value = Manifest(ID, (ArrayManifest(NODE, ChunkRefs.virtual(index, urls, ones, ones)),))
    data = manifest.encode(value)
    assert b"\xff000700" not in payload_of(data)
    with pytest.raises(FormatError, match="not UTF-8"):
        manifest.decode(data)
    with pytest.raises(FormatError, match="not UTF-8"):
        find_ref(payload_of(data), NODE, (700,))


def test_locations_over_1024_bytes_stay_plain_among_a_thousand_compressed_ones():
    urls = [f"s3://bucket/préfixe/{n % 40:05}.nc" for n in range(1500)]
    urls[7] = "s3://" + "x" * 1019
    urls[8] = "s3://" + "y" * 1020
    urls[9] = "s3://" + "é" * 512
    assert [len(url.encode()) for url in urls[7:10]] == [1024, 1025, 1029]
    items = [((n,), VirtualRef(url, n, 5)) for n, url in enumerate(urls)]
    value = Manifest(ID, (ArrayManifest(NODE, ChunkRefs.of(items, 1)),))
    data = manifest.encode(value)
    truth = oracle.read(payload_of(data), "Manifest")
    plain = {n: r["location"] for n, r in enumerate(truth["arrays"][0]["refs"]) if r["location"]}
    assert plain == {8: urls[8], 9: urls[9]}
    assert truth["compression_algorithm"] == 1
    assert len(truth["location_dictionary"]) <= 2048
    read = manifest.decode(data)
    assert read.equals(value)
    assert read.arrays[0].refs.location.texts() == urls
    for n in (0, 7, 8, 9, 1499):
        assert find_ref(payload_of(data), NODE, (n,)) == items[n][1]


def test_below_a_thousand_virtual_refs_there_is_no_dictionary():
    items = [((n,), VirtualRef(f"s3://bucket/{n}", n, 5)) for n in range(999)]
    data = manifest.encode(Manifest(ID, (ArrayManifest(NODE, ChunkRefs.of(items, 1)),)))
    assert oracle.read(payload_of(data), "Manifest")["location_dictionary"] is None


@given(st.lists(st.tuples(st.tuples(st.integers(0, 4), st.integers(0, 4)), refs), max_size=12))
def test_sorting_orders_by_index_and_refuses_duplicates(items):
    columns = ChunkRefs.of(items, 2)
    coords = [coords for coords, _ in items]
    if len(set(coords)) == len(coords):
        ordered = columns.sorted()
        assert [tuple(row) for row in ordered.index.tolist()] == sorted(coords)
        assert [ordered[row] for row in range(len(items))] == [
            r for _, r in sorted(items, key=lambda i: i[0])
        ]
    else:
        with pytest.raises(InvalidInputError, match="occurs twice") as caught:
            columns.sorted()
        assert caught.value.kind == "duplicate-chunk"


@given(arrays(), arrays())
def test_concat_of_chunk_refs_joins_rows_whatever_columns_they_have(one, other):
    (rank, first), (_, second) = one, (one[0], [])
    joined = ChunkRefs.concat([ChunkRefs.of(first, rank), ChunkRefs.of(second, rank)])
    assert [joined[row] for row in range(len(joined))] == [ref for _, ref in first]


def test_two_scalars_are_a_duplicate():
    with pytest.raises(InvalidInputError, match="occurs twice"):
        ChunkRefs.of([((), InlineRef(b"a")), ((), InlineRef(b"b"))], 0).sorted()


def test_refs_that_are_unsorted_or_empty_are_not_written():
    ref = NativeRef(ChunkId(bytes(12)), 0, 1)
    unsorted = ChunkRefs.of([((1,), ref), ((0,), ref)], 1)
    with pytest.raises(InvalidInputError) as caught:
        manifest.encode(Manifest(ID, (ArrayManifest(NODE, unsorted),)))
    assert caught.value.kind == "unsorted-chunks"
    for empty in (NativeRef(ChunkId(bytes(12)), 0, 0), VirtualRef("s3://b/k", 0, 0)):
        with pytest.raises(InvalidInputError, match=r"chunk \(3,\)") as caught:
            manifest.encode(Manifest(ID, (ArrayManifest(NODE, ChunkRefs.of([((3,), empty)], 1)),)))
        assert caught.value.kind == "zero-length-chunk"


def test_files_with_unsorted_refs_are_refused():
    records = [ref_record(index=bytes([n, 0, 0, 0]), inline=b"x") for n in (1, 0)]
    with pytest.raises(FormatError, match="do not ascend"):
        manifest.decode(foreign(records))


def test_an_array_keeps_its_ranks_apart():
    records = [ref_record(index=bytes(4), inline=b"x"), ref_record(index=bytes(8), inline=b"x")]
    with pytest.raises(FormatError, match="number of dimensions"):
        manifest.decode(foreign(records))
    with pytest.raises(FormatError, match="has not 3 dimensions"):
        find_ref(payload_of(foreign(records[:1])), NODE, (0, 0, 0))


def test_a_lookup_among_a_million_refs_takes_under_a_tenth_of_a_millisecond():
    count = 10**6
    index = np.stack(np.unravel_index(np.arange(count), (100, 100, 100)), 1).astype(np.uint32)
    ids = np.random.default_rng(0).integers(0, 256, (count, 12), np.uint8)
    lengths = np.full(count, 100, np.uint64)
    columns = ChunkRefs.native(index, ids, np.zeros(count, np.uint64), lengths)
    payload = payload_of(manifest.encode(Manifest(ID, (ArrayManifest(NODE, columns),)), level=1))
    rows = [0, 1, 123_456, 500_000, 999_999]
    for row in rows:
        assert find_ref(payload, NODE, index[row].tolist()) == columns[row]
    assert find_ref(payload, NODE, (100, 0, 0)) is None
    coords = [index[row].tolist() for row in rows]
    best = min(timed(lambda: [find_ref(payload, NODE, c) for c in coords]) for _ in range(20))
    assert best / len(rows) < 100e-6


def timed(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
