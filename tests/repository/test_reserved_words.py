"""What icefloe notes in metadata and goes by, and the status that all clients read alike."""

import pytest

from icefloe import (
    Availability,
    InvalidInputError,
    MemoryStorage,
    Repository,
    RepoStatus,
)
from icefloe.descriptions import PUBLISHED_FROM, STAGED_ON, WRITE_KEY

RESERVED = [WRITE_KEY, STAGED_ON, PUBLISHED_FROM]


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def repo(storage):
    return Repository.create(storage)


def writable(repo):
    session = repo.writable_session("main")
    session.set_node("/", b'{"zarr_format":3,"node_type":"group"}')
    return session


def transact(repo, metadata):
    with repo.transaction("main", message="x", metadata=metadata):
        pytest.fail("the work must not begin")


def keys(storage):
    found = [item.key for page in storage.list() for item in page]
    return {key: storage.get(key).data for key in found}


DOORS = {
    "commit": lambda repo, said: writable(repo).commit("x", said),
    "amend": lambda repo, said: writable(repo).amend("x", metadata=said),
    "flush": lambda repo, said: writable(repo).flush("x", metadata=said),
    "transaction": transact,
    "merge_snapshots": lambda repo, said: repo.merge_snapshots("main", ["x"], "x", said),
    "rewrite_manifests": lambda repo, said: repo.rewrite_manifests(
        "x", branch="main", metadata=said
    ),
    "repack": lambda repo, said: repo.repack("main", metadata=said),
    "set_default_commit_metadata": lambda repo, said: repo.set_default_commit_metadata(said),
}


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", ["x", 5, None])
def test_metadata_of_a_commit_hold_no_key_that_icefloe_goes_by(repo, storage, door, key, value):
    writable(repo).commit("base")
    before = keys(storage)
    with pytest.raises(InvalidInputError, match=f"{key}.*leave it out") as refused:
        DOORS[door](repo, {"mine": 1, key: value})
    assert refused.value.kind == "reserved-metadata-key"
    assert keys(storage) == before


def test_a_copied_write_key_does_not_answer_for_another_commit(repo):
    first = writable(repo).commit("first", write_key="k")
    copied = repo.lookup_snapshot(first).metadata
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"pass write_key=\.\.\."):
        session.commit("second", copied, allow_empty=True)
    session.commit("second", {"icefloe.mine": 1}, allow_empty=True)
    assert repo.find_write("k") == first


def test_what_icefloe_notes_itself_is_noted_as_before(repo):
    staged = writable(repo).flush("staged", metadata={"mine": 1}, write_key="k")
    above = repo.writable_session(snapshot_id=staged)
    above.set_node("/a", b'{"zarr_format":3,"node_type":"group"}')
    top = above.flush("above")
    assert repo.lookup_snapshot(top).metadata == {STAGED_ON: staged}
    repo.writable_session("main").commit("meanwhile", allow_empty=True)
    published = repo.publish("main", top)
    assert repo.lookup_snapshot(published).metadata[PUBLISHED_FROM] == top


def test_the_metadata_of_the_repository_may_have_any_key(repo):
    repo.set_metadata({WRITE_KEY: "mine"})
    assert repo.update_metadata({"more": 1}) == {WRITE_KEY: "mine", "more": 1}


# The status.


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (RepoStatus(99, 1, None), "99 is none of Availability.ONLINE"),
        (RepoStatus(-1, 1, None), "-1 is none of"),
        (RepoStatus(None, 1, None), "None is none of"),
        (RepoStatus("online", 1, None), "'online' is none of"),
        (RepoStatus(True, 1, None), "True is none of"),
        (RepoStatus([], 1, None), "is none of"),
        (RepoStatus(Availability.ONLINE, -1, None), "set_at=-1"),
        (RepoStatus(Availability.ONLINE, 2**64, None), "set_at=18446744073709551616"),
        (RepoStatus(Availability.ONLINE, 2**63, None), "set_at=9223372036854775808"),
        (RepoStatus(Availability.ONLINE, None, None), "set_at=None"),
        (RepoStatus(Availability.ONLINE, 1.5, None), r"set_at=1\.5"),
        (RepoStatus(Availability.ONLINE, True, None), "set_at=True"),
        (RepoStatus(Availability.ONLINE, 1, 5), "reason"),
        (RepoStatus(Availability.ONLINE, 1, "\ud800"), "reason"),
        (99, "99 is none of"),
        (True, "True is none of"),
        (None, "None is none of"),
    ],
    ids=repr,
)
def test_a_status_that_clients_would_not_read_alike_is_refused(repo, storage, status, told):
    before = keys(storage)
    with pytest.raises(InvalidInputError, match=told):
        repo.set_status(status)
    assert keys(storage) == before


def test_the_reason_of_a_status_is_given_once(repo):
    with pytest.raises(InvalidInputError, match="leave the argument reason out"):
        repo.set_status(RepoStatus(Availability.OFFLINE, 1, "a"), "b")
    assert repo.get_status().availability is Availability.ONLINE


@pytest.mark.parametrize("set_at", [0, 1, 253402300799999999])
def test_a_status_of_known_numbers_is_set(repo, set_at):
    repo.set_status(RepoStatus(1, set_at, "why"))
    assert repo.get_status() == RepoStatus(Availability.READ_ONLY, set_at, "why")
    repo.set_status(Availability.ONLINE)
