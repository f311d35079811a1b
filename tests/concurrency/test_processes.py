"""Processes that meet: many committers on one branch, and two attempts at one write."""

import multiprocessing
from itertools import count

import pytest

from concurrency.hooks import At, Hooked, check_history, chunks, create, logged, messages, write
from icefloe import ConflictDetector, Repository, open_storage

PROCESSES, COMMITS = 8, 3
KEY = "dag/run/task"
FORK = multiprocessing.get_context("fork")

# Children of a process with threads: safe here, since handles are rebuilt after a fork.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")


def data(worker, number):
    """Too large for a manifest, so that the chunk is an object."""
    return f"{worker}/{number}".encode().ljust(700, b".")


def commit_all(url, options, worker, started):
    repo = Repository.open(url, options)
    started.wait(30)
    for number in range(COMMITS):
        session = repo.writable_session("main")
        write(session, worker * COMMITS + number, data(worker, number))
        session.commit(f"{worker}/{number}", rebase_with=ConflictDetector())


def run_all(target, *arguments):
    started = FORK.Barrier(PROCESSES)
    children = [
        FORK.Process(target=target, args=(*arguments, worker, started))
        for worker in range(PROCESSES)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(90)
    assert [child.exitcode for child in children] == [0] * PROCESSES


def check_all(repo):
    """Nothing lost, ancestry linear, ops log complete."""
    names = [f"{worker}/{number}" for worker in range(PROCESSES) for number in range(COMMITS)]
    found = messages(repo)
    assert sorted(found) == sorted(names)
    for worker in range(PROCESSES):
        mine = [name for name in reversed(found) if name.startswith(f"{worker}/")]
        assert mine == [f"{worker}/{number}" for number in range(COMMITS)]
    check_history(repo)
    history = [item.id for item in repo.ancestry(branch="main")]
    committed = [str(it.new_snap_id) for it in repo.ops_log() if it.kind.name == "NEW_COMMIT"]
    assert committed == history[:-1]
    assert logged(repo) == {"NEW_COMMIT": len(names)}
    assert chunks(repo) == {*range(len(names)), len(names)}
    check_bytes(repo)


def check_bytes(repo):
    session = repo.readonly_session("main")
    refs = session.refs("/a")
    for row in range(len(refs) - 1):
        ref = refs[row]
        stored = repo.storage.get_range(f"chunks/{ref.chunk_id}", ref.offset, ref.length)
        assert stored == data(*divmod(row, COMMITS))


def test_eight_processes_commit_to_one_branch_on_local_disk_and_nothing_is_lost(tmp_path):
    url = str(tmp_path / "repo")
    repo = create(open_storage(url), chunks=PROCESSES * COMMITS + 1)
    run_all(commit_all, url, {})
    check_all(repo)


@pytest.mark.s3
def test_eight_processes_commit_to_one_branch_on_s3_and_nothing_is_lost(s3_server):
    url = s3_server.root()
    create(open_storage(url, s3_server.options), chunks=PROCESSES * COMMITS + 1)
    run_all(commit_all, url, s3_server.options)
    check_all(Repository.open(url, s3_server.options))


def write_once(repo, verb, ids):
    if verb == "merge":
        return repo.merge_snapshots("main", ids, "once", write_key=KEY)
    session = repo.writable_session("main")
    write(session, 4)
    options = {"rebase_with": ConflictDetector()} if verb == "commit" else {}
    return getattr(session, verb)("once", write_key=KEY, **options)


def in_another_process(url, verb, ids):
    """The answer of one attempt, made by a process that ends afterwards."""
    answers = FORK.SimpleQueue()
    child = FORK.Process(
        target=lambda: answers.put(write_once(Repository.open(url), verb, ids)), daemon=True
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    return answers.get()


@pytest.mark.parametrize("verb", ["commit", "flush", "merge"])
def test_one_write_key_from_two_processes_ends_in_one_snapshot_whenever_they_meet(tmp_path, verb):
    for number in count():
        url = str(tmp_path / f"repo{number}")
        repo = create(open_storage(url))
        ids = []
        for at in (1, 2):
            session = repo.writable_session("main")
            write(session, at)
            ids.append(session.flush(f"staged {at}"))
        answers = []

        def rival(url=url, ids=ids, answers=answers):
            answers.append(in_another_process(url, verb, ids))

        meeting = At(number, rival)
        ours = Repository.open(Hooked(open_storage(url), meeting))
        meeting.arm()
        answers.append(write_once(ours, verb, ids))
        if not meeting.fired:
            assert number >= 5
            return
        assert len(set(answers)) == 1
        branch = None if verb == "flush" else "main"
        assert repo.find_write(KEY, branch) == answers[0]
        kinds = {"NEW_COMMIT": 1, "NEW_DETACHED_SNAPSHOT": 2}
        if verb == "flush":
            kinds = {"NEW_DETACHED_SNAPSHOT": 3}
        assert logged(repo) == kinds
