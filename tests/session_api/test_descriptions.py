"""Messages, metadata and write keys that cannot be kept are refused before anything is written."""

import json
from datetime import UTC, datetime

import icechunk
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import ConflictDetector, InvalidInputError, MemoryStorage, Repository
from icefloe.assets import Assets
from icefloe.descriptions import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES, check_metadata
from icefloe.format import header, repo_info
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import SnapshotInfo
from stateful.reading import document, group, put, regular

BAD_MESSAGES = [None, 5, b"bytes", ["list"], "a lone \ud800", "x" * (MAX_MESSAGE_BYTES + 1)]
BAD_METADATA = [
    [1],
    "text",
    {1: 2},
    {"a": object()},
    {"a": float("nan")},
    {"a": {1: 2}},
    {"a": 2**70},
    {"\ud800": 1},
    {"a": "\ud800"},
    {"a": datetime(2026, 1, 1, tzinfo=UTC)},
    {"a": "x" * (MAX_METADATA_BYTES + 1)},
]


LARGE_GROUP = json.dumps(
    {"zarr_format": 3, "node_type": "group", "attributes": {"x": "y" * 140_000_000}}
).encode()


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def repo(storage):
    repo = Repository.create(storage)
    with repo.transaction("main", message="start") as store:
        put(store, "zarr.json", group())
        put(store, "a/zarr.json", document([12], regular(2)))
        put(store, "a/c/0", b"0")
    return repo


def keys(storage):
    return {item.key for page in storage.list() for item in page}


def changed(repo):
    session = repo.writable_session("main")
    put(session.store, "a/c/1", b"1")
    return session


def transaction(repo, message, metadata=None):
    with repo.transaction("main", message=message, metadata=metadata) as store:
        put(store, "a/c/1", b"1")


def merge(repo, message, metadata=None):
    return repo.merge_snapshots("main", [repo.staged], message, metadata)


