"""Merges that lose races: the next attempt reads and writes only what is new."""

from collections import Counter

import pytest
import zarr

from concurrency.hooks import Hooked, create, write
from icefloe import MemoryStorage, RebaseFailedError, Repository

CHUNK = b"x" * 4096


def stage(repo, at):
    session = repo.writable_session("main")
    write(session, at, CHUNK)
    return session.flush("staged")


def commit(repo, at):
    session = repo.writable_session("main")
    write(session, at, CHUNK)
    return session.commit("theirs")


def test_an_attempt_after_a_lost_race_reads_only_what_is_new():
    plain = MemoryStorage()
    rival = create(plain)
    staged = stage(rival, 0)
    for at in range(2, 6):
        commit(rival, at)
    calls, keys = [], Counter()
    rivals = iter(range(6, 10))

    def before(verb, first):
        calls.append(verb)
        if verb in ("get_many", "put_many"):
            keys.update(item if isinstance(item, str) else item[0] for item in first)
        if verb == "put_if" and (at := next(rivals, None)) is not None:
            commit(rival, at)

    repo = Repository.open(Hooked(plain, before))
    del calls[:]
    repo.publish("main", staged)
    assert calls.count("put_if") == 5
    logs = {key: times for key, times in keys.items() if key.startswith("transactions/")}
    # That of the staged snapshot, four that were there, four that came in, and five of ours.
    assert len(logs) == 1 + 4 + 4 + 5
    assert set(logs.values()) == {1}
    # Snapshot and logs; manifests, theirs and ours; all files at once; the swap. And once: what is
    # staged, and the clock.
    verbs = Counter(verb for verb in calls if verb != "get")
    assert verbs.total() <= 5 * 6 + 5, verbs
    array = zarr.open_array(rival.readonly_session("main").store, path="a", mode="r")
    assert array.nchunks_initialized == 1 + 4 + 4 + 1


def test_a_conflict_that_comes_in_between_attempts_is_found():
    plain = MemoryStorage()
    rival = create(plain)
    staged = stage(rival, 0)
    commit(rival, 2)
    rivals = iter([3, 0])

    def before(verb, first):
        if verb == "put_if" and (at := next(rivals, None)) is not None:
            commit(rival, at)

    repo = Repository.open(Hooked(plain, before))
    with pytest.raises(RebaseFailedError, match="/a"):
        repo.publish("main", staged)
