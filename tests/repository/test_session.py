"""Sessions: private changes, commits that show all at once, and what becomes of chunks."""

import json
import pickle

import numpy as np
import pytest
import zarr

from icefloe import (
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    MemoryStorage,
    NotFoundError,
    ReadOnlyError,
    Repository,
    SessionStateError,
)
from icefloe.assets import Assets
from icefloe.format.ids import SnapshotId
from icefloe.format.nodes import DimensionShape
from icefloe.zarr_metadata import array_data

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


@pytest.fixture
def repo():
    return Repository.create(MemoryStorage())


def create(repo, shape=(8,), chunks=(2,), path="a", **options):
    """An array that counts up, committed."""
    with repo.transaction("main", message="created") as store:
        options = {"dtype": "i4", "fill_value": -1} | options
        array = zarr.create_array(store, name=path, shape=shape, chunks=chunks, **options)
        array[...] = np.arange(np.prod(shape, dtype=int)).reshape(shape)


def values(repo, path="a"):
    return zarr.open_array(repo.readonly_session("main").store, path=path)[...].tolist()


def log(repo, snapshot_id):
    return Assets(repo.storage).transaction_log(SnapshotId.parse(snapshot_id))


def refs(repo, path):
    """The coordinates in the manifests of a node, whatever its grid."""
    assets = Assets(repo.storage)
    snapshot = assets.snapshot(SnapshotId.parse(repo.lookup_branch("main")))
    node = snapshot.nodes[snapshot.nodes.row(path)]
    parts = [assets.manifest(it).array(node.id).index for it in node.array.manifests.ids()]
    return [tuple(row) for part in parts for row in part.tolist()]


@pytest.mark.parametrize("threshold", [0, 512], ids=["native", "inline"])
@pytest.mark.parametrize("shape", [(), (5,), (0,), (5, 3), (4, 3, 2), (3, 0, 2), (2, 3, 2, 3)])
def test_arrays_of_any_rank_are_read_as_written(repo, shape, threshold):
    repo._inline_threshold = threshold
    create(repo, shape, (2,) * len(shape))
    expected = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    assert values(repo) == expected.tolist()
    with repo.transaction("main", message="part") as store:
        array = zarr.open_array(store, path="a")
        array.attrs["changed"] = True
        array[(slice(0, 1),) * len(shape)] = 99
    expected[(slice(0, 1),) * len(shape)] = 99
    assert values(repo) == expected.tolist()


def test_shards_are_read_through_their_suffix(repo):
    repo._inline_threshold = 0
    create(repo, (64,), (4,), shards=(32,))
    assert values(repo) == list(range(64))


def test_changes_are_private_until_the_commit_shows_them_all(repo):
    create(repo)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 7
    zarr.create_array(session.store, name="b", shape=(2,), dtype="i4")[:] = 8
    assert session.has_uncommitted_changes
    assert zarr.open_array(session.store, path="a")[:].tolist() == [7] * 8
    before = repo.readonly_session("main")
    assert values(repo) == list(range(8))
    assert before.paths() == ["/a"]
    snapshot_id = session.commit("both")
    assert values(repo) == [7] * 8
    assert values(repo, "b") == [8, 8]
    assert repo.lookup_branch("main") == session.snapshot_id == snapshot_id
    # An open session keeps its snapshot.
    assert zarr.open_array(before.store, path="a")[:].tolist() == list(range(8))


def test_the_repo_object_is_the_last_thing_that_a_commit_writes(repo, monkeypatch):
    create(repo)
    before = repo.storage.get("repo").data
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 7

    def fail(*_, **__):
        raise OSError("the power is out")

    monkeypatch.setattr(repo.storage, "put_if", fail)
    with pytest.raises(OSError, match="power"):
        session.commit("lost")
    monkeypatch.undo()
    assert repo.storage.get("repo").data == before
    assert values(repo) == list(range(8))
    session.commit("found")
    assert values(repo) == [7] * 8


def test_a_session_is_read_only_after_its_commit(repo):
    session = repo.writable_session("main")
    session.set_node("/a", GROUP)
    session.commit("a")
    assert session.read_only
    assert not session.has_uncommitted_changes
    for write in (
        lambda: session.set_node("/b", GROUP),
        lambda: session.delete_node("/a"),
        lambda: session.commit("again"),
        session.discard_changes,
    ):
        with pytest.raises(ReadOnlyError) as caught:
            write()
        assert caught.value.kind == "read-only-session"


def test_a_conflict_keeps_the_changes_and_shows_nothing_of_them(repo):
    create(repo)
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(ours.store, path="a")[:2] = 100
    theirs.set_node("/g", GROUP)
    tip = theirs.commit("theirs")
    for _ in range(2):
        with pytest.raises(ConflictError) as caught:
            ours.commit("ours")
        assert caught.value.kind == "branch-moved"
    assert ours.has_uncommitted_changes
    assert zarr.open_array(ours.store, path="a")[:2].tolist() == [100, 100]
    assert repo.lookup_branch("main") == tip
    assert values(repo) == list(range(8))


