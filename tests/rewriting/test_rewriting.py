"""Commits that change how data is stored: every value stays, whoever writes or dies meanwhile."""

from datetime import UTC, datetime, timedelta

import icechunk
import numpy as np
import pytest
import zarr

from icefloe import (
    ConflictDetector,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    NotFoundError,
    PackingConfig,
    Repository,
    RepositoryConfig,
    open_storage,
)
from maintenance.watching import Killed, Watched, kill_at, once

icechunk.set_logs_filter("error")

VALUES = {
    "small": np.arange(40 * 100, dtype="f8").reshape(40, 100),
    "nested/tiny": np.arange(12, dtype="i4"),
}


UNPACKED = RepositoryConfig(packing=PackingConfig(enabled=False))


NOT_INLINE = RepositoryConfig(inline_chunk_threshold_bytes=0)


def split(size):
    """A configuration that cuts every axis of every array by `size` chunks."""
    rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    splitting = ManifestSplittingConfig.from_dict(rules)
    return RepositoryConfig(manifest=ManifestConfig(splitting=splitting))


def fill(repo):
    """The arrays, as the official library or ours writes them: an object for each chunk."""
    with repo.transaction("main", message="fill") as store:
        for name, values in VALUES.items():
            array = zarr.create_array(
                store,
                name=name,
                shape=values.shape,
                chunks=(1, *values.shape[1:]),
                dtype=values.dtype,
                compressors=None,
            )
            array[:] = values


def official(path):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "repo"
    fill(icechunk.Repository.create(icechunk.local_filesystem_storage(str(path))))
    return path


def values(repo):
    store = repo.readonly_session("main").store
    return {name: zarr.open_array(store, path=name, mode="r")[:].tolist() for name in VALUES}


def check(path, repo=None):
    """Both libraries read the values, and nothing is wrong."""
    expected = {name: array.tolist() for name, array in VALUES.items()}
    repo = repo or Repository.open(path)
    assert values(repo) == expected
    if path is not None:
        assert values(official(path)) == expected
    assert repo.verify("data") == []


def manifests(repo):
    return {file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))}


def test_manifests_are_cut_as_the_configuration_says_and_kept_where_they_fit(path):
    repo = Repository.open(path, config=split(10))
    first = repo.rewrite_manifests("cut", branch="main")
    # Small has 4 cells, tiny has 2.
    assert len(manifests(repo)) == 6
    kept = manifests(repo)
    repo.rewrite_manifests("again", branch="main")
    assert manifests(repo) == kept
    assert Repository.open(path, config=split(20)).rewrite_manifests("join", branch="main")
    # Tiny fits into one cell now, small into two.
    assert len(manifests(repo)) == 3
    assert not manifests(repo) & kept
    diff = official(path).diff(from_snapshot_id=first, to_branch="main")
    assert diff.is_empty()
    check(path)


def test_a_split_that_is_chosen_is_kept_for_all_clients(path):
    repo = Repository.open(path, config=RepositoryConfig(automatic_split=10))
    repo.rewrite_manifests("cut", branch="main")
    kept = manifests(repo)
    assert len(kept) == 6
    Repository.open(path).rewrite_manifests("again", branch="main")
    assert manifests(repo) == kept
    with official(path).transaction("main", message="theirs") as store:
        zarr.open_array(store, path="small")[0] = VALUES["small"][0]
    assert len(manifests(repo) & kept) == 5
    check(path)


def test_amending_replaces_the_tip_and_keeps_its_log(path):
    before = [it.id for it in Repository.open(path).ancestry(branch="main")]
    repo = Repository.open(path, config=split(10))
    repo.rewrite_manifests("cut", branch="main", commit_method="amend")
    after = [it.id for it in repo.ancestry(branch="main")]
    assert after[1:] == before[1:]
    assert after[0] != before[0]
    diff = repo.diff(from_snapshot_id=after[1], to_branch="main")
    assert diff.new_arrays == {"/small", "/nested/tiny"}
    check(path)


def test_repacking_leaves_few_objects_and_the_collector_takes_the_rest(path):
    repo = Repository.open(path)
    summary = repo.repack("main")
    assert (summary.chunks, summary.objects_before, summary.objects_after) == (40, 40, 1)
    assert summary.bytes == VALUES["small"].nbytes
    check(path)
    assert repo.repack("main").snapshot_id is None
    future = datetime.now(UTC) + timedelta(seconds=5)
    repo.expire_snapshots(future)
    repo.garbage_collect(future, force=True)
    assert len([item for page in repo.storage.list("chunks/") for item in page]) == 1
    check(path)


def small_arrays(path):
    """Arrays of every rank, each of a few small objects."""
    repo = Repository.create(path, config=UNPACKED.merge(NOT_INLINE))
    with repo.transaction("main", message="fill") as store:
        for rank in range(1, 6):
            for number in range(3):
                shape = (3, *[2] * (rank - 1))
                array = zarr.create_array(
                    store,
                    name=f"r{rank}n{number}",
                    shape=shape,
                    chunks=(1, *shape[1:]),
                    dtype="f8",
                    compressors=None,
                    filters=None,
                )
                array[:] = np.random.default_rng(rank).normal(size=shape)
    return path


