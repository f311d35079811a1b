"""Any bytes may come as a zarr.json: they are understood, or refused with an error of ours."""

import asyncio
import json

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

from icefloe import InvalidInputError, MemoryStorage, Repository
from icefloe.zarr_metadata import array_data

ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 6],
    "data_type": "int8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "dimension_names": ["y", None],
}
RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [[[2, 2]], 3]},
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64, 10**400, -1, 0])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["regular", "rectilinear", "array", "group", "\ud800"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "configuration", "chunk_shape", "chunk_shapes", "node_type"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def understood(data):
    error = found = None
    try:
        found = array_data(data, "/a")
    except InvalidInputError as refused:
        error = refused
    if error is not None:
        assert error.kind == "invalid-zarr-metadata"
        assert len(str(error).encode()) < 1000
    if found is not None:
        assert all(0 <= each.array_length < 2**64 for each in found.shape)
    return error is None


@given(st.binary(max_size=60))
def test_any_bytes_are_understood_or_refused(data):
    understood(data)


@given(ANYTHING)
def test_any_document_is_understood_or_refused(document):
    understood(json.dumps(document).encode())


@given(st.sampled_from([*ARRAY]), ANYTHING, st.booleans())
@settings(max_examples=400)
def test_any_change_of_a_document_is_understood_or_refused(name, value, rectilinear):
    document = ARRAY | ({"chunk_grid": RECTILINEAR} if rectilinear else {}) | {name: value}
    understood(json.dumps(document).encode())


@given(ANYTHING, st.sampled_from(["chunk_shape", "chunk_shapes"]))
@settings(max_examples=400)
def test_any_chunk_grid_is_understood_or_refused(value, name):
    kind = "regular" if name == "chunk_shape" else "rectilinear"
    grid = {"name": kind, "configuration": {name: [value, value]}}
    understood(json.dumps(ARRAY | {"chunk_grid": grid}).encode())


BROKEN = {
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "an infinite chunk": json.dumps(ARRAY).replace("[2, 3]", "[1e999, 3]").encode(),
    "a chunk that is no number": json.dumps(ARRAY).replace("[2, 3]", "[NaN, 3]").encode(),
    "a fraction": json.dumps(ARRAY).replace("[2, 3]", "[2.5, 3]").encode(),
    "a text": json.dumps(ARRAY).replace("[2, 3]", '["2", 3]').encode(),
    "a truth": json.dumps(ARRAY).replace("[4, 6]", "[true, 6]").encode(),
    "a huge shape": json.dumps(ARRAY).replace("[4, 6]", f"[{10**400}, 6]").encode(),
    "more digits than Python reads": json.dumps(ARRAY).replace("4,", "9" * 5000 + ",").encode(),
    "an empty pair": json.dumps(
        ARRAY
        | {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[[]], 3]}}}
    ).encode(),
    "names in an object": json.dumps(ARRAY | {"dimension_names": {"a": 1, "b": 2}}).encode(),
    "a name that is no Unicode": json.dumps(ARRAY | {"dimension_names": ["\ud800", "x"]}).encode(),
    "another encoding": json.dumps(ARRAY).encode("utf-16"),
    "nothing": b"",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_document_is_refused_before_anything_changes(data):
    session = Repository.create(MemoryStorage()).writable_session("main")
    buffer = default_buffer_prototype().buffer.from_bytes(data)
    with pytest.raises(InvalidInputError, match=r"/a/zarr\.json is not the metadata"):
        asyncio.run(session.store.set("a/zarr.json", buffer))
    assert not session.has_uncommitted_changes
    zarr.create_group(session.store, path="b")
    session.commit("still good")


def test_good_documents_are_understood():
    assert understood(json.dumps(ARRAY).encode())
    assert understood(json.dumps(ARRAY | {"chunk_grid": RECTILINEAR}).encode())
    assert understood(json.dumps({"zarr_format": 3, "node_type": "group"}).encode())


@pytest.mark.parametrize("kind", ["regular", "rectilinear"])
def test_chunks_of_no_length_cover_only_dimensions_of_no_length(kind):
    name = "chunk_shape" if kind == "regular" else "chunk_shapes"
    grid = {"name": kind, "configuration": {"kind": "inline", name: [0, 3]}}

    def document(shape):
        return json.dumps(ARRAY | {"chunk_grid": grid, "shape": shape}).encode()

    with pytest.raises(InvalidInputError, match="a chunk size of 0 never covers"):
        array_data(document([4, 6]), "/a")
    found = array_data(document([0, 6]), "/a")
    assert [each.num_chunks for each in found.shape] == [0, 2]


@pytest.mark.parametrize("version", [2, 4, "3", 3.0, True, None])
@pytest.mark.parametrize("kind", ["group", "array"])
def test_a_document_of_another_zarr_format_is_refused(version, kind):
    document = ARRAY | {"node_type": kind, "zarr_format": version}
    with pytest.raises(InvalidInputError, match=r"zarr_format is .*, not 3"):
        array_data(json.dumps(document).encode(), "/a")
