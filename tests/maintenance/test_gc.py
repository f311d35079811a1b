"""Garbage collection: its limits, its failures, and what the official library does not have."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from icefloe.assets import Assets
from icefloe.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ReadOnlyError,
)
from icefloe.format import repo_info, snapshot
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ChunkId, ManifestId, ObjectId, SnapshotId, random_ids
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ManifestRefs, Nodes
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.status import Availability, RepoStatus
from icefloe.maintenance.cutoff import is_before
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.verify import verify
from icefloe.storage import DeleteResult, open_storage
from maintenance.histories import (
    CHUNK_BYTES,
    FUTURE,
    assets,
    contents,
    create,
    files,
    official,
    seen,
    write_chunk,
)
from maintenance.watching import Watched


def test_a_young_cutoff_needs_force(copies):
    path = copies()
    before = files(path)
    young = datetime.now(UTC) - timedelta(hours=23)
    with pytest.raises(InvalidInputError, match="force=True"):
        garbage_collect(assets(path), young)
    assert files(path) == before
    garbage_collect(assets(path), young, safety_floor=timedelta(hours=1))
    garbage_collect(assets(path), datetime.now(UTC) - timedelta(hours=25))
    assert files(path) == before
    assert garbage_collect(assets(path), FUTURE, dry_run=True).chunks_deleted > 0
    assert garbage_collect(assets(path), FUTURE, force=True).chunks_deleted > 0


def test_a_dry_run_tells_the_same_and_changes_nothing(copies, messy):
    path = copies()
    before = files(path), seen(path)
    rehearsed = garbage_collect(assets(path), messy.end, dry_run=True)
    assert (files(path), seen(path)) == before
    result = garbage_collect(assets(path), messy.end, force=True)
    names = {"dry_run", "objects_listed"}
    for name in set(type(result).__slots__) - names:
        assert getattr(result, name) == getattr(rehearsed, name), name
    assert result.snapshots_dropped > 2
    assert result.manifests_deleted > 2
    assert len(before[0] - files(path)) == sum(
        getattr(result, f"{kind}_deleted")
        for kind in ("chunks", "manifests", "snapshots", "transaction_logs")
    )


def test_storage_and_status_must_take_writes(copies):
    path = copies()
    with pytest.raises(ReadOnlyError):
        garbage_collect(Assets(open_storage(path, read_only=True)), FUTURE, force=True)
    info, _ = assets(path).repo()
    status = RepoStatus(Availability.READ_ONLY, 0, "holiday")
    (path / "repo").write_bytes(repo_info.encode(replace(info, status=status)))
    before = files(path)
    with pytest.raises(ReadOnlyError, match="holiday"):
        garbage_collect(assets(path), FUTURE, force=True)
    assert files(path) == before
    assert garbage_collect(assets(path), FUTURE, dry_run=True).chunks_deleted > 0


def test_a_second_run_finds_nothing(copies, messy):
    path = copies()
    garbage_collect(assets(path), messy.end, force=True)
    result = garbage_collect(assets(path), messy.end, force=True)
    assert result.bytes_deleted == 0
    assert result.snapshots_dropped == 0
    assert official(path).garbage_collect(messy.end).bytes_deleted == 0


@pytest.mark.parametrize("budget", [0, 48 * 2, 48 * 5])
def test_with_little_memory_the_same_is_left_in_more_passes(budget, copies, messy):
    rich, poor = copies(), copies()
    expected = garbage_collect(assets(rich), messy.end, force=True)
    result = garbage_collect(assets(poor), messy.end, force=True, max_memory_bytes=budget)
    assert files(poor) == files(rich)
    assert result.bytes_deleted == expected.bytes_deleted
    assert result.manifests_read > expected.manifests_read
    assert [*verify(assets(poor), "objects")] == []


def test_objects_with_other_names_are_left_alone(copies, messy):
    path = copies()
    names = ["chunks/notes.txt", "chunks/abc", "snapshots/LOWERCASEisNoId", "manifests/.hidden"]
    for name in names:
        (path / name).write_bytes(b"mine")
    garbage_collect(assets(path), FUTURE, force=True)
    assert set(names) <= files(path)


def test_progress_is_told_and_ends_where_the_summary_is(copies, messy):
    told = []
    summary = garbage_collect(assets(copies()), messy.end, force=True, progress=told.append)
    phases = list(dict.fromkeys(item.phase for item in told))
    assert phases == [
        "mark",
        "update",
        "snapshots",
        "transaction_logs",
        "manifests",
        "chunks",
    ]
    last = told[-1]
    assert last.objects_listed == summary.objects_listed
    assert last.manifests_read == summary.manifests_read > 0
    assert last.snapshots_read > 0
    deleted = ("chunks", "manifests", "snapshots", "transaction_logs")
    assert last.objects_deleted == sum(getattr(summary, f"{kind}_deleted") for kind in deleted)


class Stubborn:
    """Fails to delete keys of one folder."""

    def __init__(self, storage, folder, *, partly=False, raises=None):
        self._storage, self._folder = storage, folder
        self._partly, self._raises = partly, raises

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def delete(self, keys):
        bad = [key for key in keys if key.startswith(self._folder)]
        bad = bad[:1] if self._partly else bad
        if bad and self._raises:
            raise self._raises
        result = self._storage.delete([key for key in keys if key not in bad])
        return DeleteResult(result.deleted, dict.fromkeys(bad, "no"))


PHASES = ["snapshots", "transaction_logs", "manifests", "chunks"]


@pytest.mark.parametrize("phase", range(4))
@pytest.mark.parametrize("partly", [True, False])
def test_after_a_phase_with_failures_the_later_ones_are_skipped(phase, partly, copies, messy):
    path = copies()
    folder = ["snapshots/", "transactions/", "manifests/", "chunks/"][phase]
    storage = Stubborn(open_storage(path), folder, partly=partly)
    summary = garbage_collect(Assets(storage), messy.end, force=True)
    assert summary.objects_failed_to_delete > 0
    assert summary.delete_errors == ("no",)
    assert summary.skipped_phases == tuple(PHASES[phase + 1 :])
    assert [*verify(assets(path), "objects")] == []
    garbage_collect(assets(path), messy.end, force=True)
    clean = copies()
    garbage_collect(assets(clean), messy.end, force=True)
    assert files(path) == files(clean)


def test_a_store_that_refuses_is_reported_not_raised(copies, messy):
    path = copies()
    error = PermissionDeniedError("you may not")
    summary = garbage_collect(
        Assets(Stubborn(open_storage(path), "snapshots/", raises=error)), messy.end, force=True
    )
    assert summary.delete_errors == ("you may not",)
    assert summary.snapshots_deleted == 0
    assert summary.bytes_deleted == 0


@pytest.mark.parametrize("damage", ["missing", "garbage"])
@pytest.mark.parametrize("folder", ["snapshots", "manifests"])
def test_nothing_is_deleted_if_a_live_file_is_missing_or_damaged(folder, damage, copies, messy):
    path = copies()
    repo = official(path)
    tip = repo.lookup_branch("main")
    name = tip if folder == "snapshots" else repo.list_manifest_files(tip)[0].id
    if damage == "missing":
        (path / folder / name).unlink()
    else:
        (path / folder / name).write_bytes(b"garbage")
    before = files(path), seen(path)
    with pytest.raises((NotFoundError, FormatError)):
        garbage_collect(assets(path), messy.end, force=True)
    assert (files(path), seen(path)) == before


def test_packed_objects_live_while_any_reference_needs_them(tmp_path):
    """Two chunks in one object; then one of them is overwritten and its history expired."""
    path = tmp_path / "repo"
    create(path)
    pack = _pack(path)
    repo = official(path)
    session = repo.writable_session("main")
    write_chunk(session, 0, 55)
    session.commit("overwrite one of two")
    repo.expire_snapshots(FUTURE)
    summary = garbage_collect(assets(path), FUTURE, force=True)
    assert summary.manifests_deleted == 2
    assert f"chunks/{pack}" in files(path)
    assert [*verify(assets(path), "objects")] == []
    assert None not in contents(path)["branch", "main"][:2]
    session = repo.writable_session("main")
    write_chunk(session, 1, 56)
    session.commit("overwrite the other")
    repo.expire_snapshots(FUTURE)
    garbage_collect(assets(path), FUTURE, force=True)
    assert f"chunks/{pack}" not in files(path)
    assert [*verify(assets(path), "objects")] == []


def _pack(path):
    """Put chunks 0 and 1 of the tip into one object, as a packing writer would."""
    store = assets(path)
    info, _ = store.repo()
    tip = info.snapshots.id_at(info.branches.todict()["main"])
    value = store.snapshot(tip)
    row = value.nodes.row("/a")
    node = value.nodes[row]
    pack = ChunkId.random()
    (path / "chunks" / str(pack)).write_bytes(b"a" * CHUNK_BYTES + b"b" * CHUNK_BYTES)
    refs = ChunkRefs.native(
        np.array([[0], [1]], np.uint32),
        np.frombuffer(pack.raw * 2, np.uint8).reshape(2, 12),
        np.array([0, CHUNK_BYTES], np.uint64),
        np.full(2, CHUNK_BYTES, np.uint64),
    )
    manifest = Manifest(ManifestId.random(), (ArrayManifest(node.id, refs),))
    size = store.put_manifest(manifest)
    array = replace(node.array, manifests=ManifestRefs.of([(manifest.id, [(0, 2)])], 1))
    nodes = Nodes.of(
        [
            *(value.nodes[other] for other in range(len(value.nodes)) if other != row),
            replace(node, array=array),
        ]
    )
    changed = replace(value, nodes=nodes, manifest_files=ManifestFiles.of([(manifest.id, size, 2)]))
    (path / "snapshots" / str(tip)).write_bytes(snapshot.encode(changed))
    return pack


def test_a_manifest_that_only_a_node_mentions_is_needed(copies, messy, monkeypatch):
    """Other clients go by the list of manifests alone, and would delete it."""
    path = copies()
    repo = official(path)
    tip = repo.lookup_branch("main")
    manifest_id = repo.list_manifest_files(tip)[0].id
    value = assets(path).snapshot(SnapshotId.parse(tip))
    monkeypatch.setattr(snapshot, "_check_manifests", lambda value: None)
    changed = replace(value, manifest_files=ManifestFiles.of([]))
    (path / "snapshots" / tip).write_bytes(snapshot.encode(changed))
    garbage_collect(assets(path), FUTURE, force=True)
    assert f"manifests/{manifest_id}" in files(path)


def test_times_in_whole_seconds_may_be_a_second_younger():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert not is_before(at, at + timedelta(milliseconds=900))
    assert is_before(at, at + timedelta(seconds=1))
    exact = at + timedelta(microseconds=1)
    assert not is_before(exact, exact)
    assert is_before(exact, exact + timedelta(microseconds=1))


def test_a_file_that_vanishes_while_it_is_looked_at_does_not_matter(copies, messy):
    path = copies()
    for folder in ("chunks", "manifests", "snapshots", "transactions"):
        os.utime(path / folder, ns=(0, 0))  # long unchanged: files are looked at when needed
    orphan = path / "chunks" / str(ObjectId.random())
    orphan.write_bytes(b"x")
    os.utime(path / "chunks", ns=(0, 0))

    def vanish(number, verb, arguments):
        if verb == "list" and arguments == ("transactions/",) and orphan.exists():
            orphan.unlink()

    garbage_collect(Assets(Watched(open_storage(path), vanish)), messy.end, force=True)
    assert [*verify(assets(path), "objects")] == []


def test_sets_of_ids_tell_members_from_others_whatever_their_bytes():
    ids = random_ids(1000)
    ids[::3, 8:] = 0
    ids[1::3, :8] = 7
    found = IdSet(ids[:300])
    for start in range(0, 700, 50):
        found.add(ids[start : start + 50])
    assert len(found) == 700
    assert found.contains(ids).tolist() == [True] * 700 + [False] * 300
    assert sorted(item.tobytes() for item in found.ids()) == sorted(
        item.tobytes() for item in ids[:700]
    )
    assert IdSet().contains(ids).sum() == 0
    assert len(IdSet()) == 0
