"""Many processes increment one object and lose nothing."""

import multiprocessing
import random
import time

import pytest

import servers
from icefloe.errors import ConflictError
from icefloe.storage import open_storage

PROCESSES = 16

# Children of a process with threads: safe here, since handles are rebuilt after a fork.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")


def increment(storage, times, seed, longest_wait, done):
    spread = random.Random(seed)
    conflicts = 0
    for _ in range(times):
        failed = 0
        while True:
            found = storage.get("n")
            try:
                storage.put_if("n", b"%d" % (int(found.data) + 1), expected=found.version)
                break
            except ConflictError:
                failed += 1
                time.sleep(spread.random() * min(longest_wait, 0.001 * 2**failed))
        conflicts += failed
    done.put(conflicts)


def count(storage, times, longest_wait):
    """Conflicts met by all processes together."""
    storage.put("n", b"0")
    fork = multiprocessing.get_context("fork")
    done = fork.Queue()
    children = [
        fork.Process(target=increment, args=(storage, times, seed, longest_wait, done))
        for seed in range(PROCESSES)
    ]
    for each in children:
        each.start()
    for each in children:
        each.join()
    assert [each.exitcode for each in children] == [0] * PROCESSES
    return sum(done.get(timeout=5) for _ in children)


def test_sixteen_processes_lose_no_increment_on_the_local_file_system(tmp_path):
    storage = open_storage(tmp_path)
    conflicts = count(storage, times=100, longest_wait=0.05)
    assert storage.get("n").data == b"1600"
    assert conflicts > 0
    assert [path.name for path in tmp_path.iterdir()] == ["n"]


@pytest.mark.s3
@pytest.mark.timeout(900)
def test_sixteen_processes_lose_no_increment_on_s3(open_s3):
    storage = open_s3()
    conflicts = count(storage, times=100, longest_wait=4.0)
    assert storage.get("n").data == b"1600"
    assert conflicts > 0


@pytest.mark.s3
def test_of_many_creators_one_wins(open_s3):
    fork = multiprocessing.get_context("fork")
    # Arguments to a pool are pickled, and pickles carry no secrets.
    storage = open_s3(credentials=servers.credentials)
    pool = fork.Pool(8)
    won = pool.starmap(create, [(storage, f"key{i % 4}") for i in range(32)])
    pool.close()
    pool.join()
    assert sum(won) == 4


def create(storage, key):
    try:
        storage.put_if(key, b"x", expected=None)
    except ConflictError:
        return False
    return True
