"""Forks, write keys, amendments, moves, chunks that change places, status and diff."""

import pickle

import icechunk
import pytest

import icefloe
from icefloe import (
    WRITE_KEY,
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from stateful import reading
from stateful.reading import content, document, group, put, rectilinear, regular, remove


@pytest.fixture
def repo(tmp_path):
    repo = icefloe.Repository.create(tmp_path / "repo")
    with repo.transaction("main", message="start") as store:
        put(store, "zarr.json", group())
        put(store, "g/zarr.json", group())
        put(store, "a/zarr.json", document([12], regular(2)))
        put(store, "g/b/zarr.json", document([6, 8], regular(2, 2)))
        for at in range(5):
            put(store, f"a/c/{at}", f"a {at}".encode())
        for at in range(3):
            put(store, f"g/b/c/{at}/{at}", f"b {at}".encode())
    return repo


@pytest.fixture
def official(repo, tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    return icechunk.Repository.open(storage)


# Forks.


def forks(repo, *changes):
    session = repo.writable_session("main")
    made = [session.fork() for _ in changes]
    for fork, change in zip(made, changes, strict=True):
        change(fork)
    return session, made


def creates(path, **attributes):
    return lambda it: put(it.store, f"{path}/zarr.json", document([2], regular(2), **attributes))


def notes(path, value):
    return lambda it: put(it.store, f"{path}/zarr.json", document([12], regular(2), note=value))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (creates("x"), creates("x"), "/x was created twice"),
        (notes("a", 1), notes("a", 2), "the metadata of /a was changed twice"),
        (lambda it: it.delete_node("/a"), notes("a", 1), "/a was deleted in one session and upd"),
        (notes("a", 1), lambda it: it.delete_node("/a"), "/a was deleted in one session and cha"),
        (
            lambda it: it.delete_node("/a"),
            lambda it: put(it.store, "a/c/1", b"x"),
            "/a was deleted in one session and written",
        ),
        (
            lambda it: put(it.store, "a/c/1", b"x"),
            lambda it: it.delete_node("/a"),
            "/a was deleted in one session and changed",
        ),
        (
            lambda it: put(it.store, "a/c/1", b"x"),
            lambda it: remove(it.store, "a/c/1"),
            r"1 chunks of /a were written by two forks \(\(1,\)",
        ),
    ],
)
def test_forks_that_changed_one_thing_are_not_merged_and_the_session_stays_as_it_was(
    repo, first, second, told
):
    session, made = forks(repo, first, second)
    session.merge(made[0])
    before = content(session.store)
    with pytest.raises(ConflictError, match=told) as caught:
        session.merge(made[1])
    assert caught.value.kind == "merge-failed"
    assert content(session.store) == before


def test_forks_that_made_the_same_change_of_metadata_are_merged(repo, official):
    session, made = forks(
        repo,
        notes("a", 1),
        notes("a", 1),
        lambda it: put(it.store, "h/zarr.json", group()),
        lambda it: put(it.store, "h/zarr.json", group()),
    )
    session.merge(*made)
    session.commit("merged")
    shown = content(official.readonly_session("main").store)
    assert shown["a/zarr.json"] == document([12], regular(2), note=1)
    assert shown["h/zarr.json"] == group()


def test_a_fork_publishes_nothing_by_itself(repo):
    session = repo.writable_session("main")
    fork = session.fork()
    assert fork.is_fork
    assert not session.is_fork
    put(fork.store, "a/c/0", b"fork")
    for verb in ("commit", "amend", "flush"):
        with pytest.raises(SessionStateError) as caught:
            getattr(fork, verb)("no")
        assert caught.value.kind == "fork-session"
    assert next(repo.ancestry(branch="main")).message == "start"


def test_a_fork_sees_what_the_session_had_changed_and_not_what_it_changes_later(repo):
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"before")
    fork = pickle.loads(pickle.dumps(session.fork()))
    put(session.store, "a/c/1", b"after")
    shown = content(fork.store)
    assert (shown["a/c/0"], shown["a/c/1"]) == (b"before", b"a 1")
    assert len([*repo.ancestry(branch="main")]) == 2
    assert all(update.kind.name != "NEW_DETACHED_SNAPSHOT" for update in repo.ops_log())


