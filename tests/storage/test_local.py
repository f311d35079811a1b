"""The local file system: one order of writes per key, whatever is killed or paused on the way."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    PermissionDeniedError,
    StorageError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from icefloe.storage import Version, open_storage

CORE = Path(__file__).parents[2] / "core"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "repository"


@pytest.fixture
def storage(root):
    return open_storage(root)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def keys(storage):
    return [info.key for page in storage.list() for info in page]


def test_nothing_but_the_objects_is_left_in_the_folder(storage, root):
    version = storage.put_if("repo", b"1", expected=None)
    version = storage.put_if("repo", b"2", expected=version)
    with pytest.raises(ConflictError):
        storage.put_if("repo", b"3", expected=None)
    with pytest.raises(ConflictError):
        storage.put_if("repo", b"3", expected=Version("stale"))
    storage.put("repo", b"4")
    storage.put("chunks/A", b"5")
    storage.copy("repo", "overwritten/repo.1")
    storage.delete(["chunks/A", "missing"])
    assert files(root) == ["overwritten/repo.1", "repo"]


def test_a_version_is_the_content_and_nothing_else(storage, root):
    version = storage.put("repo", b"same")
    storage.put("repo", b"other")
    assert storage.put("repo", b"same") == version
    os.utime(root / "repo", (0, 0))
    assert storage.get("repo").version == version


def test_an_object_is_never_changed_in_place(storage, root):
    storage.put("repo", b"old")
    with open(root / "repo", "rb") as reader:
        storage.put("repo", b"newer")
        storage.put_if("repo", b"newest", expected=storage.get("repo").version)
        assert reader.read() == b"old"


class Pause:
    """Holds one thread inside a system call until told to go on."""

    def __init__(self, monkeypatch, name):
        self._call = getattr(os, name)
        self._thread = None
        self.reached = threading.Event()
        self.go_on = threading.Event()
        monkeypatch.setattr(os, name, self._pause)

    def _pause(self, *arguments):
        if threading.get_ident() == self._thread:
            self._thread = None
            self.reached.set()
            assert self.go_on.wait(10)
        return self._call(*arguments)

    def run(self, work):
        self._thread = threading.get_ident()
        return work()


@pytest.mark.parametrize("rival", ["put_if", "put", "delete"])
def test_a_rival_waits_while_a_swap_is_between_its_check_and_its_rename(
    storage, root, monkeypatch, rival
):
    before = storage.put("repo", b"before")
    pause = Pause(monkeypatch, "rename")
    rivals = {
        "put_if": lambda: open_storage(root).put_if("repo", b"rival", expected=before),
        "put": lambda: open_storage(root).put("repo", b"rival"),
        "delete": lambda: open_storage(root).delete(["repo"]),
    }
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(pause.run, lambda: storage.put_if("repo", b"ours", expected=before))
        assert pause.reached.wait(10)
        theirs = pool.submit(rivals[rival])
        time.sleep(0.2)
        assert not theirs.done()
        pause.go_on.set()
        ours.result(10)
        if rival == "put_if":
            with pytest.raises(ConflictError):
                theirs.result(10)
            assert storage.get("repo").data == b"ours"
        else:
            theirs.result(10)
            left = storage.get("repo").data if storage.exists("repo") else None
            assert left == {"put": b"rival", "delete": None}[rival]


def test_a_swap_that_waited_sees_what_was_put_meanwhile(storage, root, monkeypatch):
    before = storage.put("repo", b"before")
    pause = Pause(monkeypatch, "rename")
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(pause.run, lambda: storage.put("repo", b"theirs"))
        assert pause.reached.wait(10)
        ours = pool.submit(open_storage(root).put_if, "repo", b"ours", expected=before)
        time.sleep(0.2)
        assert not ours.done()
        pause.go_on.set()
        theirs.result(10)
        with pytest.raises(ConflictError):
            ours.result(10)
    assert storage.get("repo").data == b"theirs"


def test_a_create_between_the_check_and_the_link_of_another_wins_alone(storage, root, monkeypatch):
    pause = Pause(monkeypatch, "link")
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(pause.run, lambda: storage.put_if("repo", b"ours", expected=None))
        assert pause.reached.wait(10)
        open_storage(root).put_if("repo", b"theirs", expected=None)
        pause.go_on.set()
        with pytest.raises(ConflictError):
            ours.result(10)
    assert storage.get("repo").data == b"theirs"
    assert files(root) == ["repo"]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_child_forked_under_the_lock_does_not_keep_it(storage, root, monkeypatch):
    before = storage.put("repo", b"before")
    pause = Pause(monkeypatch, "rename")
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(pause.run, lambda: storage.put_if("repo", b"ours", expected=before))
        assert pause.reached.wait(10)
        waiting = pool.submit(open_storage(root).put_if, "repo", b"late", expected=before)
        time.sleep(0.2)
        child.start()
        try:
            pause.go_on.set()
            ours.result(10)
            with pytest.raises(ConflictError):
                waiting.result(5)
            assert child.is_alive()
        finally:
            child.kill()
            child.join()


def test_writers_of_different_keys_do_not_wait_for_each_other(storage, root, monkeypatch):
    storage.put("a", b"1")
    storage.put("b", b"1")
    pause = Pause(monkeypatch, "rename")
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(pause.run, lambda: storage.put("a", b"2"))
        assert pause.reached.wait(10)
        pool.submit(storage.put, "b", b"2").result(5)
        pause.go_on.set()
        slow.result(10)
    assert storage.get_many(["a", "b"]) == [b"2", b"2"]


# A child that stops dead, or for long, at the n-th call of a function of the os module.
CHILD = """
import os, signal, sys, time
from icefloe.storage import open_storage
root, verb, point, how = sys.argv[1:]
storage = open_storage(root)
call = getattr(os, point)
def stop(*arguments):
    print("reached", flush=True)
    if how == "after":
        call(*arguments)
    if how == "hang":
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)
before = storage.get("repo") if storage.exists("repo") else None
setattr(os, point, stop)
if verb == "put":
    storage.put("repo", b"new" * 1000)
