"""Threads share a session: a write that returned is in the commit, or it raised."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import icechunk
import numpy as np
import pytest
import zarr

from concurrency.hooks import PATIENCE, Hooked, create, write
from icefloe import (
    ConflictDetector,
    ConflictError,
    MemoryStorage,
    ReadOnlyError,
    Repository,
    StorageError,
)

LARGE = b"x" * 4096
"""Too large for a manifest, so it goes into a pack."""
SINGLE = b"y" * (2 * 2**20)
"""Too large for a pack, so it is an object of its own."""


class Gate:
    """A hook that stops the first storage call of a kind until it is opened."""

    def __init__(self, wanted):
        self._wanted = wanted
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, verb, first):
        if self._wanted(verb, first) and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(PATIENCE)


def is_upload_of_a_chunk(verb, first):
    return verb == "put" and str(first).startswith("chunks/")


def is_write_of_a_snapshot(verb, first):
    items = first if verb == "put_many" else [(first, b"")]
    return verb in ("put", "put_many") and any(key.startswith("snapshots/") for key, *_ in items)


def read(repo, at):
    return asyncio.run(repo.readonly_session("main").get_chunk("/a", (at,)))


@pytest.mark.parametrize("verb", ["commit", "flush", "amend"])
def test_a_write_that_is_still_uploading_when_the_session_ends_raises(verb):
    plain = MemoryStorage()
    create(plain)
    gate = Gate(is_upload_of_a_chunk)
    session = Repository.open(Hooked(plain, gate)).writable_session("main")
    write(session, 0)
    with ThreadPoolExecutor() as pool:
        late = pool.submit(write, session, 1, SINGLE)
        assert gate.reached.wait(PATIENCE)
        snapshot_id = getattr(session, verb)("ours")
        gate.opened.set()
        with pytest.raises(ReadOnlyError, match=snapshot_id):
            late.result()
    refs = Repository.open(plain).readonly_session(snapshot_id=snapshot_id).refs("/a")
    assert refs.index.ravel().tolist() == [0, 15]


@pytest.mark.parametrize("data", [b"inline", LARGE, SINGLE], ids=["inline", "packed", "single"])
def test_a_write_during_a_commit_raises_and_says_so(data):
    plain = MemoryStorage()
    create(plain)
    gate = Gate(is_write_of_a_snapshot)
    session = Repository.open(Hooked(plain, gate)).writable_session("main")
    write(session, 0, LARGE)
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(session.commit, "ours")
        assert gate.reached.wait(PATIENCE)
        for change in (
            lambda: write(session, 1, data),
            lambda: session.set_node("/g", b'{"zarr_format": 3, "node_type": "group"}'),
            lambda: session.delete_node("/a"),
            lambda: session.shift_array("/a", [1]),
            session.discard_changes,
            session.fork,
            lambda: session.commit("again"),
        ):
            with pytest.raises(ReadOnlyError, match="by another thread"):
                change()
        assert asyncio.run(session.get_chunk("/a", (0,))) == LARGE
        gate.opened.set()
        committing.result()
    assert read(Repository.open(plain), 0) == LARGE


def test_after_a_commit_that_failed_the_session_takes_writes_again():
    plain = MemoryStorage()
    create(plain)
    rival = Repository.open(plain)
    session = Repository.open(plain).writable_session("main")
    write(session, 0, LARGE)
    theirs = rival.writable_session("main")
    write(theirs, 5)
    theirs.commit("theirs")
    with pytest.raises(ConflictError):
        session.commit("ours")
    write(session, 1, LARGE)
    session.commit("ours", rebase_with=ConflictDetector())
    assert {read(rival, at) for at in (0, 1)} == {LARGE}


def test_a_write_that_meets_discarded_changes_is_written_anew():
    plain = MemoryStorage()
    create(plain)
    gate = Gate(is_upload_of_a_chunk)
    repo = Repository.open(Hooked(plain, gate))
    session = repo.writable_session("main")
    packer = session._packer
    # A pack that is full is uploaded by the write that filled it: there it can be stopped.
    packer._target = len(LARGE)
    with ThreadPoolExecutor() as pool:
        late = pool.submit(write, session, 1, LARGE)
        assert gate.reached.wait(PATIENCE)
        session.discard_changes()
        gate.opened.set()
        late.result()
    session.commit("ours")
    assert read(repo, 1) == LARGE


def test_a_pack_whose_upload_failed_is_uploaded_by_the_commit():
    plain = MemoryStorage()
    create(plain)
    failures = iter([True])

    def before(verb, first):
        if is_upload_of_a_chunk(verb, first) and next(failures, False):
            raise StorageError("the connection broke")

    session = Repository.open(Hooked(plain, before)).writable_session("main")
    session._packer._target = 2 * len(LARGE)
    write(session, 0, LARGE)
    with pytest.raises(StorageError):
        write(session, 1, LARGE)
    session.commit("ours")
    assert read(Repository.open(plain), 0) == LARGE


def test_a_listing_shows_one_moment_though_the_session_is_committed_meanwhile():
    plain = MemoryStorage()
    create(plain)
    session = Repository.open(plain).writable_session("main")
    write(session, 0, LARGE)

    async def listed():
        found = []
        async for batch in session.chunk_batches("/a"):
            if not found:
                await asyncio.to_thread(session.commit, "ours")
            found += batch.ravel().tolist()
        return sorted(found)

    assert asyncio.run(listed()) == [0, 15]


@pytest.mark.parametrize("dirty", [False, True])
def test_threads_that_fork_one_session_wait_for_each_other(dirty):
    plain = MemoryStorage()
    create(plain)
    gate = Gate(is_write_of_a_snapshot)
    session = Repository.open(Hooked(plain, gate)).writable_session("main")
    if dirty:
        write(session, 0, LARGE)
    with ThreadPoolExecutor() as pool:
        forking = [pool.submit(session.fork) for _ in range(4)]
        if dirty:
            assert gate.reached.wait(PATIENCE)
            gate.opened.set()
        forks = [done.result() for done in forking]
    for at, fork in enumerate(forks, 1):
        write(fork, at, LARGE)
    session.merge(*forks)
    gate.opened.set()
    session.commit("merged")
    assert {read(Repository.open(plain), at) for at in range(1, 5)} == {LARGE}


def test_a_fork_that_others_write_to_while_it_is_merged_brings_whole_chunks():
    repo = create(MemoryStorage(), chunks=4000)
    session = repo.writable_session("main")
    fork = session.fork()
    stop = threading.Event()

    def keep_writing():
        written = []
        for at in range(3000):
            if stop.is_set():
                break
            try:
                write(fork, at, LARGE)
            except ReadOnlyError:
                break
            written.append(at)
        return written

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(keep_writing)
        while not fork.has_uncommitted_changes:
            pass
        session.merge(fork)
        stop.set()
        written = writing.result()
    session.commit("merged")
    found = repo.readonly_session("main").refs("/a").index.ravel().tolist()
    assert [at for at in found if at < 3000] == written
    assert all(read(repo, at) == LARGE for at in written)
    assert len(found) > 1


def test_a_write_to_a_fork_that_was_merged_raises_and_one_that_was_not_goes_on():
    repo = create(MemoryStorage())
    session = repo.writable_session("main")
    first, second = session.fork(), session.fork()
    write(first, 0)
    write(second, 0)
    session.merge(first)
    with pytest.raises(ReadOnlyError, match="was merged"):
        write(first, 1)
    assert asyncio.run(first.get_chunk("/a", (0,))) == b"x"
    with pytest.raises(ConflictError):
        session.merge(second)
    # It was not merged, so it may mend what stood in the way.
    asyncio.run(second.delete_chunk("/a", (0,)))
    write(second, 2)
    session.merge(second, on_conflict="last-wins")


@pytest.mark.parametrize("size", [8, 1024, 2**20], ids=["inline", "packed", "single"])
@pytest.mark.parametrize("verb", ["commit", "flush"])
def test_what_threads_wrote_through_zarr_before_a_commit_is_there_and_the_rest_raised(
    tmp_path, size, verb
):
    """Not forced: many rounds of what a user would do; before, nearly every one lost something."""
    repo = Repository.create(tmp_path / "repo")
    with repo.transaction("main", message="start") as store:
        zarr.create_array(
            store, name="a", shape=(400 * size,), chunks=(size,), dtype="u1", compressors=None
        )
    for number in range(3):
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="a", mode="r+")
        started = threading.Barrier(5)
        value = number + 1

        def work(worker, array=array, value=value, started=started):
            written = []
            started.wait(PATIENCE)
            for at in range(worker, 400, 4):
                try:
                    array[at * size : (at + 1) * size] = value
                except ReadOnlyError:
                    return written
                written.append(at)
            return written

        with ThreadPoolExecutor() as pool:
            working = [pool.submit(work, worker) for worker in range(4)]
            started.wait(PATIENCE)
            while not session.has_uncommitted_changes:
                pass
            snapshot_id = getattr(session, verb)(f"round {number}")
            written = {at for done in working for at in done.result()}
        theirs = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(tmp_path / "repo"))
        ).readonly_session(snapshot_id=snapshot_id)
        shown = np.asarray(zarr.open_array(theirs.store, path="a", mode="r")[:])
        there = {at for at in range(400) if (shown[at * size : (at + 1) * size] == value).all()}
        assert there == written
