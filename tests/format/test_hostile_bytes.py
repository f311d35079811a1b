"""Damaged files end in a FormatError that names the file, or in a correct value; nothing else."""

import os
import time

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fuzz_format import CORPUS, MAX_MEMORY, MAX_SECONDS, MODULES, peak_memory, run
from icefloe.errors import FormatError
from icefloe.format import header, manifest, metadata, repo_info, wire
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.header import FileType
from icefloe.format.ids import NodeId
from icefloe.format.ragged import Ragged
from icefloe.format.writing import Lists, Structs, TableRows, write

FILES = int(os.environ.get("FUZZ_FILES", "1500"))


@pytest.mark.fuzz
def test_mutated_files_are_refused_or_read_in_bounded_time_and_memory():
    outcomes = run(FILES, seed=1)
    assert sum(outcomes.values()) >= FILES


@pytest.mark.parametrize("kind", MODULES)
@given(payload=st.binary(max_size=200))
def test_arbitrary_payloads_are_refused(kind, payload):
    with pytest.raises(FormatError, match="a file: "):
        MODULES[kind][0].decode(header.pack(payload, kind), name="a file")


def assert_bounded(work, match):
    before, started = peak_memory(), time.process_time()
    with pytest.raises(FormatError, match=match):
        work()
    assert time.process_time() - started < MAX_SECONDS
    assert peak_memory() - before < MAX_MEMORY


def test_a_frame_that_inflates_to_two_gigabytes_is_refused_at_once():
    data = header.pack(b"", FileType.MANIFEST)[: header.SIZE]
    data += zstandard.ZstdCompressor(level=1).compress(bytes(2**27))[:20]
    assert_bounded(lambda: manifest.decode(data), "manifest: ")


def test_many_refs_that_share_one_long_index_are_refused():
    """A file of 2 MB whose coordinates would fill 200 GB."""
    count, long = 50_000, 2**20
    index = Ragged(
        np.zeros(long, np.uint8), np.zeros(count, np.int64), np.full(count, long, np.int64)
    )
    refs = TableRows(wire.CHUNK_REF, count, {"index": index, "inline": Ragged.of([b"x"] * count)})
    arrays = TableRows(
        wire.ARRAY_MANIFEST,
        1,
        {"node_id": Structs(np.zeros((1, 8), np.uint8)), "refs": Lists(np.array([count]), refs)},
    )
    root = TableRows(
        wire.MANIFEST,
        1,
        {"id": Structs(np.zeros((1, 12), np.uint8)), "arrays": Lists(np.array([1]), arrays)},
    )
    data = header.pack(write(root, b"Ichk"), FileType.MANIFEST)
    assert_bounded(lambda: manifest.decode(data), "claims more than the file can hold")


def test_long_strings_may_be_shared():
    """Honest sharing: 20,000 refs to one location of 900 bytes, 18 MB if each had its own."""
    count = 20_000
    index = np.arange(count, dtype=np.uint32).reshape(-1, 1)
    urls = Ragged.of([b"s3://" + b"x" * 895]).take(np.zeros(count, np.int64))
    ones = np.ones(count, np.uint64)
    refs = ChunkRefs.virtual(index, urls, ones, ones, checksum_etag=urls)
    value = manifest.Manifest(
        manifest.ManifestId(bytes(12)), (manifest.ArrayManifest(NodeId(bytes(8)), refs),)
    )
    assert manifest.decode(manifest.encode(value)).equals(value)


def repo_with_parents(parents, flushed_at):
    value = repo_info.decode((CORPUS / "repo_info-small").read_bytes())
    old = value.snapshots
    count = len(parents)
    snapshots = old.take(np.zeros(count, np.int64), np.array(parents, np.int32))
    ids = np.zeros((count, 12), np.uint8)
    ids[:, 0] = np.arange(count)
    columns = {name: getattr(snapshots, name) for name in type(old).__slots__}
    columns |= {"id": ids, "flushed_at": np.array(flushed_at, np.uint64)}
    zero = np.zeros_like(value.branches.snapshot)
    return repo_info.encode(
        repo_info.replace(
            value,
            snapshots=repo_info.Snapshots(**columns),
            branches=repo_info.Refs(value.branches.name, zero),
            tags=repo_info.Refs(value.tags.name, np.zeros_like(value.tags.snapshot)),
        )
    )


@pytest.mark.parametrize("parents", [[0], [1, 0], [-1, 2, 3, 1], [-1, 0, 4, 2, 3]])
def test_a_snapshot_that_is_its_own_ancestor_is_refused(parents):
    data = repo_with_parents(parents, range(len(parents)))
    with pytest.raises(FormatError, match="its own ancestor"):
        repo_info.decode(data)


@given(st.permutations(range(12)), st.randoms())
def test_history_without_cycles_is_read_whatever_the_clocks_said(order, random):
    parents = [-1] * len(order)
    for place, row in enumerate(order[1:], 1):
        parents[row] = order[random.randrange(place)]
    read = repo_info.decode(repo_with_parents(parents, [random.randrange(3) for _ in order]))
    assert read.snapshots.parent.tolist() == parents


def test_a_snapshot_that_points_past_the_list_is_refused():
    with pytest.raises(FormatError, match="past the list"):
        repo_info.decode(repo_with_parents([-1, 7], [1, 2]))


@pytest.mark.parametrize(
    "value",
    [b"", b"\xc1", b"\x92\x01", b"\xa2\xff\xfe", b"\x81\xc4\x01a\x01", b"\xc4\x01a", b"\x91" * 200],
)
def test_messagepack_that_json_cannot_hold_is_refused(value):
    with pytest.raises(FormatError, match="old file: "):
        metadata.decode_value(value, spec_version=1, name="old file")


def test_messagepack_numbers_that_json_lacks_read_as_null():
    value = b"\x92\xcb\x7f\xf8\0\0\0\0\0\0\xcf" + b"\xff" * 8
    assert metadata.decode_value(value, spec_version=1, name="f") == [None, 2**64 - 1]
