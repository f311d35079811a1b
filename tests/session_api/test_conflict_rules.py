"""Every rule by which a rebase tells a conflict, ours beside the official library's."""

import json

import icechunk
import pytest
from zarr.core.sync import sync

import icefloe
from icefloe import VersionSelection
from stateful import reading
from stateful.reading import content, document, group, put, regular, remove

LIBRARIES = {"ours": icefloe, "official": icechunk}


def note(path):
    """Another zarr.json for a node of the base."""

    def change(session):
        key = f"{path}/zarr.json"
        value = json.loads(content(session.store)[key])
        value["attributes"] = {"by": str(type(session))}
        put(session.store, key, json.dumps(value).encode())

    return change


def chunk(path, at):
    return lambda session: put(session.store, f"{path}/c/{at}", str(type(session)).encode())


def drop_chunk(path, at):
    return lambda session: remove(session.store, f"{path}/c/{at}")


def delete(path):
    return lambda session: sync(session.store.delete_dir(path))


def new_group(path):
    return lambda session: put(session.store, f"{path}/zarr.json", group())


def new_array(path):
    return lambda session: put(session.store, f"{path}/zarr.json", document([4], regular(1)))


def move(source, target):
    return lambda session: session.move(source, target)


def both(*changes):
    def change(session):
        for each in changes:
            each(session)

    return change


KINDS = [
    ("NewNodeConflictsWithExistingNode", new_group("x"), new_array("x"), "/x", ()),
    ("ZarrMetadataDoubleUpdate", note("a"), note("a"), "/a", ()),
    ("ZarrMetadataDoubleUpdate", note("g"), note("g"), "/g", ()),
    ("ZarrMetadataUpdateOfDeletedArray", delete("a"), note("a"), "/a", ()),
    ("ZarrMetadataUpdateOfDeletedGroup", delete("g"), note("g"), "/g", ()),
    ("ChunkDoubleUpdate", chunk("a", 1), both(chunk("a", 1), chunk("a", 2)), "/a", ((1,),)),
    ("ChunkDoubleUpdate", drop_chunk("a", 0), chunk("a", 0), "/a", ((0,),)),
    ("ChunkDoubleUpdate", chunk("a", 0), drop_chunk("a", 0), "/a", ((0,),)),
    ("ChunksUpdatedInDeletedArray", delete("a"), chunk("a", 1), "/a", ()),
    ("ChunksUpdatedInUpdatedArray", note("a"), chunk("a", 1), "/a", ()),
    ("DeleteOfUpdatedArray", note("a"), delete("a"), "/a", ()),
    ("DeleteOfUpdatedArray", chunk("a", 1), delete("a"), "/a", ()),
    ("DeleteOfUpdatedGroup", note("g"), delete("g"), "/g", ()),
]
STRICTER = [
    ("DeleteOfGroupWithNewNodes", new_array("g/x"), delete("g"), "/g/x"),
    ("NewNodeInInvalidGroup", delete("g"), new_array("g/x"), "/g/x"),
]
PEACEFUL = [
    (chunk("a", 1), chunk("a", 2)),
    (chunk("a", 1), note("g")),
    (note("g"), new_array("g/x")),
    (new_array("x"), new_array("y")),
    (delete("a"), delete("a")),
    (chunk("a", 1), note("a")),
    (note("g"), both(delete("a"), new_array("a"))),
]


@pytest.fixture
def repos(tmp_path):
    """Both libraries on one repository with a group and two arrays."""
    ours = icefloe.Repository.create(tmp_path / "repo")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    session = ours.writable_session("main")
    put(session.store, "zarr.json", group())
    for change in (new_group("g"), new_array("a"), new_array("g/b"), chunk("a", 0)):
        change(session)
    session.commit("start")
    return {"ours": ours, "official": icechunk.Repository.open(storage)}


def meet(repos, theirs, ours, *, moves=False):
    """Sessions of both with our change, after somebody committed theirs."""
    sessions = {name: repo.writable_session("main") for name, repo in repos.items()}
    for session in sessions.values():
        ours(session)
    rival = repos["ours"].rearrange_session("main") if moves else None
    rival = rival or repos["ours"].writable_session("main")
    theirs(rival)
    return sessions, rival.commit("theirs")


def failed(session, solver):
    with pytest.raises((icefloe.RebaseFailedError, icechunk.RebaseFailedError)) as caught:
        session.rebase(solver)
    return reading.conflicts(caught.value)


