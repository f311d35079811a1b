"""A handle works from any thread, any event loop and a forked child; s3fs's traps are closed."""

import asyncio
import gc
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import s3fs
from fsspec.asyn import get_loop

from icefloe.errors import InvalidInputError, StorageError
from icefloe.storage import MemoryStorage, open_storage

pytestmark = pytest.mark.s3

forking = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")


def in_forked_child(work):
    """What `work` returns in a child of this process."""
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=lambda: answers.put(work()))
    child.start()
    try:
        return answers.get(timeout=30)
    finally:
        child.join(10)
        assert child.exitcode == 0


@forking
def test_a_handle_used_before_a_fork_works_in_parent_and_child(opener):
    storage = opener()
    storage.put("a", b"1")
    assert in_forked_child(lambda: storage.get("a").data) == b"1"
    if not storage.url.startswith("memory"):
        assert in_forked_child(lambda: storage.put_if("b", b"2", expected=None)) is not None
        assert storage.get("b").data == b"2"
    assert storage.get("a").data == b"1"


@forking
def test_a_child_forked_while_a_request_is_under_way_works(open_s3):
    storage = open_s3()
    storage.put("a", b"1" * 100_000)
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            storage.get("a")

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(keep_busy) for _ in range(2)]
        try:
            for _ in range(3):
                assert in_forked_child(lambda: len(storage.get("a").data)) == 100_000
        finally:
            stop.set()
        for each in busy:
            each.result(30)


def test_one_handle_serves_many_threads(opener):
    storage = opener()
    storage.put("a", b"1")
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda i: storage.get("a").data, range(64))]
    assert found == [b"1"] * 64


def test_one_handle_serves_one_event_loop_after_another(opener):
    storage = opener()
    for data in (b"1", b"2", b"3"):
        asyncio.run(storage.put_async("a", data))
        assert asyncio.run(storage.get_async("a")).data == data
    assert storage.get("a").data == b"3"


def test_one_handle_serves_loops_in_several_threads_at_once(opener):
    storage = opener()
    storage.put("a", b"1")

    async def read_often():
        found = await asyncio.gather(*(storage.get_async("a") for _ in range(10)))
        return {each.data for each in found}

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: asyncio.run(read_often()), range(4))] == [{b"1"}] * 4


async def test_a_blocking_call_works_inside_a_foreign_running_loop(opener):
    storage = opener()
    storage.put("a", b"1")
    assert storage.get("a").data == b"1"
    assert (await storage.get_async("a")).data == b"1"


async def test_awaiting_does_not_block_the_loop(open_s3):
    storage = open_s3()
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    await storage.put_many_async([(f"a{i}", b"x" * 10_000) for i in range(50)])
    ticking.cancel()
    assert ticks > 5


def test_the_io_loop_itself_may_await_but_not_block(open_s3):
    storage = open_s3()
    storage.put("a", b"1")
    awaited = asyncio.run_coroutine_threadsafe(storage.get_async("a"), get_loop())
    assert awaited.result(10).data == b"1"

    async def block():
        return storage.get("a")

    blocked = asyncio.run_coroutine_threadsafe(block(), get_loop())
    with pytest.raises(StorageError) as caught:
        blocked.result(10)
    assert caught.value.kind == "blocking-call-on-io-loop"


async def test_a_cancelled_wait_cancels_the_request(open_s3):
    storage = open_s3()
    storage.put("a", b"1")
    task = asyncio.create_task(storage.get_many_async(["a"] * 2000))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await storage.get_async("a")).data == b"1"


def test_instances_are_not_shared_with_other_users_of_s3fs(open_s3, s3_server):
    storage = open_s3()
    storage.put("a", b"1")
    mine = s3fs.S3FileSystem(**s3_server.options)
    assert mine.ls(storage.url) != []
    storage.put("b", b"22")
    assert storage.exists("b")
    assert storage.info("b").size == 2
    # The other instance has a listing cache, and it is stale: ours has none.
    assert not mine.exists(f"{storage.url}/b")
    del mine
    s3fs.S3FileSystem.clear_instance_cache()
    gc.collect()
    assert storage.get("a").data == b"1"


def test_our_settings_reach_no_instance_that_s3fs_hands_to_others(open_s3):
    storage = open_s3()
    storage.put("a", b"1")
    # We turn s3fs's own retries off, which other users of a cached instance would suffer from.
    shared = s3fs.S3FileSystem._cache.values()
    assert all(each.retries == s3fs.S3FileSystem.retries for each in shared)


def test_a_listing_is_never_remembered(open_s3):
    storage, other = open_s3(), open_s3()
    storage.put("a", b"1")
    assert [info.size for page in storage.list() for info in page] == [1]
    other.put("a", b"22")
    other.put("b", b"3")
    assert [info.size for page in storage.list() for info in page] == [2, 1]
    assert storage.get("a").data == b"22"
    assert storage.exists("b")
    other.delete(["a"])
    assert not storage.exists("a")


def test_many_keys_do_not_make_many_threads(tmp_path):
    storage = open_storage(tmp_path, concurrency=4)
    storage.put("a", b"1")
    most = 0

    class Watched(list):
        def __iter__(self):
            nonlocal most
            for each in super().__iter__():
                most = max(most, threading.active_count())
                yield each

    before = threading.active_count()
    assert storage.get_many(Watched(["a"] * 3000)) == [b"1"] * 3000
    assert most <= before + 4


def test_the_first_failure_stops_a_batch(open_s3, tmp_path):
    for storage in (open_s3(concurrency=2), open_storage(tmp_path, concurrency=2)):
        items = [("bad/../key", b""), *((f"a{i:04}", b"") for i in range(500))]
        with pytest.raises(InvalidInputError):
            storage.put_many(items)
        assert sum(len(page) for page in storage.list()) < 100


def test_a_pickled_handle_opens_the_same_store(tmp_path):
    memory = MemoryStorage()
    for storage in (memory, open_storage("memory://pickled"), open_storage(tmp_path)):
        storage.put("a", b"1")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.get("a").data == b"1"
        assert copy.url == storage.url


def test_memory_does_not_travel_and_says_so():
    storage = MemoryStorage()
    pickled = pickle.dumps(storage)
    del storage
    gc.collect()
    with pytest.raises(InvalidInputError, match="memory of another process"):
        pickle.loads(pickled).get("a")


def test_a_pickled_handle_keeps_its_settings(tmp_path):
    storage = pickle.loads(pickle.dumps(open_storage(tmp_path, read_only=True)))
    assert storage.read_only
    unsafe = open_storage(tmp_path, unsafe_allow_no_preconditions=True)
    assert pickle.loads(pickle.dumps(unsafe)).unsafe_allow_no_preconditions