def test_a_fork_of_a_session_that_changed_nothing_writes_nothing(repo):
    before = {item.key for page in repo.storage.list() for item in page}
    repo.writable_session("main").fork()
    assert {item.key for page in repo.storage.list() for item in page} == before


def test_a_read_only_session_has_no_forks(repo):
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").fork()


# Write keys.


def test_a_second_commit_under_a_key_answers_with_the_first_and_drops_its_changes(repo, official):
    first = repo.writable_session("main")
    put(first.store, "a/c/0", b"first")
    snapshot_id = first.commit("once", write_key="k")
    second = repo.writable_session("main")
    put(second.store, "a/c/0", b"second")
    assert second.commit("twice", write_key="k") == snapshot_id
    assert second.read_only
    assert content(second.store)["a/c/0"] == b"first"
    assert content(official.readonly_session("main").store)["a/c/0"] == b"first"
    assert repo.lookup_snapshot(snapshot_id).metadata[WRITE_KEY] == "k"
    assert repo.find_write("k", "main") == snapshot_id == repo.find_write("k")


def test_a_commit_under_a_key_that_is_done_needs_no_changes(repo):
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"first")
    snapshot_id = session.commit("once", write_key="k")
    assert repo.writable_session("main").commit("again", write_key="k") == snapshot_id


def test_a_key_counts_for_a_commit_only_in_the_history_of_its_branch(repo):
    repo.create_branch("dev", repo.lookup_branch("main"))
    ids = []
    for branch in ("main", "dev"):
        session = repo.writable_session(branch)
        put(session.store, "a/c/0", branch.encode())
        ids.append(session.commit(branch, write_key="k"))
    assert ids[0] != ids[1]
    assert [repo.find_write("k", branch) for branch in ("main", "dev")] == ids
    repo.reset_branch("main", repo.lookup_snapshot(ids[0]).parent_id)
    assert repo.find_write("k", "main") is None
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"again")
    assert session.commit("again", write_key="k") not in ids


def test_a_key_counts_for_a_flush_wherever_it_was_used(repo):
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"x")
    snapshot_id = session.flush("once", write_key="k")
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"y")
    assert session.flush("twice", write_key="k") == snapshot_id
    assert repo.find_write("other") is None


# Sessions on a snapshot.


def test_a_session_on_a_snapshot_only_flushes(repo):
    session = repo.writable_session(snapshot_id=repo.lookup_branch("main"))
    put(session.store, "a/c/0", b"x")
    assert session.branch is None
    for act in (
        lambda: session.commit("no"),
        lambda: session.amend("no"),
        lambda: session.rebase(ConflictDetector()),
    ):
        with pytest.raises(SessionStateError) as caught:
            act()
        assert caught.value.kind == "no-branch"
    assert repo.lookup_snapshot(session.flush("yes")).parent_id == repo.lookup_branch("main")


@pytest.mark.parametrize("choice", [{}, {"branch": "main", "snapshot_id": "1CECHNKREP0F1RSTCMT0"}])
def test_a_writable_session_stands_on_one_thing(repo, choice):
    with pytest.raises(InvalidInputError):
        repo.writable_session(**choice)


# Amendments.


def test_an_amendment_takes_the_place_of_the_tip_and_tells_both_changes(repo, official):
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"first")
    put(session.store, "new/zarr.json", group())
    old = session.commit("first")
    session = repo.writable_session("main")
    put(session.store, "a/c/5", b"second")
    new = session.amend("both", metadata={"n": 1})
    (tip, parent, _) = repo.ancestry(branch="main")
    assert (tip.id, tip.message, tip.metadata) == (new, "both", {"n": 1})
    assert parent.message == "start"
    assert repo.lookup_snapshot(old).message == "first"
    for library in (repo, official):
        told = reading.diff(library.diff(from_snapshot_id=parent.id, to_branch="main"))
        assert told["updated_chunks"] == {"/a": [(0,), (5,)]}
        assert told["new_groups"] == {"/new"}


def test_the_first_snapshot_is_not_amended(repo):
    repo.create_branch("empty", [*repo.ancestry(branch="main")][-1].id)
    session = repo.writable_session("empty")
    put(session.store, "zarr.json", group())
    with pytest.raises(SessionStateError) as caught:
        session.amend("no")
    assert caught.value.kind == "no-amend-for-initial-commit"


