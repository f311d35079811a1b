"""FlexBuffers: the bytes of the reference, every JSON-like type read, hostile bytes refused."""

import math
import random
import struct
import time

import icechunk
import pytest
from flatbuffers import flexbuffers as google
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.flexbuffers import MAX_DEPTH, decode, encode
from icefloe.format.header import FileType, pack, unpack

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | texts
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=30,
)


def same(one, other):
    """Equality that tells 1 from 1.0 from True, and 0.0 from -0.0."""
    return (
        repr(one) == repr(other)
        or (
            type(one) is type(other) is dict
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
        or (
            type(one) is type(other) is list
            and len(one) == len(other)
            and all(map(same, one, other))
        )
    )


def nested(depth, leaf=1):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def metadata_values(payload):
    """The FlexBuffers bytes of each item of `Repo.metadata`, read without our own reader."""

    def uint(position):
        return struct.unpack_from("<I", payload, position)[0]

    def field(table, number):
        vtable = table - struct.unpack_from("<i", payload, table)[0]
        return table + struct.unpack_from("<H", payload, vtable + 4 + 2 * number)[0]

    def vector(position):
        start = position + uint(position)
        return start + 4, uint(start)

    def content(position):
        start, length = vector(position)
        return payload[start : start + length]

    start, count = vector(field(uint(0), 6))
    tables = [start + 4 * i + uint(start + 4 * i) for i in range(count)]
    return {content(field(t, 0)).decode(): content(field(t, 1)) for t in tables}


def written_by_reference(path, values):
    """What the official library writes for each value, and what it reads back."""
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    repo.set_metadata({str(i): value for i, value in enumerate(values)})
    _, payload = unpack((path / "repo").read_bytes(), FileType.REPO_INFO, name="repo")
    raw, back = metadata_values(payload), repo.get_metadata()
    return [(raw[str(i)], back[str(i)]) for i in range(len(values))]


def random_document(rng, depth=0):
    """Documents larger than hypothesis likes to draw: offsets of one, two and four bytes."""

    def text():
        return "".join(rng.choices('abé温🧊 "\\z', k=rng.choice([0, 1, 2, 5, 40, 300])))

    def scalar():
        return rng.choice(
            [
                rng.choice([None, True, False]),
                rng.randrange(2 ** rng.choice([1, 8, 9, 16, 32, 33, 63, 64])),
                -rng.randrange(1, 2 ** rng.choice([1, 7, 8, 15, 16, 32, 63])),
                rng.choice([0.0, -0.0, 1.5, 0.1, 1e300, 5e-324, 1e-45, 3.4028234663852886e38]),
                text(),
                [rng.choice([1, 300, 70000, 2**40])] * rng.randrange(6),
            ]
        )

    if depth == 4 or rng.random() < 0.75:
        return scalar()
    count = rng.choice([0, 1, 2, 3, 4, 5, 20, 300 if depth < 2 else 3])
    if rng.random() < 0.5:
        return [random_document(rng, depth + 1) for _ in range(count)]
    return {text(): random_document(rng, depth + 1) for _ in range(count)}


PINNED = [
    *[None, True, False, 0, 1, 255, 256, 65536, 2**32, 2**63, 2**64 - 1],
    *[-1, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)],
    *[0.0, -0.0, 1.0, 0.1, 1e300, 3.5e38, 5e-324, "", "x", "a\0b", "é🧊", "x" * 255, "x" * 256],
    *[[], {}, [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, -1], [-1, -2], [300, 1]],
    *[[1.0, 2.0], [0.1, 1.0], [1, 2.0], [True, False], [True, 1], [None], [None, None]],
    *[["a", "b"], ["a", 1], [[], []], [{}], [[1], [2]], list(range(300)), [True] * 300],
    *[{"": 1}, {"b": 1, "a": 2}, {"é": 1, "z": 2}, {"a": {"a": {"a": 1}}}],
    *[[{"a": 1, "b": [1, 2, 3]}] * 3, {"a": "x" * 300, "b": 1.5, "c": None}],
    nested(MAX_DEPTH),
]


def test_the_bytes_equal_those_of_the_reference(tmp_path):
    rng = random.Random(20)
    values = PINNED + [random_document(rng) for _ in range(150)]
    for value, (raw, back) in zip(values, written_by_reference(tmp_path, values), strict=True):
        assert encode(value) == raw, value
        assert same(decode(raw), back), value


