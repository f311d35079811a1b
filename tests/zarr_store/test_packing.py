"""Chunk packing and coalesced reads, seen through zarr."""

import asyncio
import pickle

import icechunk
import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype

from icefloe import (
    CachingConfig,
    PackingConfig,
    Repository,
    RepositoryConfig,
    StorageError,
)

icechunk.set_logs_filter("error")
CHUNK = 1000
DATA = np.random.default_rng(7).integers(0, 255, (100, CHUNK), np.uint8)


def packing(**settings):
    return RepositoryConfig(packing=PackingConfig(**settings))


def create(store, data=DATA):
    array = zarr.create_array(
        store, name="a", shape=data.shape, chunks=(1, CHUNK), dtype="u1", compressors=None
    )
    array[:] = data
    return array


def read(session):
    return zarr.open_array(session.store, path="a", mode="r")[:]


def buffered(session):
    packer = session._packer
    return len(packer._open.data) + sum(len(pack.data) for pack in packer._full.values())


def test_many_small_chunks_take_one_object(storage):
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    create(session.store)
    assert storage.chunk_objects() == []
    session.commit("packed")
    assert len(storage.chunk_objects()) == 1
    assert np.array_equal(read(repo.readonly_session("main")), DATA)


def test_a_session_reads_what_waits_in_its_packs(storage):
    session = Repository.create(storage, config=packing(target_bytes=10 * CHUNK)).writable_session(
        "main"
    )
    array = create(session.store, DATA[:25])
    assert len(storage.chunk_objects()) == 2
    assert buffered(session) == 5 * CHUNK
    assert np.array_equal(array[:], DATA[:25])
    assert np.array_equal(array[22:24, 10:20], DATA[22:24, 10:20])
    array[24] = DATA[0]
    assert np.array_equal(array[24], DATA[0])


def test_packing_can_be_off_and_large_chunks_are_alone(storage):
    session = Repository.create(storage, config=packing(enabled=False)).writable_session("main")
    create(session.store)
    assert len(storage.chunk_objects()) == len(DATA)
    session = Repository.open(storage, config=packing(enabled=True, max_chunk_bytes=CHUNK))
    session = session.writable_session("main")
    create(session.store)
    assert len(storage.chunk_objects()) == 2 * len(DATA)


async def test_what_is_buffered_is_bounded_however_many_write(storage):
    target = 20 * CHUNK
    repo = Repository.create(storage, config=packing(target_bytes=target))
    session = repo.writable_session("main")
    count = 2000
    group = await zarr.api.asynchronous.create_array(
        session.store, name="a", shape=(count, CHUNK), chunks=(1, CHUNK), dtype="u1"
    )
    assert group is not None
    storage.delay = 0.002
    peak = 0

    async def write(first):
        nonlocal peak
        for row in range(first, count, 100):
            await session.store.set(f"a/c/{row}/0", cpu.Buffer.from_bytes(DATA[row % 100]))
            peak = max(peak, buffered(session))

    await asyncio.gather(*(write(first) for first in range(100)))
    # Three packs under way, and the open one.
    assert target < peak <= 4 * target
    session.commit("written")
    assert buffered(session) == 0
    assert len(storage.chunk_objects()) == count * CHUNK // target


@pytest.mark.parametrize("step", ["commit", "flush", "fork", "amend"])
def test_what_others_may_read_is_uploaded_first(storage, step):
    repo = Repository.create(storage)
    with repo.transaction("main", message="to be amended") as store:
        zarr.group(store)
    session = repo.writable_session("main")
    create(session.store)
    if step == "fork":
        assert np.array_equal(read(pickle.loads(pickle.dumps(session.fork()))), DATA)
    else:
        snapshot_id = getattr(session, step)("written")
        assert np.array_equal(read(repo.readonly_session(snapshot_id=snapshot_id)), DATA)
    assert len(storage.chunk_objects()) == 1


def test_a_pickled_fork_leaves_nothing_behind(storage):
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    create(session.store, DATA * 0)
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[:] = DATA
    assert storage.chunk_objects() == []
    travelled = pickle.loads(pickle.dumps(fork))
    assert len(storage.chunk_objects()) == 1
    assert buffered(fork) == 0
    session.merge(travelled)
    assert np.array_equal(read(session), DATA)


def test_forks_in_one_process_fill_packs_together(storage):
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    create(session.store, DATA * 0)
    forks = [session.fork() for _ in range(10)]
    for number, fork in enumerate(forks):
        rows = slice(number * 10, number * 10 + 10)
        zarr.open_array(fork.store, path="a")[rows] = DATA[rows]
        session.merge(fork)
    assert np.array_equal(read(session), DATA)
    session.commit("merged")
    assert len(storage.chunk_objects()) == 1
    assert np.array_equal(read(repo.readonly_session("main")), DATA)


