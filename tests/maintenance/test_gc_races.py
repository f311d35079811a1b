"""Writers at work during a collection, at every step of it: nothing that is reachable goes."""

import time
from datetime import UTC, datetime

import icechunk
import pytest

from icefloe.assets import Assets
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from icefloe.storage import open_storage
from maintenance.histories import assets, contents, official, write_chunk
from maintenance.watching import Watched, once


def collect(path, cutoff, before=lambda *_: None):
    storage = Watched(open_storage(path), before)
    summary = garbage_collect(Assets(storage), cutoff, force=True)
    return summary, storage.calls


def commit(repo, messy):
    session = repo.writable_session("main")
    write_chunk(session, 2, 200)
    return session.commit("race")


def amend(repo, messy):
    session = repo.writable_session("main")
    write_chunk(session, 2, 200)
    return session.amend("race")


def flush(repo, messy):
    session = repo.writable_session("main")
    write_chunk(session, 2, 200)
    return session.flush("race")


def flush_on_a_doomed_snapshot(repo, messy):
    repo.create_branch("race", messy.detached)
    session = repo.writable_session("race")
    write_chunk(session, 2, 200)
    snapshot = session.flush("race")
    repo.delete_branch("race")
    return snapshot


def tag_a_doomed_snapshot(repo, messy):
    repo.create_tag("race", messy.detached)
    return messy.detached


def branch_from_a_doomed_snapshot(repo, messy):
    repo.create_branch("race", messy.lost)
    return messy.lost


def reset_to_a_doomed_snapshot(repo, messy):
    repo.reset_branch("main", messy.detached)
    return messy.detached


def commit_on_a_doomed_snapshot(repo, messy):
    repo.reset_branch("side", messy.detached)
    session = repo.writable_session("side")
    write_chunk(session, 2, 200)
    return session.commit("race")


RACES = [
    commit,
    amend,
    flush,
    flush_on_a_doomed_snapshot,
    tag_a_doomed_snapshot,
    branch_from_a_doomed_snapshot,
    reset_to_a_doomed_snapshot,
    commit_on_a_doomed_snapshot,
]


def test_the_plan_dooms_what_the_races_revive(messy, copies):
    path = copies()
    summary, _ = collect(path, messy.end)
    known = {item.id for item in official(path).ancestry(branch="main")}
    assert summary.snapshots_dropped >= 4
    assert messy.detached not in known
    with pytest.raises(icechunk.IcechunkError):
        official(path).create_tag("late", messy.detached)


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_a_race_at_any_step_loses_nothing(race, messy, copies):
    _, calls = collect(copies(), messy.end)
    outcomes = set()
    for number in range(len(calls)):
        path = copies()
        needed = []

        def act(path=path, needed=needed):
            try:
                needed.append(race(official(path), messy))
            except icechunk.IcechunkError:
                outcomes.add("refused")
            else:
                outcomes.add("done")

        summary, _ = collect(path, messy.end, once(number, act))
        assert [*verify(assets(path), "objects")] == [], f"before call {number}"
        assert contents(path)
        assert needed == [official(path).lookup_snapshot(item).id for item in needed]
        outcomes.add("again" if summary.restarts else "straight")
    revives = "doomed" in race.__name__
    # The compare-and-swap is the point of no return: what is dropped cannot be revived after it.
    expected = {"done", "straight"} | ({"refused", "again"} if revives else set())
    assert outcomes == expected


def test_a_session_older_than_the_cutoff_may_commit_until_its_chunks_are_being_deleted(
    messy, copies
):
    """Chunks uploaded before the cutoff are kept once a snapshot refers to them."""
    kept = 0
    _, calls = collect(copies(), messy.end)
    for number, (verb, arguments) in enumerate(calls):
        if verb == "delete" and arguments[0][0].startswith("chunks/"):
            continue  # too late, by design: they were garbage a moment ago
        path = copies()
        session = official(path).writable_session("main")
        write_chunk(session, 3, 123)
        time.sleep(0.01)
        cutoff = datetime.now(UTC)
        time.sleep(0.01)
        collect(path, cutoff, once(number, lambda session=session: session.commit("late")))
        assert [*verify(assets(path), "objects")] == [], f"before call {number}: {verb}"
        kept += 1
    assert kept > 10