@settings(max_examples=30)
@given(values=st.lists(documents, min_size=1, max_size=8))
def test_the_bytes_equal_those_of_the_reference_for_any_document(tmp_path_factory, values):
    written = written_by_reference(tmp_path_factory.mktemp("repo"), values)
    for value, (raw, _) in zip(values, written, strict=True):
        assert encode(value) == raw


@given(documents)
def test_a_document_survives(value):
    assert same(decode(encode(value)), value)
    assert same(decode(memoryview(encode(value))), value)


def test_a_tuple_is_written_as_a_list():
    assert decode(encode({"a": (1, (2.5, "x"))})) == {"a": [1, [2.5, "x"]]}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (2**64, "metadata: "),
        ({"a": -(2**63) - 1}, "metadata.a: "),
        ({"a": [0, 1, 2, {"b": object()}]}, "metadata.a[3].b: "),
        ([b"bytes"], "metadata[0]: "),
        ({"a": {1, 2}}, "metadata.a: "),
        ({"a": {1: 2}}, "metadata.a: "),
        ({"a": {"x\0y": 2}}, "metadata.a: "),
        ({"a": "\ud800"}, "metadata.a: "),
        ({"a": {"\ud800": 1}}, "metadata.a: "),
        ({"a": [1.5, math.nan]}, "metadata.a[1]: "),
        ([math.inf], "metadata[0]: "),
        (nested(MAX_DEPTH + 1), "metadata[0][0]"),
    ],
)
def test_what_is_not_json_is_refused_and_its_place_told(value, place):
    with pytest.raises(InvalidInputError) as error:
        encode(value)
    assert str(error.value).startswith(place)


def test_a_value_that_holds_itself_is_refused():
    value = {}
    value["a"] = [value]
    with pytest.raises(InvalidInputError, match="nests deeper"):
        encode(value)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        pytest.param("61 00 02 10 01", "a", id="key"),
        pytest.param("fe 01 18 01", -2, id="indirect-int"),
        pytest.param("ff ff 02 1d 01", 65535, id="indirect-uint"),
        pytest.param("00 00 00 40 04 22 01", 2.0, id="indirect-float"),
        pytest.param("00 3c 0d 02", 1.0, id="half-float"),
        pytest.param("00 00 69 02", False, id="wide-bool"),
        pytest.param("02 01 02 02 30 01", [1, 2], id="vector-uint"),
        pytest.param("02 ff 02 02 2c 01", [-1, 2], id="vector-int"),
        pytest.param("ff ff 01 00 02 00 06 4d 01", [-1, 1, 2], id="vector-int3"),
        pytest.param("02 00 00 00 01 00 04 91 01", [False, True], id="wide-vector-bool"),
        pytest.param("61 00 62 00 02 05 04 02 38 01", ["a", "b"], id="vector-key"),
        pytest.param("01 61 00 02 62 63 00 02 07 05 02 3c 01", ["a", "bc"], id="vector-string"),
        pytest.param(
            "62 00 61 00 02 05 04 02 01 02 01 02 08 08 04 24 01",
            {"b": 1, "a": 2},
            id="unsorted-map",
        ),
        # As the reference reads them.
        pytest.param("00 00 00 00 00 00 f8 7f 0f 08", None, id="nan"),
        pytest.param("00 00 80 3f 00 00 80 7f 08 4a 01", [1.0, None], id="infinity"),
    ],
)
def test_types_the_reference_does_not_write_are_read(data, value):
    assert same(decode(bytes.fromhex(data)), value)


def test_the_reference_reads_a_nan_as_null(tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage).set_metadata({"a": [1.5, 123.25]})
    _, payload = unpack((tmp_path / "repo").read_bytes(), FileType.REPO_INFO, name="repo")
    finite, nan = struct.pack("<f", 123.25), struct.pack("<f", math.nan)
    assert payload.count(finite) == 1
    payload = payload.replace(finite, nan)
    (tmp_path / "repo").write_bytes(pack(payload, FileType.REPO_INFO))
    read = icechunk.Repository.open(storage).get_metadata()
    assert read == {"a": [1.5, None]}
    assert decode(metadata_values(payload)["a"]) == read["a"]