VERBS = {
    "commit": lambda repo, message, metadata=None: changed(repo).commit(message, metadata),
    "amend": lambda repo, message, metadata=None: changed(repo).amend(message, metadata=metadata),
    "flush": lambda repo, message, metadata=None: changed(repo).flush(message, metadata=metadata),
    "transaction": transaction,
    "merge_snapshots": merge,
    "rewrite_manifests": lambda repo, message, metadata=None: repo.rewrite_manifests(
        message, branch="main", metadata=metadata
    ),
    "repack": lambda repo, message, metadata=None: repo.repack(
        "main", message=message, metadata=metadata
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("message", BAD_MESSAGES, ids=lambda bad: ascii(bad)[:20])
def test_a_message_that_cannot_be_kept_is_refused_and_nothing_is_written(
    repo, storage, verb, message
):
    repo.staged = changed(repo).flush("staged")
    before = keys(storage)
    with pytest.raises(InvalidInputError, match="message"):
        VERBS[verb](repo, message)
    assert keys(storage) == before
    assert len([*Repository.open(storage).ancestry(branch="main")]) == 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("metadata", BAD_METADATA, ids=lambda bad: ascii(bad)[:20])
def test_metadata_that_cannot_be_kept_is_refused_and_nothing_is_written(
    repo, storage, verb, metadata
):
    repo.staged = changed(repo).flush("staged")
    before = keys(storage)
    with pytest.raises(InvalidInputError):
        VERBS[verb](repo, "message", metadata)
    assert keys(storage) == before
    assert len([*Repository.open(storage).ancestry(branch="main")]) == 2


def test_a_transaction_refuses_its_message_before_the_work_begins(repo):
    began = []
    with pytest.raises(InvalidInputError), repo.transaction("main", message=None):
        began.append(True)
    assert not began


@pytest.mark.parametrize("key", ["", 5, b"k", "\ud800", "k" * 2000])
def test_a_write_key_that_names_no_single_write_is_refused(repo, storage, key):
    before = keys(storage)
    for verb in ("commit", "flush"):
        session = changed(repo)
        with pytest.raises(InvalidInputError, match="write_key"):
            getattr(session, verb)("message", write_key=key)
        assert session.has_uncommitted_changes
    with pytest.raises(InvalidInputError, match="write_key"):
        repo.merge_snapshots("main", [repo.lookup_branch("main")], "m", write_key=key)
    assert keys(storage) == before


@pytest.mark.parametrize(
    "bad",
    [
        {"rebase_with": ConflictDetector},
        {"rebase_with": "yes"},
        {"rebase_with": ConflictDetector(), "rebase_tries": -1},
        {"rebase_with": ConflictDetector(), "rebase_tries": None},
    ],
    ids=str,
)
def test_a_solver_that_is_none_is_refused_before_it_is_needed(repo, storage, bad):
    before = keys(storage)
    with pytest.raises(InvalidInputError, match="rebase_"):
        changed(repo).commit("message", **bad)
    with (
        pytest.raises(InvalidInputError, match="rebase_"),
        repo.transaction("main", message="message", **bad),
    ):
        pass
    assert keys(storage) == before


def test_a_refused_commit_leaves_the_session_as_it_was(repo):
    session = changed(repo)
    with pytest.raises(InvalidInputError):
        session.commit(None)
    session.commit("a message")
    assert next(repo.ancestry(branch="main")).message == "a message"


@pytest.mark.parametrize("metadata", BAD_METADATA, ids=lambda bad: ascii(bad)[:20])
def test_metadata_of_the_repository_is_checked_too(repo, storage, metadata):
    for verb in (repo.set_metadata, repo.update_metadata, repo.set_default_commit_metadata):
        with pytest.raises(InvalidInputError):
            verb(metadata)
    assert Repository.open(storage).get_metadata() == {}


def test_a_status_without_readable_reason_is_refused(repo, storage):
    with pytest.raises(InvalidInputError, match="reason"):
        repo.set_status(0, "\ud800")
    Repository.open(storage)


def test_numbers_of_numpy_are_kept_as_numbers(repo):
    given = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}
    changed(repo).commit("numpy", given)
    found = next(repo.ancestry(branch="main")).metadata
    assert found == {"i": 3, "f": 0.5, "b": True}


def test_ten_megabytes_of_one_letter_are_refused_when_they_are_written(repo, storage):
    for number in range(14):
        with pytest.raises(InvalidInputError, match="bytes"):
            changed(repo).commit(chr(97 + number) * 10_000_000)
    Repository.open(storage)


def test_the_largest_message_and_metadata_are_read_by_both(tmp_path):
    repo = Repository.create(tmp_path / "repo")
    metadata = {"k": "v" * (MAX_METADATA_BYTES - 100)}
    for number in range(3):
        with repo.transaction("main", message="m" * MAX_MESSAGE_BYTES, metadata=metadata) as store:
            put(store, f"g{number}/zarr.json", group())
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    found = next(iter(theirs.ancestry(branch="main")))
    assert found.message == "m" * MAX_MESSAGE_BYTES
    assert found.metadata == metadata


def test_no_file_is_written_that_its_own_reader_takes_for_a_bomb():
    payload = b"\0" * (2**27 + 8)
    with pytest.raises(InvalidInputError, match="plausible"):
        header.pack(payload, header.FileType.SNAPSHOT)
    packed = header.pack(payload[: 2**27], header.FileType.SNAPSHOT)
    assert len(header.unpack(packed, header.FileType.SNAPSHOT, name="s")[1]) == 2**27


def test_attributes_that_nobody_could_read_are_refused_and_nothing_is_lost(repo, storage):
    session = changed(repo)
    put(session.store, "big/zarr.json", LARGE_GROUP)
    with pytest.raises(InvalidInputError, match="plausible"):
        session.commit("too large")
    put(session.store, "big/zarr.json", group())
    session.commit("small")
    assert Repository.open(storage).readonly_session("main").node("/big") is not None


def test_a_repo_object_without_a_required_field_is_never_written(repo, storage):
    info, _ = Assets(storage).repo()
    tip = info.snapshots.id_at(0)
    grown = info.with_snapshot(SnapshotInfo(SnapshotId.random(), tip, 10**16, None))
    with pytest.raises(InvalidInputError, match=r"SnapshotInfo.message is required and missing"):
        repo_info.encode(grown)


texts = st.one_of(st.text(max_size=8), st.none(), st.integers(), st.just("\ud800"))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@given(message=texts, metadata=st.one_of(values, st.dictionaries(texts, values, max_size=3)))
def test_what_a_commit_accepts_can_be_read_again_and_the_rest_is_our_error(message, metadata):
    storage = MemoryStorage()
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    put(session.store, "zarr.json", group())
    try:
        session.commit(message, metadata)
    except InvalidInputError:
        assert len([*Repository.open(storage).ancestry(branch="main")]) == 1
        return
    found = next(Repository.open(storage).ancestry(branch="main"))
    assert found.message == message
    assert found.metadata == check_metadata(metadata)
