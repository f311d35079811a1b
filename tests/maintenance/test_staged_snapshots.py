"""Staged snapshots beside garbage collection and expiration: published whole, or refused."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count

import icechunk
import pytest

from concurrency.hooks import GROUP, Hooked, chunks, create, write
from icefloe import (
    ConflictDetector,
    ConflictError,
    MemoryStorage,
    NotFoundError,
    Repository,
    open_storage,
)
from stateful.reading import document, regular

TOMORROW = timedelta(days=1)


def stage(repo, at, on=None, **options):
    """A staged write of one chunk, large enough for an object of its own."""
    base = {"snapshot_id": on} if on else {"branch": "main"}
    session = repo.writable_session(**base)
    write(session, at, b"z" * 4096)
    return session.flush(f"chunk {at}", **options)


def collect(repo):
    """Drops whatever is staged, old as it may be: the cutoff is the present."""
    return repo.garbage_collect(datetime.now(UTC) + TOMORROW, force=True)


def expire(repo):
    return repo.expire_snapshots(datetime.now(UTC) + TOMORROW)


def readable(repo, branch="main"):
    session = repo.readonly_session(branch)
    return {at: asyncio.run(session.get_chunk("/a", (at,))) for at in chunks(repo, branch)}


PUBLISHERS = {
    "publish": lambda repo, staged: repo.publish("main", staged[0]),
    "merge": lambda repo, staged: repo.merge_snapshots("main", staged, "merged"),
    "merge without a branch": lambda repo, staged: repo.merge_snapshots(None, staged, "merged"),
}


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("moved", [False, True], ids=["", "branch moved"])
def test_what_is_published_while_garbage_is_collected_is_whole_or_refused(publisher, moved):
    """The collection runs before each single storage call of the publisher, in turn."""
    outcomes = [outcome(publisher, number, moved) for number in range(40)]
    assert {*outcomes} == {"refused", "never collected"}


def outcome(publisher, number, moved):
    """What comes of it if the collection runs before the storage call of this number."""
    plain = MemoryStorage()
    repo = create(plain)
    staged = [stage(repo, 0), stage(repo, 1)]
    if moved:
        session = repo.writable_session("main")
        write(session, 9)
        session.commit("moved")
    calls = count()

    def before(verb, first):
        if next(calls) == number:
            collect(Repository.open(plain))

    try:
        snapshot_id = PUBLISHERS[publisher](Repository.open(Hooked(plain, before)), staged)
    except NotFoundError:
        assert 0 not in readable(Repository.open(plain))
        return "refused"
    after = Repository.open(plain)
    session = after.readonly_session(snapshot_id=snapshot_id)
    for at in {0} if publisher == "publish" else {0, 1}:
        assert asyncio.run(session.get_chunk("/a", (at,))) == b"z" * 4096
    assert after.verify("objects") == []
    assert next(calls) <= number, "what was collected cannot be published"
    return "never collected"


def test_a_merge_is_refused_when_one_of_its_snapshots_was_dropped_in_the_meantime():
    plain = MemoryStorage()
    repo = create(plain)
    staged = [stage(repo, 0), stage(repo, 1)]

    def before(verb, first):
        if (verb, first) == ("put_if", "repo"):
            hooked._before = lambda *_: None
            collect(Repository.open(plain))

    hooked = Hooked(plain, before)
    with pytest.raises(NotFoundError, match=staged[0]):
        Repository.open(hooked).merge_snapshots("main", staged, "merged")
    assert set(readable(Repository.open(plain))) == {15}


@pytest.mark.parametrize("drop", [collect, expire], ids=["gc", "expire"])
def test_what_a_kept_staged_snapshot_stands_on_is_kept(drop):
    repo = create(MemoryStorage())
    session = repo.writable_session("main")
    session.set_node("/b", document([4], regular(1)))
    write(session, 0, b"a" * 4096)
    lower = session.flush("creates an array")
    upper = stage(repo, 1, on=lower)
    repo.create_tag("keeps the upper one", upper)
    drop(repo)
    repo.delete_tag("keeps the upper one")
    repo.publish("main", upper)
    assert {0, 1} <= set(readable(repo))
    assert repo.readonly_session("main").node("/b") is not None
    assert repo.verify("objects") == []


def test_the_published_snapshot_that_a_staged_one_was_written_on_is_kept():
    repo = create(MemoryStorage())
    base = repo.lookup_branch("main")
    staged = stage(repo, 1)
    cut = repo.lookup_snapshot(staged).written_at
    session = repo.writable_session("main")
    write(session, 2)
    session.commit("meanwhile")
    result = repo.expire_snapshots(cut)
    assert base not in result.released_snapshots
    assert repo.lookup_snapshot(staged).parent_id == base
    repo.publish("main", staged)
    assert set(readable(repo)) == {1, 2, 15}


def test_a_staged_snapshot_is_refused_once_the_official_client_dropped_what_it_stands_on(tmp_path):
    repo = create(open_storage(tmp_path / "repo"))
    lower = stage(repo, 0)
    upper = stage(repo, 1, on=lower)
    repo.create_tag("upper", upper)
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    theirs.expire_snapshots(datetime.now(UTC) + TOMORROW)
    theirs.garbage_collect(datetime.now(UTC) + TOMORROW)
    repo = Repository.open(tmp_path / "repo")
    with pytest.raises(NotFoundError):
        repo.lookup_snapshot(lower)
    for publish in PUBLISHERS.values():
        with pytest.raises(NotFoundError, match=lower):
            publish(repo, [upper])
    assert [finding.kind for finding in repo.verify()] == ["staged-base-gone"]
    assert set(readable(repo)) == {15}


def test_a_staged_snapshot_whose_base_the_official_client_expired_meets_no_stale_cells(tmp_path):
    """Its parent is now the first snapshot; what it was written on is in its list of logs."""
    repo = create(open_storage(tmp_path / "repo"))
    session = repo.writable_session("main")
    write(session, 3, b"old" * 2000)
    session.commit("base")
    staged = stage(repo, 1)
    repo.create_tag("staged", staged)
    session = repo.writable_session("main")
    asyncio.run(session.delete_chunk("/a", (3,)))
    asyncio.run(session.delete_chunk("/a", (15,)))
    session.commit("deletes")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    theirs.expire_snapshots(datetime.now(UTC) + TOMORROW)
    repo = Repository.open(tmp_path / "repo")
    repo.publish("main", staged)
    assert set(readable(repo)) == {1}


def test_a_staged_snapshot_on_one_that_was_published_is_published_alone():
    repo = create(MemoryStorage())
    lower = stage(repo, 0)
    upper = stage(repo, 1, on=lower)
    repo.publish("main", lower)
    repo.publish("main", upper)
    assert set(readable(repo)) == {0, 1, 15}


def test_chunks_moved_within_an_array_are_not_committed_once_their_snapshot_was_collected():
    plain = MemoryStorage()
    repo = create(plain)
    session = repo.writable_session("main")
    write(session, 2, b"m" * 4096)
    session.commit("to be moved")
    moving = repo.writable_session("main")
    moving.shift_array("/a", [1])
    rival = repo.writable_session("main")
    rival.set_node("/b", GROUP)
    rival.commit("another node")
    rival = repo.writable_session("main")
    rival.delete_node("/a")
    rival.set_node("/a", document([16], regular(1)))
    rival.commit("replaced")
    repo.expire_snapshots(datetime.now(UTC) + TOMORROW)
    collect(repo)
    with pytest.raises((NotFoundError, ConflictError)):
        moving.commit("moved", rebase_with=ConflictDetector())
    assert repo.verify("objects") == []