def array_values(path):
    group = zarr.open_group(Repository.open(path).readonly_session("main").store, mode="r")
    return {name: array[...].tolist() for name, array in group.arrays()}


@pytest.mark.parametrize("target", [None, 100, 2**20])
def test_small_arrays_share_packs_and_repacking_settles(tmp_path, target):
    path = small_arrays(tmp_path / "repo")
    before = array_values(path)
    repo = Repository.open(path)
    if target is not None:
        repo = repo.reopen(RepositoryConfig(packing=PackingConfig(target_bytes=target)))
    summary = repo.repack("main")
    assert summary.objects_before == summary.chunks > 30
    assert summary.objects_after == 1 if target != 100 else summary.objects_after > 5
    assert repo.repack("main").snapshot_id is None
    assert array_values(path) == before
    assert values_official(path) == before
    assert repo.verify("data") == []


def test_repacking_settles_again_after_every_small_write(tmp_path):
    path = small_arrays(tmp_path / "repo")
    repo = Repository.open(path)
    repo.repack("main")
    for number in range(3):
        with Repository.open(path, config=UNPACKED).transaction("main", message="more") as store:
            zarr.open_array(store, path="r1n1")[number] = number + 1
        # One new small object beside the pack, which is small, too: both become one.
        assert repo.repack("main").objects_after == 1
        assert repo.repack("main").snapshot_id is None


def values_official(path):
    group = zarr.open_group(official(path).readonly_session("main").store, mode="r")
    return {name: array[...].tolist() for name, array in group.arrays()}


def test_only_the_arrays_that_are_named_are_repacked(path):
    repo = Repository.open(path)
    assert repo.repack("main", ["/nested/tiny"]).snapshot_id is None
    with pytest.raises(NotFoundError, match="/nothing"):
        repo.repack("main", ["/nothing"])
    with pytest.raises(NotFoundError, match="/nested"):
        repo.repack("main", ["/nested"])
    assert repo.repack("main", ["/small"]).chunks == 40
    check(path)


REWRITES = {
    "rewrite": lambda repo: repo.rewrite_manifests("rewrite", branch="main"),
    "repack": lambda repo: repo.repack("main"),
}


@pytest.mark.parametrize("name", REWRITES)
def test_a_commit_that_comes_in_between_at_any_step_is_kept(name, path, tmp_path):
    quiet = Watched(open_storage(path))
    REWRITES[name](Repository.open(quiet, config=split(10)))
    for number in range(len(quiet.calls)):
        place = tmp_path / f"copy-{number}"
        fill(Repository.create(place, config=UNPACKED))

        def rival(place=place):
            with Repository.open(place).transaction("main", message="rival") as store:
                zarr.open_array(store, path="small")[3] = -1

        storage = Watched(open_storage(place), once(number, rival))
        REWRITES[name](Repository.open(storage, config=split(10)))
        repo = Repository.open(place)
        if len(storage.calls) > number:
            store = repo.readonly_session("main").store
            assert (zarr.open_array(store, path="small", mode="r")[3] == -1).all(), number
            assert "rival" in [it.message for it in repo.ancestry(branch="main")]
        assert repo.verify("objects") == []


@pytest.mark.parametrize("name", REWRITES)
def test_a_session_that_began_before_rebases_over_it_without_conflict(name, path):
    repo = Repository.open(path, config=split(10))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="small")[0] = VALUES["small"][0]
    theirs = official(path).writable_session("main")
    REWRITES[name](repo)
    session.commit("ours", rebase_with=ConflictDetector())
    zarr.open_array(theirs.store, path="small")[1] = VALUES["small"][1]
    theirs.commit("theirs", rebase_with=icechunk.ConflictDetector())
    check(path)


@pytest.mark.parametrize("name", REWRITES)
def test_killed_at_any_step_the_next_run_finishes(name, path, tmp_path):
    quiet = Watched(open_storage(path))
    REWRITES[name](Repository.open(quiet, config=split(10)))
    for number in range(len(quiet.calls)):
        place = tmp_path / f"copy-{number}"
        fill(icechunk.Repository.create(icechunk.local_filesystem_storage(str(place))))
        storage = Watched(open_storage(place), kill_at(number))
        with pytest.raises(Killed):
            REWRITES[name](Repository.open(storage, config=split(10)))
        check(place)
        REWRITES[name](Repository.open(place, config=split(10)))
        check(place)


def test_official_clients_write_expire_and_collect_afterwards(path):
    repo = Repository.open(path, config=split(10))
    repo.rewrite_manifests("cut", branch="main")
    repo.repack("main")
    theirs = official(path)
    with theirs.transaction("main", message="theirs") as store:
        zarr.open_array(store, path="small")[0] = VALUES["small"][0]
    future = datetime.now(UTC) + timedelta(seconds=5)
    theirs.expire_snapshots(future)
    theirs.garbage_collect(future)
    check(path)


@pytest.mark.s3
def test_on_s3(s3_server):
    storage = open_storage(s3_server.root(), s3_server.options)
    repo = Repository.create(storage, config=UNPACKED)
    fill(repo)
    repo = Repository.open(storage, config=split(10))
    repo.rewrite_manifests("cut", branch="main")
    assert len(manifests(repo)) == 6
    repo.repack("main")
    check(None, repo)
