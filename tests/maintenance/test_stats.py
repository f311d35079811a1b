"""Storage statistics: exact, whatever is shared, packed or virtual."""

import icechunk
import numpy as np
import pytest

import official_repos
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs, InlineRef, NativeRef, RefKind, VirtualRef
from icefloe.format.ids import ChunkId
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.sharing import Share, Shares
from icefloe.maintenance.stats import chunk_storage_stats
from maintenance.histories import CHUNK_BYTES, FUTURE, assets, create, official, write_chunk


def stats(path, by):
    return {item.name: item for item in chunk_storage_stats(assets(path), by)}


def chunk_bytes(path):
    return sum(file.stat().st_size for file in (path / "chunks").glob("*"))


def test_totals_are_those_of_the_official_library(messy):
    (ours,) = chunk_storage_stats(assets(messy.path))
    theirs = official(messy.path).chunk_storage_stats()
    assert ours.native_bytes == theirs.native_bytes > 0
    assert ours.virtual_bytes == theirs.virtual_bytes
    assert ours.inlined_bytes == theirs.inlined_bytes
    assert ours.total_bytes() == theirs.total_bytes()
    assert ours.non_virtual_bytes() == theirs.non_virtual_bytes()
    assert ours.exclusive_bytes == ours.native_bytes
    assert ours.shared_bytes == 0


def test_all_kinds_are_counted_as_the_official_library_counts_them(tmp_path):
    kinds = ("inline", "native", "virtual", "missing")
    arrays = {
        "a": official_repos.ArrayPlan((9, 9), (2, 2), kinds),
        "b": official_repos.ArrayPlan((40,), (3,), kinds),
    }
    plan = official_repos.RepositoryPlan(arrays=arrays, split=3)
    repository = official_repos.build(tmp_path / "repo", plan)
    (ours,) = chunk_storage_stats(assets(repository.path))
    theirs = repository.open().chunk_storage_stats()
    assert (ours.native_bytes, ours.virtual_bytes) == (theirs.native_bytes, theirs.virtual_bytes)
    assert ours.native_bytes > 0
    assert ours.virtual_bytes > 0
    assert ours.inlined_bytes == theirs.inlined_bytes > 0
    by_array = stats(repository.path, "array")
    assert set(by_array) == {"/a", "/b"}
    assert sum(item.native_bytes for item in by_array.values()) == ours.native_bytes
    assert sum(item.inlined_bytes for item in by_array.values()) == ours.inlined_bytes


@pytest.fixture
def line(tmp_path):
    """Chunk 0 in all of four commits, chunk 1 written anew in each but the first."""
    path = tmp_path / "repo"
    repo = create(path)
    ids = [repo.lookup_branch("main")]
    for number in range(3):
        session = repo.writable_session("main")
        write_chunk(session, 1, number)
        ids.append(session.commit(f"{number}"))
    return path, ids


def test_a_snapshot_has_for_itself_what_nothing_else_needs(line):
    path, ids = line
    found = stats(path, "snapshot")
    assert [found[item].native_bytes // CHUNK_BYTES for item in ids] == [1, 2, 2, 2]
    assert [found[item].exclusive_bytes // CHUNK_BYTES for item in ids] == [0, 1, 1, 1]
    assert [found[item].shared_bytes // CHUNK_BYTES for item in ids] == [1, 1, 1, 1]


def test_that_is_what_expiring_it_gains(line):
    path, ids = line
    gain = stats(path, "snapshot")[ids[1]].exclusive_bytes
    before = chunk_bytes(path)
    official(path).create_tag("first", ids[0])
    written = official(path).lookup_snapshot(ids[2]).written_at
    expire_snapshots(assets(path), written)
    garbage_collect(assets(path), FUTURE, force=True)
    assert before - chunk_bytes(path) == gain > 0


def test_branches_share_what_lies_before_they_part(line):
    path, ids = line
    repo = official(path)
    repo.create_branch("side", ids[1])
    session = repo.writable_session("side")
    write_chunk(session, 2, 2)
    session.commit("side")
    found = stats(path, "branch")
    # Chunk 0 and the first chunk 1 are common.
    assert found["main"].native_bytes == 4 * CHUNK_BYTES
    assert found["main"].exclusive_bytes == 2 * CHUNK_BYTES
    assert found["side"].native_bytes == 3 * CHUNK_BYTES
    assert found["side"].exclusive_bytes == CHUNK_BYTES


def test_snapshots_that_nothing_holds_do_not_count(line):
    path, _ = line
    before = stats(path, "repository")[""]
    session = official(path).writable_session("main")
    write_chunk(session, 3, 3)
    session.flush("detached")
    assert stats(path, "repository")[""] == before


def test_there_is_no_other_breakdown(line):
    with pytest.raises(InvalidInputError):
        chunk_storage_stats(assets(line[0]), "colour")


def test_an_empty_repository_needs_nothing(tmp_path):
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert chunk_storage_stats(assets(tmp_path / "repo")) == ()


def refs(*items):
    return ChunkRefs.of([((n,), ref) for n, ref in enumerate(items)], 1)


def test_packed_chunks_count_by_their_ranges():
    """The official library counts the first reference of an object alone."""
    pack, other = ChunkId(b"p" * 12), ChunkId(b"o" * 12)
    shares = Shares()
    shares.add(0, refs(NativeRef(pack, 0, 10), NativeRef(pack, 10, 5), NativeRef(other, 0, 7)))
    shares.add(1, refs(NativeRef(pack, 10, 5), NativeRef(pack, 10, 5), NativeRef(pack, 15, 1)))
    native = RefKind.NATIVE
    assert sorted(shares, key=lambda share: share.places) == [
        Share((0,), native, 17),
        Share((0, 1), native, 5),
        Share((1,), native, 1),
    ]


def test_virtual_chunks_count_by_location_and_range_and_inline_ones_each():
    shares = Shares()
    here, there = VirtualRef("s3://a/b", 0, 10), VirtualRef("s3://a/c", 0, 10)
    shares.add(0, refs(here, there, InlineRef(b"123")))
    shares.add(1, refs(VirtualRef("s3://a/b", 0, 10, "etag"), InlineRef(b"123")))
    found = {(share.kind, share.places): share.size for share in shares}
    assert found == {
        (RefKind.VIRTUAL, (0,)): 10,
        (RefKind.VIRTUAL, (0, 1)): 10,
        (RefKind.INLINE, (0,)): 3,
        (RefKind.INLINE, (1,)): 3,
    }


def test_many_references_are_counted_without_a_loop_over_them():
    rng = np.random.default_rng(0)
    count = 200_000
    ids = rng.integers(0, 256, (count, 12), np.uint8)
    index = np.arange(count, dtype=np.uint32)[:, None]
    shares = Shares()
    for place in range(5):
        chosen = slice(place * 10_000, count)
        part = ChunkRefs.native(
            index[chosen],
            ids[chosen],
            np.zeros(count, np.uint64)[chosen],
            np.ones(count, np.uint64)[chosen],
        )
        shares.add(place, part)
    found = {share.places: share.size for share in shares}
    assert found == {
        (0,): 10_000,
        (0, 1): 10_000,
        (0, 1, 2): 10_000,
        (0, 1, 2, 3): 10_000,
        (0, 1, 2, 3, 4): count - 40_000,
    }