def test_a_commit_to_a_deleted_branch_is_refused(repo):
    repo.create_branch("dev", repo.lookup_branch("main"))
    session = repo.writable_session("dev")
    session.set_node("/a", GROUP)
    repo.delete_branch("dev")
    with pytest.raises(NotFoundError):
        session.commit("a")


def test_an_empty_commit_must_be_asked_for(repo):
    session = repo.writable_session("main")
    with pytest.raises(SessionStateError) as caught:
        session.commit("nothing")
    assert caught.value.kind == "no-changes-to-commit"
    session.commit("nothing", allow_empty=True)
    assert next(repo.ancestry(branch="main")).message == "nothing"


def test_writing_the_same_metadata_again_is_no_change(repo):
    create(repo)
    session = repo.writable_session("main")
    session.set_node("/a", session.node("/a").user_data)
    assert not session.has_uncommitted_changes


def test_discarded_changes_are_gone(repo):
    create(repo)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 7
    session.delete_node("/a")
    session.discard_changes()
    assert not session.has_uncommitted_changes
    assert zarr.open_array(session.store, path="a")[:].tolist() == list(range(8))


def test_a_transaction_that_raises_commits_nothing(repo):
    tip = repo.lookup_branch("main")
    with pytest.raises(ZeroDivisionError), repo.transaction("main", message="x") as store:
        zarr.create_group(store, attributes={"x": 1 / 0})
    assert repo.lookup_branch("main") == tip


def test_a_resize_drops_references_outside_the_grid_for_good(repo):
    create(repo)
    session = repo.writable_session("main")
    # Without zarr's own deletes: the metadata alone decides.
    small = session.node("/a").user_data.replace(b"8\n", b"3\n", 1)
    session.set_node("/a", small)
    session.commit("shrink")
    assert values(repo) == [0, 1, 2]
    assert refs(repo, "/a") == [(0,), (1,)]
    with repo.transaction("main", message="grow") as store:
        array = zarr.open_array(store, path="a")
        array.resize((8,))
    assert values(repo) == [0, 1, 2, 3, -1, -1, -1, -1]


@pytest.mark.parametrize("between", [True, False], ids=["written-between", "untouched"])
def test_chunks_cut_off_do_not_come_back_when_the_array_grows_in_the_same_session(repo, between):
    create(repo)
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    if between:
        array[4:] = 50
    array.resize((4,))
    array.resize((8,))
    expected = [0, 1, 2, 3, -1, -1, -1, -1]
    assert array[:].tolist() == expected
    snapshot_id = session.commit("shrunk and grown")
    assert values(repo) == expected
    assert refs(repo, "/a") == [(0,), (1,)]
    (coords,) = log(repo, snapshot_id).updated_chunks.values()
    assert coords.tolist() == [[2], [3]]


def test_delete_and_recreate_makes_another_node(repo):
    create(repo)
    session = repo.writable_session("main")
    old = session.get_node_id("/a")
    metadata = session.node("/a").user_data
    session.delete_node("/a")
    assert session.node("/a") is None
    session.set_node("/a", metadata)
    new = session.get_node_id("/a")
    assert new != old
    snapshot_id = session.commit("recreated")
    assert values(repo) == [-1] * 8
    told = log(repo, snapshot_id)
    assert {str(it) for it in told.deleted_arrays} == {old}
    assert {str(it) for it in told.new_arrays} == {new}


def test_node_ids_survive_updates(repo):
    create(repo)
    old = repo.readonly_session("main").get_node_id("/a")
    with repo.transaction("main", message="more") as store:
        array = zarr.open_array(store, path="a")
        array.attrs["unit"] = "K"
        array.resize((20,))
        array[:] = 1
    assert repo.readonly_session("main").get_node_id("/a") == old


def test_an_array_that_becomes_a_group_or_changes_its_rank_is_another_node(repo):
    create(repo)
    create(repo, (2, 2), (1, 1), "other")
    session = repo.writable_session("main")
    old = session.get_node_id("/a")
    zarr.open_array(session.store, path="a")[:] = 3
    session.set_node("/a", session.node("/other").user_data)
    assert session.get_node_id("/a") != old
    session.set_node("/other", GROUP)
    session.commit("changed")
    assert values(repo) == [[-1, -1], [-1, -1]]
    assert repo.readonly_session("main").node("/other").array is None


def test_deleting_a_group_deletes_and_logs_all_below_it_and_nothing_beside_it(repo):
    session = repo.writable_session("main")
    for path in ("/", "/a", "/a/b", "/a-b", "/ab"):
        session.set_node(path, GROUP)
    session.commit("groups")
    create(repo, path="a/b/c")
    session = repo.writable_session("main")
    gone = {session.get_node_id(path) for path in ("/a", "/a/b")}
    session.delete_node("/a")
    session.delete_node("/not/there")
    told = log(repo, session.commit("deleted"))
    assert {str(it) for it in told.deleted_groups} == gone
    assert len(told.deleted_arrays) == 1
    assert repo.readonly_session("main").paths() == ["/a-b", "/ab"]