def test_an_amendment_of_a_tip_that_moved_is_a_conflict(repo):
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"ours")
    with repo.transaction("main", message="theirs") as store:
        put(store, "a/c/1", b"theirs")
    with pytest.raises(ConflictError) as caught:
        session.amend("ours")
    assert caught.value.kind == "branch-moved"
    assert session.has_uncommitted_changes


def test_an_empty_amendment_must_be_asked_for(repo):
    with pytest.raises(SessionStateError):
        repo.writable_session("main").amend("nothing")
    session = repo.writable_session("main")
    assert repo.lookup_branch("main") != session.amend("renamed", allow_empty=True)
    assert next(repo.ancestry(branch="main")).message == "renamed"


def test_a_tip_that_moved_nodes_is_amended_only_in_a_rearrange_session(repo, official):
    session = repo.rearrange_session("main")
    session.move("/g", "/h")
    session.commit("moved")
    session = repo.writable_session("main")
    put(session.store, "a/c/0", b"x")
    with pytest.raises(SessionStateError) as caught:
        session.amend("no")
    assert caught.value.kind == "rearrange-session-only"
    session = repo.rearrange_session("main")
    session.move("/h", "/i")
    session.amend("moved on")
    start = [*repo.ancestry(branch="main")][1].id
    for library in (repo, official):
        told = reading.diff(library.diff(from_snapshot_id=start, to_branch="main"))
        assert told["moved_nodes"] == [("/g", "/i"), ("/g/b", "/i/b")]


# Moves.


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/nowhere", "/x", NotFoundError),
        ("/a", "/nowhere/a", NotFoundError),
        ("/g", "/a/g", NotFoundError),
        ("/a", "/g", ConflictError),
        ("/a", "/a", InvalidInputError),
        ("/g", "/g/g", InvalidInputError),
        ("/", "/x", InvalidInputError),
        ("/a", "/", InvalidInputError),
        ("/a", "no/slash", InvalidInputError),
        ("/a", "/x/../y", InvalidInputError),
    ],
)
def test_a_move_that_cannot_be_is_refused_by_both_libraries_and_changes_nothing(
    repo, official, source, target, error
):
    session = repo.rearrange_session("main")
    with pytest.raises(error):
        session.move(source, target)
    assert not session.has_uncommitted_changes
    with pytest.raises((icechunk.IcechunkError, ValueError)):
        official.rearrange_session("main").move(source, target)


def test_a_rearrange_session_only_moves_and_others_do_not(repo):
    session = repo.rearrange_session("main")
    for act in (
        lambda: put(session.store, "a/c/0", b"x"),
        lambda: put(session.store, "x/zarr.json", group()),
        lambda: session.delete_node("/a"),
        lambda: session.shift_array("/a", [1]),
        session.fork,
    ):
        with pytest.raises(SessionStateError) as caught:
            act()
        assert caught.value.kind == "rearrange-session-only"
    with pytest.raises(SessionStateError):
        repo.writable_session("main").move("/a", "/b")
    with pytest.raises(SessionStateError):
        repo.readonly_session("main").move("/a", "/b")


def test_moved_nodes_keep_their_ids_chunks_and_manifests(repo, official):
    before = repo.readonly_session("main")
    ids = {path: before.get_node_id(path) for path in ("/a", "/g", "/g/b")}
    files = {item.id for item in repo.list_manifest_files(before.snapshot_id)}
    session = repo.rearrange_session("main")
    session.move("/a", "/g/x")
    session.move("/g", "/ü")
    after = session.commit("moved")
    shown = repo.readonly_session("main")
    moved = {"/a": "/ü/x", "/g": "/ü", "/g/b": "/ü/b"}
    assert {path: shown.get_node_id(moved[path]) for path in moved} == ids
    assert {item.id for item in repo.list_manifest_files(after)} == files
    found = content(official.readonly_session("main").store)
    assert found == content(shown.store)
    assert found["ü/x/c/1"] == b"a 1"


# Chunks that change places.


def run_both(repo, official, act):
    """The outcome in each library, on the same snapshot: what is shown, or that it is refused."""
    outcomes = []
    for library in (repo, official):
        session = library.writable_session("main")
        try:
            act(session)
        except (IcefloeError, icechunk.IcechunkError, ValueError) as error:
            outcomes.append(isinstance(error, Exception))
            continue
        status = reading.diff(session.status())
        outcomes.append((content(session.store), status["updated_chunks"]))
    return outcomes