@pytest.mark.parametrize("target", [10 * CHUNK, 2**20], ids=["while writing", "at the commit"])
def test_a_failed_upload_loses_nothing(storage, target):
    repo = Repository.create(storage, config=packing(target_bytes=target))
    session = repo.writable_session("main")
    array = create(session.store, DATA * 0)
    storage.fails_on = "chunks/"
    try:
        array[:35] = DATA[:35]
    except StorageError:
        assert target == 10 * CHUNK
    with pytest.raises(StorageError):
        session.commit("in vain")
    kept = np.flatnonzero((array[:35] == DATA[:35]).all(axis=1))
    assert len(kept) > 0
    storage.fails_on = None
    array[35:] = DATA[35:]
    session.commit("written")
    found = read(repo.readonly_session("main"))
    assert np.array_equal(found[kept], DATA[kept])
    assert np.array_equal(found[35:], DATA[35:])
    if target > 10 * CHUNK:
        assert len(kept) == 35


def test_the_official_library_reads_and_rewrites_packed_chunks(tmp_path):
    repo = Repository.create(tmp_path / "repo")
    with repo.transaction("main", message="packed") as store:
        create(store)
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert np.array_equal(read(theirs.readonly_session("main")), DATA)
    session = theirs.writable_session("main")
    zarr.open_array(session.store, path="a")[50] = DATA[0]
    session.commit("one chunk of the pack")
    expected = DATA.copy()
    expected[50] = DATA[0]
    assert np.array_equal(read(repo.readonly_session("main")), expected)


async def test_neighbours_asked_for_at_once_take_one_request(storage):
    repo = Repository.create(storage)
    with repo.transaction("main", message="packed") as store:
        await asyncio.to_thread(create, store)
    store = repo.readonly_session("main").store
    prototype = default_buffer_prototype()
    storage.reads.clear()
    found = await asyncio.gather(*(store.get(f"a/c/{row}/0", prototype) for row in range(100)))
    assert [each.to_bytes() for each in found] == [row.tobytes() for row in DATA]
    assert storage.reads == {"manifests": 1, "chunks": 1}


@pytest.mark.parametrize(("concurrency", "requests"), [(10, 10), (100, 1)])
def test_a_read_through_zarr_takes_a_request_for_each_turn_of_zarr(storage, concurrency, requests):
    repo = Repository.create(storage)
    with repo.transaction("main", message="packed") as store:
        create(store)
    storage.reads.clear()
    with zarr.config.set({"async.concurrency": concurrency}):
        assert np.array_equal(read(repo.readonly_session("main")), DATA)
    assert storage.reads["chunks"] <= requests


async def test_partial_values_are_read_from_few_keys_at_once_and_a_key_in_one_request(storage):
    config = packing(enabled=False).merge(RepositoryConfig(get_partial_values_concurrency=3))
    session = Repository.create(storage, config=config).writable_session("main")
    await asyncio.to_thread(create, session.store)
    storage.delay = 0.005
    parts = [
        (f"a/c/{row}/0", RangeByteRequest(start, start + 10))
        for start in (0, 500)
        for row in range(10)
    ]
    found = await session.store.get_partial_values(default_buffer_prototype(), iter(parts))
    expected = [DATA[row, start : start + 10] for start in (0, 500) for row in range(10)]
    assert [each.to_bytes() for each in found] == [each.tobytes() for each in expected]
    assert storage.reads["chunks"] == 10
    assert storage.most_under_way == 3


@pytest.mark.parametrize("budget", [0, 10 * CHUNK, 200 * CHUNK])
def test_the_chunk_cache_keeps_as_many_bytes_as_it_may(storage, budget):
    repo = Repository.create(storage)
    with repo.transaction("main", message="packed") as store:
        create(store)
    config = RepositoryConfig(caching=CachingConfig(num_bytes_chunks=budget))
    session = Repository.open(storage, config=config).readonly_session("main")
    assert np.array_equal(read(session), DATA)
    cache = session._reader._cache
    assert cache._size == min(budget, 100 * CHUNK)
    storage.reads.clear()
    array = zarr.open_array(session.store, path="a", mode="r")
    assert np.array_equal(array[95:], DATA[95:])
    assert storage.reads["chunks"] == (0 if budget else 1)
    storage.reads.clear()
    assert np.array_equal(array[:5], DATA[:5])
    assert storage.reads["chunks"] == (0 if budget > 100 * CHUNK else 1)