def test_a_node_created_and_deleted_in_one_session_leaves_no_trace(repo):
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(2,), dtype="i4")[:] = 1
    session.delete_node("/")
    assert not session.has_uncommitted_changes


def test_deleted_chunks_read_as_fill_values(repo):
    create(repo)
    session = repo.writable_session("main")

    async def delete():
        await session.delete_chunk("/a", (1,))
        await session.delete_chunk("/a", (77,))

    zarr.core.sync.sync(delete())
    told = log(repo, session.commit("one less"))
    assert [coords.tolist() for coords in told.updated_chunks.values()] == [[[1]]]
    assert values(repo) == [0, 1, -1, -1, 4, 5, 6, 7]


def test_a_commit_keeps_the_manifests_of_arrays_that_it_does_not_touch(repo):
    create(repo, path="a")
    create(repo, path="b")
    before = {item.key for page in repo.storage.list("manifests/") for item in page}
    with repo.transaction("main", message="a only") as store:
        zarr.open_array(store, path="a")[0] = 5
    after = {item.key for page in repo.storage.list("manifests/") for item in page}
    assert len(after - before) == 1
    with repo.transaction("main", message="attributes only") as store:
        zarr.open_array(store, path="a").attrs["x"] = 1
    assert {item.key for page in repo.storage.list("manifests/") for item in page} == after
    assert values(repo, "a") == [5, *range(1, 8)]
    assert values(repo, "b") == list(range(8))


def test_an_array_has_nothing_below_it(repo):
    create(repo)
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError):
        session.set_node("/a/b/c", GROUP)


async def test_chunk_coordinates_are_those_of_the_base_with_the_changes_over_them(repo):
    create(repo, (6, 2), (2, 1))
    session = repo.writable_session("main")
    await session.delete_chunk("/a", (1, 0))
    await session.set_chunk("/a", (2, 1), b"again")
    found = [coords async for coords in session.chunk_coordinates("/a")]
    assert sorted(found) == [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_a_read_only_session_survives_pickling_and_a_writable_one_refuses(repo):
    create(repo)
    copy = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    assert zarr.open_array(copy.store, path="a")[:].tolist() == list(range(8))
    with pytest.raises(SessionStateError):
        pickle.dumps(repo.writable_session("main"))


def document(**fields):
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
    return {"node_type": "array", "shape": [5, 6], "chunk_grid": grid} | fields


def regular(*chunk_shape):
    return {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}


def rectilinear(*chunk_shapes):
    return {"name": "rectilinear", "configuration": {"chunk_shapes": chunk_shapes}}


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, [3, 2]),
        ({"shape": [0, 7]}, [0, 3]),
        ({"shape": [], "chunk_grid": regular()}, []),
        ({"shape": [2**40, 6], "chunk_grid": regular(2**20, 6)}, [2**20, 1]),
        ({"chunk_grid": rectilinear(2, [1, 2, 3])}, [3, 3]),
        ({"chunk_grid": rectilinear([[2, 2], 1], [6])}, [3, 1]),
    ],
)
def test_chunks_are_counted_as_the_grid_says(fields, counts):
    found = array_data(json.dumps(document(**fields)).encode(), "/a")
    lengths = fields.get("shape", [5, 6])
    assert list(found.shape) == [DimensionShape(*it) for it in zip(lengths, counts, strict=True)]


def test_an_empty_dimension_name_is_no_name():
    found = array_data(json.dumps(document(dimension_names=["x", ""])).encode(), "/a")
    assert found.dimension_names == ("x", None)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        *(
            json.dumps(document(**fields)).encode()
            for fields in (
                {"node_type": "dataset"},
                {"shape": [-1, 6]},
                {"shape": [1.5, 6]},
                {"shape": [2**64, 6]},
                {"shape": [2**40, 6]},
                {"shape": [5]},
                {"chunk_grid": regular(2)},
                {"chunk_grid": {"name": "hexagonal", "configuration": {}}},
                {"dimension_names": ["x"]},
                {"dimension_names": [1, 2]},
                {"dimension_names": 5},
            )
        ),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_before_anything_changes(repo, text):
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError) as caught:
        session.set_node("/a", text)
    assert caught.value.kind == "invalid-zarr-metadata"
    assert not session.has_uncommitted_changes


def test_what_a_failed_commit_wrote_is_not_taken_for_later_edits(repo):
    create(repo)
    session, rival = repo.writable_session("main"), repo.writable_session("main")
    rival.set_node("/g", GROUP)
    rival.commit("rival")
    zarr.open_array(session.store, path="a")[:] = 1
    with pytest.raises(ConflictError):
        session.commit("ones")
    session.discard_changes()
    zarr.open_array(session.store, path="a")[:] = 2
    session.commit("twos", rebase_with=ConflictDetector())
    assert set(zarr.open_array(session.store, path="a")[:].tolist()) == {2}