@pytest.mark.parametrize(("kind", "theirs", "ours", "path", "chunks"), KINDS)
def test_both_libraries_tell_the_conflict_by_the_same_name(repos, kind, theirs, ours, path, chunks):
    sessions, commit = meet(repos, theirs, ours)
    told = failed(sessions["ours"], icefloe.ConflictDetector())
    assert told == (commit, told[1])
    assert (kind, path, chunks) in told[1]
    assert told == failed(sessions["official"], icechunk.ConflictDetector())
    assert sessions["ours"].has_uncommitted_changes


@pytest.mark.parametrize(("kind", "theirs", "ours", "path"), STRICTER)
@pytest.mark.parametrize("solver", [icefloe.ConflictDetector(), icefloe.BasicConflictSolver()])
def test_what_the_official_library_misses_is_a_conflict_for_us_and_no_solver_lets_it_pass(
    repos, kind, theirs, ours, path, solver
):
    sessions, commit = meet(repos, theirs, ours)
    found, told = failed(sessions["ours"], solver)
    assert found == commit
    assert (kind, path, ()) in told
    sessions["official"].rebase(icechunk.ConflictDetector())
    sessions["official"].commit("a node below no group")
    shown = [content(repo.readonly_session("main").store) for repo in repos.values()]
    assert shown[0] == shown[1]
    assert "g/x/zarr.json" in shown[0]
    assert "g/zarr.json" not in shown[0]


def test_a_node_below_what_they_made_an_array_is_a_conflict_at_our_path_or_at_theirs(repos):
    sessions, commit = meet(repos, both(delete("g"), new_array("g")), new_array("g/x"))
    told = {name: failed(sessions[name], lib.ConflictDetector()) for name, lib in LIBRARIES.items()}
    assert told == {
        "ours": (commit, {("NewNodeInInvalidGroup", "/g/x", ())}),
        "official": (commit, {("NewNodeInInvalidGroup", "/g", ())}),
    }


def test_nothing_is_rebased_over_a_move(repos):
    sessions, commit = meet(repos, move("/g", "/h"), chunk("a", 1), moves=True)
    for name, library in LIBRARIES.items():
        found, told = failed(sessions[name], library.ConflictDetector())
        assert found == commit
        assert {kind for kind, _, _ in told} == {"MoveOperationCannotBeRebased"}


def rearranged(repos, theirs):
    """A session that moved a group before the others committed; and their commit."""
    session = repos["ours"].rearrange_session("main")
    session.move("/g", "/h")
    other = repos["ours"].writable_session("main")
    theirs(other)
    return session, other.commit("theirs")


@pytest.mark.parametrize(
    "theirs", [note("g"), delete("g"), new_array("g/x"), new_group("h")], ids=range(4)
)
def test_a_move_is_not_rebased_over_a_change_of_what_moves_or_of_where_it_goes(repos, theirs):
    session, commit = rearranged(repos, theirs)
    found, told = failed(session, icefloe.BasicConflictSolver())
    assert found == commit
    assert {kind for kind, _, _ in told} == {"MoveOperationCannotBeRebased"}


def test_a_move_is_carried_over_changes_elsewhere(repos):
    session, commit = rearranged(repos, both(chunk("a", 1), note("a"), new_array("x")))
    session.rebase(icefloe.ConflictDetector())
    assert session.snapshot_id == commit
    session.commit("moved")
    shown = [content(repo.readonly_session("main").store) for repo in repos.values()]
    assert shown[0] == shown[1]
    assert {"h/zarr.json", "x/zarr.json", "a/c/1"} <= shown[0].keys()
    assert "g/zarr.json" not in shown[0]


@pytest.mark.parametrize(("theirs", "ours"), PEACEFUL)
def test_both_libraries_carry_other_changes_over_and_come_to_the_same(repos, theirs, ours):
    sessions, commit = meet(repos, theirs, ours)
    sessions["ours"].rebase(icefloe.ConflictDetector())
    sessions["official"].rebase(icechunk.ConflictDetector())
    assert sessions["ours"].snapshot_id == sessions["official"].snapshot_id == commit
    assert content(sessions["ours"].store).keys() == content(sessions["official"].store).keys()
    snapshot_id = sessions["ours"].commit("ours", allow_empty=True)
    shown = content(repos["official"].readonly_session(snapshot_id=snapshot_id).store)
    assert shown == content(sessions["ours"].store)