else:
    storage.put_if("repo", b"new" * 1000, expected=before and before.version)
"""


def child(root, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), *arguments],
        env={**os.environ, "PYTHONPATH": str(CORE)},
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("verb", "exists", "point", "how", "survivor"),
    [
        ("put", True, "fsync", "before", b"old"),
        ("put", True, "rename", "before", b"old"),
        ("put", True, "rename", "after", b"new" * 1000),
        ("swap", True, "fsync", "before", b"old"),
        ("swap", True, "rename", "before", b"old"),
        ("swap", True, "rename", "after", b"new" * 1000),
        ("create", False, "fsync", "before", None),
        ("create", False, "link", "before", None),
        ("create", False, "link", "after", b"new" * 1000),
    ],
)
def test_a_killed_writer_leaves_the_old_object_or_the_new_and_blocks_nobody(
    storage, root, verb, exists, point, how, survivor
):
    # So that no folder is left to be made, and synced, before the file is.
    root.mkdir()
    if exists:
        storage.put("repo", b"old")
    with child(root, verb, point, how) as process:
        assert process.wait(30) == -signal.SIGKILL
        assert process.stdout.read() == b"reached\n"
    found = storage.get("repo") if storage.exists("repo") else None
    assert (found and found.data) == survivor
    assert keys(storage) == (["repo"] if survivor else [])
    started = time.monotonic()
    storage.put_if("repo", b"next", expected=found and found.version)
    assert time.monotonic() - started < 5
    assert storage.get("repo").data == b"next"
    assert keys(storage) == ["repo"]


def test_the_lock_of_a_killed_holder_goes_to_the_next(storage, root):
    before = storage.put("repo", b"old")
    with child(root, "swap", "rename", "hang") as process, ThreadPoolExecutor(1) as pool:
        assert process.stdout.readline() == b"reached\n"
        ours = pool.submit(storage.put_if, "repo", b"ours", expected=before)
        time.sleep(0.3)
        assert not ours.done()
        process.kill()
        ours.result(10)
    assert storage.get("repo").data == b"ours"
    assert keys(storage) == ["repo"]


def test_a_temporary_file_is_no_object(storage, root):
    storage.put("chunks/A", b"x")
    name = f".icefloe-{'0' * 32}.tmp"
    (root / "chunks" / name).write_bytes(b"torn")
    assert keys(storage) == ["chunks/A"]
    with pytest.raises(InvalidInputError):
        storage.get(f"chunks/{name}")
    with pytest.raises(InvalidInputError):
        storage.put(f"chunks/{name}", b"x")


def test_an_object_and_a_folder_cannot_share_a_name_and_the_error_says_where(storage, root):
    storage.put("a/b", b"x")
    storage.put("c", b"x")
    for call in (
        lambda: storage.put("a", b"y"),
        lambda: storage.put_if("a", b"y", expected=Version("x")),
        lambda: storage.put("c/d", b"y"),
    ):
        with pytest.raises(StorageError) as caught:
            call()
        assert storage.url in str(caught.value)
    assert files(root) == ["a/b", "c"]


def test_a_deletion_that_fails_is_reported_by_key(storage, root, monkeypatch):
    storage.put_many([("a", b""), ("b", b""), ("c", b"")])
    unlink = os.unlink

    def refuse(path):
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    result = storage.delete(["a", "b", "c"])
    assert result.deleted == 2
    assert list(result.failures) == ["b"]
    assert keys(storage) == ["b"]


def test_a_refused_permission_is_told_as_one(storage, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PermissionDeniedError):
        storage.put("a", b"x")


def test_a_file_system_without_hard_links_is_unsafe(storage, root, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnsafeStorageError, match="hard links"):
        storage.put_if("repo", b"x", expected=None)
    assert files(root) == []


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(storage, root, monkeypatch):
    storage.put("repo", b"old")
    fsync = os.fsync

    def fail(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnknownOutcomeError):
        storage.put_if("repo", b"new", expected=storage.get("repo").version)


def test_the_bytes_are_synced_before_they_get_their_name_and_the_name_after(
    storage, root, monkeypatch
):
    storage.put("repo", b"old")
    steps = []
    for name in ("fsync", "rename", "link"):
        call = getattr(os, name)

        def note(*arguments, name=name, call=call):
            folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            steps.append("fsync folder" if folder else name)
            return call(*arguments)

        monkeypatch.setattr(os, name, note)
    storage.put_if("repo", b"new", expected=storage.get("repo").version)
    assert steps == ["fsync", "rename", "fsync folder"]
    steps.clear()
    storage.put_if("other", b"new", expected=None)
    assert steps == ["fsync", "link", "fsync folder"]
    steps.clear()
    storage.put("folder/new", b"new")
    assert steps == ["fsync folder", "fsync", "link", "fsync folder"]
    steps.clear()
    storage.delete(["repo"])
    assert steps == ["fsync folder"]


def test_a_link_whose_answer_was_lost_counts_as_made(storage, monkeypatch):
    link = os.link

    def forget(source, target):
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", forget)
    storage.put_if("repo", b"ours", expected=None)
    assert storage.get("repo").data == b"ours"


def test_objects_deleted_during_a_listing_are_left_out(storage):
    storage.put_many([(f"a{i:04}", b"") for i in range(1500)])
    pages = storage.list()
    first = next(pages)
    storage.delete(["a1400"])
    rest = [info.key for page in pages for info in page]
    assert len(first) + len(rest) == 1499