@pytest.mark.parametrize("share", [False, True])
def test_what_the_python_writer_of_google_writes_is_read(share):
    value = {"b": ["x", "x", 1, -1, 0.5], "a": {"b": [True, None], "c": "x" * 300}, "d": [1] * 5}
    value["e"] = [{"b": "x", "c": index} for index in range(300)]
    builder = google.Builder(share_strings=share, share_keys=share)
    builder.Add(value)
    assert decode(bytes(builder.Finish())) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "too short"),
        ("08 01", "too short"),
        ("00 00 00 08 03", "width 3"),
        ("00 08 00", "width 0"),
        ("00 08 08", "out of its bytes"),
        ("01 61 01 64 01", "type 25"),
        ("00 6c 01", "type 27"),
        ("00 fc 01", "type 63"),
        ("00 0c 01", "one byte"),
        ("05 14 01", "out of its bytes"),
        ("61 01 10 01", "no end"),
        ("61 ff 10 01", "no end"),
        ("01 ff 00 02 14 01", "not UTF-8"),
        ("ff 00 02 10 01", "not UTF-8"),
        ("ff 61 00 02 14 01", "more than its bytes"),
        ("ff 01 01 28 01", "more than its bytes"),
        ("61 00 02 03 03 02 01 01 01 08 02 24 01", "more or fewer keys"),
        ("61 00 01 03 01 03 01 01 08 02 24 01", "width 3"),
        ("03 01 02 02 28 01", "out of its bytes"),
    ],
)
def test_malformed_bytes_are_refused_with_the_reason(data, reason):
    with pytest.raises(FormatError, match=r"^snapshot X: bad FlexBuffers") as error:
        decode(bytes.fromhex(data), name="snapshot X")
    assert reason in str(error.value)


def tower(levels, width):
    """Vectors of `width` offsets, all of them to the one vector below."""
    data = bytearray(b"\x01\x01")
    address, kind = 1, 0x30
    for _ in range(levels):
        data.append(width)
        start = len(data)
        data += bytes(start + index - address for index in range(width))
        data += bytes([kind] * width)
        address, kind = start, 0x28
    return bytes(data + bytes([len(data) - address, kind, 1]))


def test_the_tower_of_these_tests_is_well_formed():
    assert decode(tower(2, 1)) == [[[1]]]
    assert decode(tower(MAX_DEPTH - 1, 1)) == nested(MAX_DEPTH)


def test_nesting_is_bounded():
    with pytest.raises(FormatError, match="nests deeper"):
        decode(tower(MAX_DEPTH, 1))


@pytest.mark.parametrize("width", [2, 3, 20])
def test_shared_vectors_do_not_unfold_exponentially(width):
    started = time.perf_counter()
    with pytest.raises(FormatError, match="more than its bytes"):
        decode(tower(60, width))
    assert time.perf_counter() - started < 1


def test_a_vector_that_holds_itself_is_refused():
    with pytest.raises(FormatError):
        decode(bytes.fromhex("01 00 28 02 28 01"))


def test_a_key_that_many_maps_share_is_counted_once():
    value = [{"a key of some length " * 4: index} for index in range(1000)]
    assert decode(encode(value)) == value


def test_keys_that_overlap_do_not_cost_the_square_of_their_length():
    count = 50_000
    text = b"k" * count + b"\0"
    vector_start = len(text) + 3 + 4
    vector_start += -vector_start % 4
    data = text + bytes(vector_start - 4 - len(text)) + struct.pack("<I", count)
    data += b"".join(struct.pack("<I", vector_start + 3 * i) for i in range(count))
    data += struct.pack("<I", len(data) - vector_start) + bytes([14 << 2 | 2, 4])
    started = time.perf_counter()
    with pytest.raises(FormatError, match="more than its bytes"):
        decode(data)
    assert time.perf_counter() - started < 1


@settings(max_examples=500)
@given(st.binary(max_size=40))
def test_noise_raises_nothing_but_format_errors(data):
    try:
        decode(data)
    except FormatError:
        return


@settings(max_examples=500)
@given(documents, st.data())
def test_damaged_documents_raise_nothing_but_format_errors(value, data):
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(raw))
    except FormatError:
        return


@given(documents)
def test_a_document_cut_anywhere_raises_nothing_but_format_errors(value):
    raw = encode(value)
    for cut in range(min(len(raw), 50)):
        try:
            decode(raw[:cut])
        except FormatError:
            continue