@pytest.mark.parametrize(
    "offset", [[0], [1], [-2], [6], [-7], [0, 0], [1, -1], [0, 2], [-1, 0], [2, 2], [9, 0]]
)
def test_a_shift_moves_what_the_official_library_moves(repo, official, offset):
    path = "/a" if len(offset) == 1 else "/g/b"
    ours, theirs = run_both(repo, official, lambda it: it.shift_array(path, offset))
    assert ours[0] == theirs[0]


@pytest.mark.parametrize("offset", [[], [1, 1]])
def test_an_offset_that_does_not_fit_the_array_is_refused(repo, offset):
    session = repo.writable_session("main")
    # Official 2.3.0 panics or ignores the surplus.
    with pytest.raises(InvalidInputError):
        session.shift_array("/a", offset)
    assert not session.has_uncommitted_changes


FORWARDS = {
    "reverse": lambda at: [5 - at[0]],
    "some": lambda at: [at[0] + 3] if at[0] < 2 else None,
    "all leave": lambda at: None,
    "out of the grid": lambda at: [at[0] + 4],
    "next": lambda at: [at[0] + 1],
}
BACKWARDS = {
    "reverse": lambda at: [5 - at[0]],
    "some": lambda at: [at[0] - 3] if at[0] >= 3 else None,
    "next": lambda at: [at[0] - 1] if at[0] else None,
}


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("with_inverse", [False, True])
def test_a_reindex_moves_what_the_official_library_moves(repo, official, name, with_inverse):
    backward = BACKWARDS.get(name) if with_inverse else None
    ours, theirs = run_both(
        repo, official, lambda it: it.reindex_array("/a", FORWARDS[name], backward)
    )
    if ours is True or theirs is True:
        assert ours is theirs
    else:
        assert ours[0] == theirs[0]


def test_chunks_of_unlike_shape_stay_in_their_places(repo, official):
    with repo.transaction("main", message="more") as store:
        put(store, "r/zarr.json", document([4], rectilinear([1, 3])))
        put(store, "r/c/0", b"x")
    ours, theirs = run_both(repo, official, lambda it: it.shift_array("/r", [1]))
    assert ours is theirs is True


def test_shifted_chunks_are_committed_without_moving_bytes(repo, official):
    before = {item.key for page in repo.storage.list("chunks/") for item in page}
    session = repo.writable_session("main")
    session.shift_array("/a", [1])
    session.commit("shifted")
    assert {item.key for page in repo.storage.list("chunks/") for item in page} == before
    found = content(official.readonly_session("main").store)
    assert {key: found[key] for key in found if key.startswith("a/c")} == {
        f"a/c/{at + 1}": f"a {at}".encode() for at in range(5)
    }


# Status and diff.


def test_status_and_diff_tell_what_the_official_library_tells(repo, official):
    def change(session):
        put(session.store, "a/c/5", b"x")
        remove(session.store, "a/c/1")
        put(session.store, "new/zarr.json", group())
        put(session.store, "new/x/zarr.json", document([2], regular(1)))
        put(session.store, "new/x/c/1", b"x")
        put(session.store, "g/zarr.json", group(note=1))

    told = []
    for library in (repo, official):
        session = library.writable_session("main")
        change(session)
        told.append(reading.diff(session.status()))
        session.discard_changes()
        assert session.status().is_empty()
    assert told[0] == told[1]
    assert told[0]["updated_chunks"] == {"/a": [(1,), (5,)], "/new/x": [(1,)]}
    start = repo.lookup_branch("main")
    session = repo.writable_session("main")
    change(session)
    session.delete_node("/g/b")
    session.commit("changed")
    ends = {"from_snapshot_id": start, "to_branch": "main"}
    diffs = [reading.diff(library.diff(**ends)) for library in (repo, official)]
    assert diffs[0] == diffs[1]
    assert diffs[0]["deleted_arrays"] == {"/g/b"}
    for library, error in ((repo, InvalidInputError), (official, icechunk.InvalidInputError)):
        with pytest.raises(error):
            library.diff(from_branch="main", to_snapshot_id=start)


def test_a_taken_name_is_an_error_of_its_own(repo):
    with pytest.raises(AlreadyExistsError):
        repo.create_branch("main", repo.lookup_branch("main"))
