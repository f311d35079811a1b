"""Repositories: creation, refs, history, status and the ops log."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from icefloe import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    MemoryStorage,
    NotFoundError,
    ReadOnlyError,
    Repository,
    open_storage,
)
from icefloe.assets import Assets
from icefloe.format import flexbuffers, repo_info
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.updates import UpdateKind

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
MISSING_ID = "0" * 20


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def repo(storage):
    return Repository.create(storage)


def commit(repo, name, branch="main", **metadata):
    session = repo.writable_session(branch)
    session.set_node(f"/{name}", GROUP)
    return session.commit(name, metadata)


def edit(storage, **fields):
    """Rewrite fields of the repo object, as another client might."""
    info, _ = Assets(storage).repo()
    storage.put("repo", repo_info.encode(replace(info, **fields)))


def keys(storage):
    return {item.key for page in storage.list() for item in page}


def test_a_new_repository_has_main_at_the_initial_snapshot_and_no_probe_left(repo, storage):
    initial = str(INITIAL_SNAPSHOT_ID)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == set()
    assert repo.lookup_branch("main") == initial
    assert keys(storage) == {"repo", f"snapshots/{initial}", f"transactions/{initial}"}


def test_create_refuses_a_place_that_holds_something_else(storage):
    storage.put("somebody/elses", b"data")
    with pytest.raises(AlreadyExistsError) as caught:
        Repository.create(storage)
    assert caught.value.kind == "parent-directory-not-clean"
    Repository.create(storage, check_clean_root=False)


@pytest.mark.parametrize("check_clean_root", [True, False])
def test_create_leaves_an_existing_repository_as_it_is(repo, storage, check_clean_root):
    before = {key: storage.get(key).data for key in keys(storage)}
    with pytest.raises(AlreadyExistsError) as caught:
        Repository.create(storage, check_clean_root=check_clean_root)
    assert caught.value.kind == "repository-already-exists"
    assert {key: storage.get(key).data for key in keys(storage)} == before


def test_open_says_that_there_is_no_repository(storage):
    assert not Repository.exists(storage)
    with pytest.raises(NotFoundError) as caught:
        Repository.open(storage)
    assert caught.value.kind == "repository-not-found"


def test_open_or_create_creates_once_and_then_opens(tmp_path):
    first = Repository.open_or_create(tmp_path / "repo")
    snapshot_id = commit(first, "a")
    assert Repository.exists(tmp_path / "repo")
    assert Repository.open_or_create(tmp_path / "repo").lookup_branch("main") == snapshot_id


def test_a_repository_handle_survives_pickling(repo):
    commit(repo, "a")
    copy = pickle.loads(pickle.dumps(repo))
    assert copy.lookup_branch("main") == repo.lookup_branch("main")
    commit(copy, "b")


def test_branches_are_created_listed_reset_and_deleted(repo):
    first, second = commit(repo, "a"), commit(repo, "b")
    repo.create_branch("dev", first)
    assert repo.list_branches() == {"main", "dev"}
    repo.reset_branch("dev", second)
    assert repo.lookup_branch("dev") == second
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    repo.create_branch("dev", first)
    assert repo.lookup_branch("dev") == first


def test_commits_to_one_branch_leave_others_and_tags_where_they_are(repo):
    first = commit(repo, "a")
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    # Rows of the repo object shift with every snapshot that sorts before others.
    for number in range(20):
        tip = commit(repo, f"g{number}", branch="dev")
    assert repo.lookup_branch("main") == repo.lookup_tag("v1") == first
    assert repo.lookup_branch("dev") == tip
    assert [info.message for info in repo.ancestry(tag="v1")] == ["a", "Repository initialized"]
    assert len([*repo.ancestry(branch="dev")]) == 22


def test_a_conditional_reset_refuses_when_the_branch_is_elsewhere(repo):
    first, second = commit(repo, "a"), commit(repo, "b")
    with pytest.raises(ConflictError) as caught:
        repo.reset_branch("main", first, from_snapshot_id=first)
    assert caught.value.kind == "branch-moved"
    assert repo.lookup_branch("main") == second
    repo.reset_branch("main", first, from_snapshot_id=second)
    assert repo.lookup_branch("main") == first


def test_main_cannot_be_deleted(repo):
    with pytest.raises(InvalidInputError) as caught:
        repo.delete_branch("main")
    assert caught.value.kind == "cannot-delete-main"


def test_taken_and_missing_refs_are_refused_and_change_nothing(repo, storage):
    tip = commit(repo, "a")
    repo.create_tag("v1", tip)
    before = storage.get("repo").data
    refused = [
        (AlreadyExistsError, "branch-already-exists", lambda: repo.create_branch("main", tip)),
        (AlreadyExistsError, "tag-already-exists", lambda: repo.create_tag("v1", tip)),
        (NotFoundError, "snapshot-not-found", lambda: repo.create_branch("x", MISSING_ID)),
        (NotFoundError, "snapshot-not-found", lambda: repo.create_tag("x", MISSING_ID)),
        (NotFoundError, "snapshot-not-found", lambda: repo.reset_branch("main", MISSING_ID)),
        (NotFoundError, "branch-not-found", lambda: repo.reset_branch("x", tip)),
        (NotFoundError, "branch-not-found", lambda: repo.delete_branch("x")),
        (NotFoundError, "branch-not-found", lambda: repo.lookup_branch("x")),
        (NotFoundError, "branch-not-found", lambda: repo.writable_session("x")),
        (NotFoundError, "tag-not-found", lambda: repo.delete_tag("x")),
        (NotFoundError, "tag-not-found", lambda: repo.lookup_tag("x")),
        (InvalidInputError, "invalid-input", lambda: repo.create_tag("x", "not-an-id")),
    ]
    for error, kind, call in refused:
        with pytest.raises(error) as caught:
            call()
        assert caught.value.kind == kind
    assert storage.get("repo").data == before


def test_a_deleted_tag_is_never_used_again(repo):
    tip = commit(repo, "a")
    repo.create_tag("v1", tip)
    repo.delete_tag("v1")
    assert repo.list_tags() == set()
    commit(repo, "b")
    with pytest.raises(AlreadyExistsError) as caught:
        repo.create_tag("v1", tip)
    assert caught.value.kind == "tag-previously-deleted"
    repo.create_branch("v1", tip)


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\ud800", "x" * 1025, "é" * 513])
def test_bad_ref_names_are_refused(repo, name):
    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(InvalidInputError) as caught:
            create(name, str(INITIAL_SNAPSHOT_ID))
        assert caught.value.kind == "invalid-ref-name"


@pytest.mark.parametrize("name", ["a/b", "..", "with space", "é日本😀", "x" * 1024])
def test_other_ref_names_are_taken(repo, name):
    repo.create_branch(name, str(INITIAL_SNAPSHOT_ID))
    repo.create_tag(name, str(INITIAL_SNAPSHOT_ID))
    assert repo.list_branches() == {"main", name}
    assert repo.list_tags() == {name}


def test_read_only_sessions_open_by_branch_tag_snapshot_and_time(repo):
    first, second = commit(repo, "a"), commit(repo, "b")
    repo.create_tag("v1", first)
    times = {info.id: info.written_at for info in repo.ancestry(branch="main")}
    # A snapshot is there at the very microsecond it was written, not one before.
    earlier = times[second] - timedelta(microseconds=1)
    assert repo.readonly_session("main").snapshot_id == second
    assert repo.readonly_session(tag="v1").snapshot_id == first
    assert repo.readonly_session(snapshot_id=first).snapshot_id == first
    assert repo.readonly_session("main", as_of=times[second]).snapshot_id == second
    assert repo.readonly_session("main", as_of=earlier).snapshot_id == first
    with pytest.raises(NotFoundError):
        repo.readonly_session("main", as_of=datetime(2000, 1, 1, tzinfo=UTC))


def test_as_of_is_exact_for_every_microsecond(repo):
    for number in range(50):
        commit(repo, f"g{number}")
    for info in repo.ancestry(branch="main"):
        assert repo.readonly_session("main", as_of=info.written_at).snapshot_id == info.id


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"branch": "main", "tag": "v1"},
        {"branch": "main", "snapshot_id": str(INITIAL_SNAPSHOT_ID)},
        {"snapshot_id": str(INITIAL_SNAPSHOT_ID), "as_of": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_read_only_session_needs_exactly_one_version(repo, choice):
    with pytest.raises(InvalidInputError):
        repo.readonly_session(**choice)


def test_ancestry_tells_message_metadata_and_times_newest_first(repo):
    repo.set_default_commit_metadata({"author": "me", "run": 1})
    before = datetime.now(UTC)
    first = commit(repo, "a")
    second = commit(repo, "b", run=2, deep={"x": [1, None, "é"]})
    newest, older, root = repo.ancestry(branch="main")
    assert (newest.id, newest.parent_id, older.parent_id) == (second, first, root.id)
    assert root.parent_id is None
    assert [newest.message, older.message, root.message] == ["b", "a", "Repository initialized"]
    assert newest.metadata == {"author": "me", "run": 2, "deep": {"x": [1, None, "é"]}}
    assert older.metadata == {"author": "me", "run": 1}
    assert before < older.written_at < newest.written_at < datetime.now(UTC)


def test_times_ascend_even_if_another_client_wrote_in_the_future(repo, storage):
    info, _ = Assets(storage).repo()
    future = replace(info.updates[0], updated_at=info.updates[0].updated_at + 3_600_000_000)
    edit(storage, updates=type(info.updates).of([future]))
    commit(repo, "a")
    newest, older = repo.ops_log()
    assert newest.updated_at == older.updated_at + 1


@pytest.mark.parametrize("availability", [Availability.READ_ONLY, Availability.OFFLINE, 9])
def test_a_repository_that_is_not_online_takes_no_writes_and_is_read_unless_offline(
    repo, storage, availability
):
    tip = commit(repo, "a")
    repo.create_tag("v1", tip)
    session = repo.writable_session("main")
    session.set_node("/b", GROUP)
    edit(storage, status=RepoStatus(availability, 1, "moving to a new bucket"))
    writes = [
        lambda: repo.writable_session("main"),
        lambda: session.commit("b"),
        lambda: repo.create_branch("x", tip),
        lambda: repo.reset_branch("main", tip),
        lambda: repo.create_tag("x", tip),
        lambda: repo.delete_tag("v1"),
    ]
    for write in writes:
        with pytest.raises(ReadOnlyError, match="moving to a new bucket") as caught:
            write()
        assert caught.value.kind == "repository-not-online"
    if availability == Availability.OFFLINE:
        with pytest.raises(ReadOnlyError, match="moving to a new bucket"):
            repo.readonly_session("main")
    else:
        assert repo.readonly_session("main").paths() == ["/a"]
    assert repo.lookup_tag("v1") == tip
    repo.set_status(Availability.ONLINE)
    session.commit("b")


def test_read_only_storage_gives_no_writable_session(tmp_path):
    Repository.create(tmp_path)
    repo = Repository.open(open_storage(tmp_path, read_only=True))
    with pytest.raises(ReadOnlyError) as caught:
        repo.writable_session("main")
    assert caught.value.kind == "read-only-storage"
    with pytest.raises(ReadOnlyError):
        repo.create_branch("x", str(INITIAL_SNAPSHOT_ID))


def test_the_ops_log_tells_every_kind_of_update(repo):
    first, second = commit(repo, "a"), commit(repo, "b")
    repo.create_branch("dev", first)
    repo.reset_branch("dev", second)
    repo.delete_branch("dev")
    repo.create_tag("v1", first)
    repo.delete_tag("v1")
    log = [*repo.ops_log()][::-1]
    told = [
        (
            UpdateKind(it.kind).name,
            it.name,
            it.previous_snap_id and str(it.previous_snap_id),
            it.new_snap_id and str(it.new_snap_id),
        )
        for it in log
    ]
    assert told == [
        ("REPO_INITIALIZED", None, None, None),
        ("NEW_COMMIT", "main", None, first),
        ("NEW_COMMIT", "main", None, second),
        ("BRANCH_CREATED", "dev", None, None),
        ("BRANCH_RESET", "dev", first, None),
        ("BRANCH_DELETED", "dev", second, None),
        ("TAG_CREATED", "v1", None, None),
        ("TAG_DELETED", "v1", first, None),
    ]
    assert all(older.updated_at < newer.updated_at for older, newer in pairwise(log))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_ops_log_goes_on_in_the_backups_when_the_repo_object_is_full(repo, storage, limit):
    edit(storage, config=flexbuffers.encode({"num_updates_per_repo_info_file": limit}))
    repo = Repository.open(storage)
    for number in range(10):
        commit(repo, f"g{number}")
    assets = Assets(storage)
    info, _ = assets.repo()
    assert len(info.updates) == max(limit, 1)
    assert info.updates[0].backup_path is None
    log = [*repo.ops_log()]
    assert [update.kind for update in log] == [UpdateKind.NEW_COMMIT] * 10 + [
        UpdateKind.REPO_INITIALIZED
    ]
    # Each update but the newest names the copy of the repo object that it was the newest of.
    for update in log[1:]:
        backup = assets.backup(update.backup_path)
        assert backup.updates[0] == replace(update, backup_path=None)


def test_entries_that_have_no_backup_are_never_dropped(repo, storage):
    info, _ = Assets(storage).repo()
    first = info.updates[0]
    old = [replace(first, updated_at=first.updated_at - age) for age in range(1, 5)]
    config = flexbuffers.encode({"num_updates_per_repo_info_file": 2})
    edit(storage, updates=type(info.updates).of([first, *old]), config=config)
    repo = Repository.open(storage)
    for number in range(6):
        commit(repo, f"g{number}")
    assert len([*repo.ops_log()]) == 11


def test_the_ops_log_ends_where_a_backup_is_gone_or_names_itself(repo, storage):
    edit(storage, config=flexbuffers.encode({"num_updates_per_repo_info_file": 2}))
    repo = Repository.open(storage)
    for number in range(4):
        commit(repo, f"g{number}")
    pointer = Assets(storage).repo()[0].repo_before_updates
    storage.delete([f"overwritten/{pointer}"])
    assert len([*repo.ops_log()]) == 2
    edit(storage, repo_before_updates="loop")
    storage.copy("repo", "overwritten/loop")
    assert len([*repo.ops_log()]) == 4


def test_config_bytes_are_kept_as_they_are(repo, storage):
    odd = {"compression": {"algorithm": "zstd", "level": 200}, "unheard-of": [1, 2]}
    config = flexbuffers.encode(odd)
    edit(storage, config=config)
    repo = Repository.open(storage)
    commit(repo, "a")
    commit(repo, "b")
    assert Assets(storage).repo()[0].config == config


def test_a_repo_object_without_updates_is_refused_rather_than_extended(repo, storage):
    info, _ = Assets(storage).repo()
    edit(storage, updates=type(info.updates).of([]))
    with pytest.raises(FormatError):
        commit(repo, "a")


def test_a_history_in_a_circle_ends_in_an_error(repo, storage):
    commit(repo, "a")
    info, _ = Assets(storage).repo()
    circle = info.snapshots.parent[::-1].copy()
    circle[:] = [1, 0]
    edit(storage, snapshots=replace(info.snapshots, parent=circle))
    with pytest.raises(FormatError):
        [*repo.ancestry(branch="main")]