@pytest.mark.parametrize("choice", ["UseOurs", "UseTheirs"])
def test_a_solver_keeps_the_chunks_of_the_side_it_prefers(repos, choice):
    ours = both(chunk("a", 1), chunk("a", 2))
    sessions, _ = meet(repos, chunk("a", 1), ours)
    for name, library in LIBRARIES.items():
        chosen = getattr(library.VersionSelection, choice)
        sessions[name].rebase(library.BasicConflictSolver(on_chunk_conflict=chosen))
    wins = str(type(sessions["ours"])).encode()
    sessions["ours"].commit("ours")
    shown = content(repos["official"].readonly_session("main").store)
    theirs = str(icefloe.Session).encode()
    assert (shown["a/c/1"], shown["a/c/2"]) == ({"UseOurs": wins}.get(choice, theirs), wins)
    assert content(sessions["official"].store).keys() == shown.keys()


def test_a_solver_that_prefers_theirs_drops_ours_and_keeps_the_rest(repos):
    session = repos["ours"].writable_session("main")
    put(session.store, "a/c/1", b"ours")
    put(session.store, "a/c/2", b"ours")
    with repos["official"].transaction("main", message="theirs") as store:
        put(store, "a/c/1", b"theirs")
    solver = icefloe.BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    session.commit("ours", rebase_with=solver)
    shown = content(repos["official"].readonly_session("main").store)
    assert (shown["a/c/1"], shown["a/c/2"]) == (b"theirs", b"ours")


def test_a_scalar_is_left_to_theirs_as_any_chunk_is(repos):
    with repos["ours"].transaction("main", message="scalar") as store:
        put(store, "s/zarr.json", document([], regular()))
    session = repos["ours"].writable_session("main")
    put(session.store, "s/c", b"ours")
    with repos["official"].transaction("main", message="theirs") as store:
        put(store, "s/c", b"theirs")
    solver = icefloe.BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    session.commit("ours", rebase_with=solver, allow_empty=True)
    assert content(repos["official"].readonly_session("main").store)["s/c"] == b"theirs"


def test_chunks_that_an_official_rebase_left_to_others_do_not_spoil_diffs_and_amendments(repos):
    start = repos["ours"].lookup_branch("main")
    session = repos["official"].writable_session("main")
    put(session.store, "a/c/1", b"ours")
    with repos["ours"].transaction("main", message="theirs") as store:
        put(store, "a/c/1", b"theirs")
    chosen = icechunk.VersionSelection.UseTheirs
    solver = icechunk.BasicConflictSolver(on_chunk_conflict=chosen)
    session.commit("nothing is left", rebase_with=solver, allow_empty=True)
    session = repos["ours"].writable_session("main")
    put(session.store, "a/c/2", b"amended")
    session.amend("amended")
    told = [
        reading.diff(repo.diff(from_snapshot_id=start, to_branch="main")) for repo in repos.values()
    ]
    assert told[0] == told[1]
    assert told[0]["updated_chunks"] == {"/a": [(1,), (2,)]}


@pytest.mark.parametrize(
    ("theirs", "ours", "option"),
    [
        (chunk("a", 1), delete("a"), "fail_on_delete_of_updated_array"),
        (note("g"), delete("g"), "fail_on_delete_of_updated_group"),
    ],
)
def test_a_deletion_wins_over_an_update_unless_the_solver_forbids_it(repos, theirs, ours, option):
    sessions, _ = meet(repos, theirs, ours)
    for name, library in LIBRARIES.items():
        failed(sessions[name], library.BasicConflictSolver(**{option: True}))
        sessions[name].rebase(library.BasicConflictSolver())
    assert content(sessions["ours"].store) == content(sessions["official"].store)


def test_a_failed_rebase_stops_at_the_last_commit_that_does_not_conflict(repos):
    sessions = {name: repo.writable_session("main") for name, repo in repos.items()}
    for session in sessions.values():
        chunk("a", 1)(session)
    commits = []
    for at in (2, 3, 1):
        rival = repos["official"].writable_session("main")
        chunk("a", at)(rival)
        commits.append(rival.commit(f"chunk {at}"))
    for name, library in LIBRARIES.items():
        assert failed(sessions[name], library.ConflictDetector())[0] == commits[2]
        assert sessions[name].snapshot_id == commits[1]
        assert sessions[name].has_uncommitted_changes
        assert {"a/c/1", "a/c/2", "a/c/3"} <= content(sessions[name].store).keys()
