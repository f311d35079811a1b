"""Object ids: text form, kinds, and columns of them."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
    as_keys,
    decode_ids,
    encode_ids,
    random_ids,
)

KINDS = [SnapshotId, ManifestId, ChunkId, NodeId]
rows = st.sampled_from([8, 12]).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
)


def column(raw):
    return np.frombuffer(b"".join(raw), dtype=np.uint8).reshape(len(raw), -1)


def test_the_first_snapshot_has_the_name_the_spec_gives_it():
    assert str(INITIAL_SNAPSHOT_ID) == "1CECHNKREP0F1RSTCMT0"
    assert SnapshotId.parse("1CECHNKREP0F1RSTCMT0") == INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_id_survives_its_text_form(kind, data):
    raw = data.draw(st.binary(min_size=kind.SIZE, max_size=kind.SIZE))
    text = str(kind(raw))
    assert len(text) == {12: 20, 8: 13}[kind.SIZE]
    assert kind.parse(text) == kind(raw)


def test_the_same_bytes_of_two_kinds_are_not_equal_and_do_not_compare():
    raw = bytes(12)
    assert SnapshotId(raw) != ManifestId(raw)
    assert len({SnapshotId(raw), ManifestId(raw), ChunkId(raw), SnapshotId(raw)}) == 3
    with pytest.raises(TypeError):
        assert SnapshotId(raw) < ManifestId(raw)


def test_ids_of_one_kind_sort_by_their_bytes():
    assert NodeId(b"\x7f" * 8) < NodeId(b"\xff" * 8)


@pytest.mark.parametrize("raw", [b"", bytes(11), bytes(13), bytes(8), "A" * 12, bytearray(12)])
def test_an_id_takes_only_its_own_number_of_bytes(raw):
    with pytest.raises(InvalidInputError, match="ChunkId takes 12 bytes"):
        ChunkId(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMT00",
        "1cechnkrep0f1rstcmt0",
        "ICECHNKREP0F1RSTCMT0",
        "1CECHNKREPOF1RSTCMT0",
        "1CECHNKREP0F1RSTCMU0",
        "1CECHNKREP0F1RSTCMT1",
        "1CECHNKREP0F1RSTCM/0",
        "../../CHNKREP0F1RSTC",
        "1CECHNKREP0F1RSTCMT\n",
        "\uff11CECHNKREP0F1RSTCMT0",
        "\ud800CECHNKREP0F1RSTCMT0",
    ],
)
def test_parse_refuses_all_but_the_canonical_text_and_names_it(text):
    with pytest.raises(InvalidInputError) as error:
        SnapshotId.parse(text)
    assert repr(text) in str(error.value)


def test_a_random_id_is_made_of_what_the_source_gives():
    assert NodeId.random(lambda size: b"\x01" * size) == NodeId(b"\x01" * 8)
    assert ChunkId.random() != ChunkId.random()


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_is_a_value(kind):
    one = kind.random()
    assert pickle.loads(pickle.dumps(one)) == one
    assert not hasattr(one, "__dict__")
    with pytest.raises(FrozenInstanceError):
        one.raw = bytes(kind.SIZE)
    assert str(one) in repr(one)


@given(rows)
def test_a_column_encodes_as_its_ids_do(raw):
    kind = NodeId if len(raw[0]) == 8 else ObjectId
    texts = encode_ids(column(raw))
    assert texts.tolist() == [str(kind(one)).encode() for one in raw]
    assert decode_ids(texts, kind.SIZE).tobytes() == b"".join(raw)
    assert decode_ids([text.decode() for text in texts.tolist()], kind.SIZE).shape == (
        len(raw),
        kind.SIZE,
    )


def test_a_wider_column_of_names_decodes():
    texts = np.array([str(INITIAL_SNAPSHOT_ID)], dtype="S64")
    assert decode_ids(texts).tobytes() == INITIAL_SNAPSHOT_ID.raw


@pytest.mark.parametrize("size", [8, 12])
def test_an_empty_column_stays_empty(size):
    empty = np.empty((0, size), dtype=np.uint8)
    assert encode_ids(empty).shape == (0,)
    assert decode_ids(encode_ids(empty), size).shape == (0, size)
    assert decode_ids([], size).shape == (0, size)
    assert as_keys(empty).shape == (0,)


@pytest.mark.parametrize(
    "bad",
    [
        "short",
        "1CECHNKREP0F1RSTCMT1",
        "1cechnkrep0f1rstcmt0",
        "1CECHNKREP0F1RSTCMT00",
        "OCECHNKREP0F1RSTCMT0",
        "éCECHNKREP0F1RSTCMT0",
    ],
)
def test_a_column_with_one_bad_name_is_refused_and_the_name_told(bad):
    with pytest.raises(InvalidInputError) as error:
        decode_ids([str(INITIAL_SNAPSHOT_ID), bad])
    assert bad in str(error.value)


def test_a_bad_byte_in_a_column_is_shown_escaped():
    with pytest.raises(InvalidInputError, match=r"\\xff"):
        decode_ids(np.array([b"\xff" * 20]))


@given(rows)
def test_keys_sort_and_search_in_byte_order(raw):
    ids = column(raw)
    order = np.argsort(as_keys(ids), kind="stable")
    assert [ids[i].tobytes() for i in order] == sorted(raw)
    found = np.searchsorted(as_keys(ids)[order], as_keys(ids))
    assert [ids[order[i]].tobytes() for i in found] == raw


def test_keys_that_differ_only_in_trailing_nuls_differ():
    ids = column([b"\x01" + bytes(11), b"\x01\x00\x01" + bytes(9), bytes(12)])
    assert len(np.unique(as_keys(ids))) == 3


def test_keys_of_a_strided_column_are_those_of_its_rows():
    wide = np.arange(64, dtype=np.uint8).reshape(4, 16)
    assert as_keys(wide[:, :8]).tolist() == [row.tobytes() for row in wide[:, :8]]
    assert encode_ids(wide[:, :8])[1].decode() == str(NodeId(wide[1, :8].tobytes()))


def test_random_ids_differ_and_can_be_written_to():
    ids = random_ids(1000)
    assert ids.shape == (1000, 12)
    assert len(np.unique(as_keys(ids))) == 1000
    ids[0] = 0
    assert random_ids(2, 8, source=lambda size: bytes(range(size))).tolist()[1][0] == 8
