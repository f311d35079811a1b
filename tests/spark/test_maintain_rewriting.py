"""Manifests and packs that executors write: every value stays, as when one machine rewrites."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import icechunk
import numpy as np
import pytest
import zarr

import servers
from icefloe import NotFoundError, PackingConfig, Repository
from icefloe import spark as ice
from icefloe.storage import open_storage
from maintenance.histories import copy
from maintenance.test_backends import keys
from rewriting.test_rewriting import (
    UNPACKED,
    VALUES,
    array_values,
    check,
    fill,
    manifests,
    official,
    small_arrays,
)
from rewriting.test_rewriting import split as split_config
from spark.maintaining import Writing


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    path = tmp_path_factory.mktemp("origin") / "repo"
    fill(icechunk.Repository.create(icechunk.local_filesystem_storage(str(path))))
    return path


@pytest.fixture
def path(origin, tmp_path):
    return copy(origin, tmp_path / "repo")


def layout(repo):
    """How the tip's manifests cut its arrays: for each its extents, and how many chunks it has."""
    session = repo.readonly_session("main")
    found = set()
    for name in VALUES:
        node = session.node(f"/{name}")
        refs = node.array.manifests
        for manifest_id, extents in zip(refs.ids(), refs.extents.tolist(), strict=True):
            count = session.context.assets.manifest(manifest_id).count
            found.add((name, repr(extents), count))
    return found


def rewrite(spark, path, size, **options):
    repo = Repository.open(path, config=split_config(size))
    return ice.maintain.rewrite_manifests(spark, repo, "cut", branch="main", **options)


def test_manifests_are_cut_as_one_machine_cuts_them(spark, path, origin, tmp_path):
    other = copy(origin, tmp_path / "other")
    # Cut, cut across, joined.
    for size in (10, 7, 20):
        before = Repository.open(path).lookup_branch("main")
        tip = rewrite(spark, path, size)
        expected = Repository.open(other, config=split_config(size))
        expected.rewrite_manifests("cut", branch="main")
        repo = Repository.open(path)
        assert repo.lookup_branch("main") == tip
        assert layout(repo) == layout(expected)
        said = [it.lookup_snapshot(it.lookup_branch("main")).metadata for it in (repo, expected)]
        assert said[0] == said[1]
        check(path)
        assert official(path).diff(from_snapshot_id=before, to_branch="main").is_empty()
    kept = manifests(repo)
    rewrite(spark, path, 20)
    assert manifests(repo) == kept


def test_amending_replaces_the_tip(spark, path):
    before = [it.id for it in Repository.open(path).ancestry(branch="main")]
    rewrite(spark, path, 10, commit_method="amend")
    after = [it.id for it in Repository.open(path).ancestry(branch="main")]
    assert after[1:] == before[1:]
    assert after[0] != before[0]
    check(path)


def test_arrays_of_any_shape_are_cut_as_one_machine_cuts_them(spark, tmp_path):
    arrays = {"scalar": ((), ()), "empty": ((0, 3), (1, 1)), "cube": ((7, 9, 5), (2, 2, 2))}
    repo = Repository.create(tmp_path / "repo", config=UNPACKED)
    rng = np.random.default_rng(0)
    with repo.transaction("main", message="arrays") as store:
        for name, (shape, chunks) in arrays.items():
            options = {"shape": shape, "chunks": chunks, "dtype": "i4"}
            zarr.create_array(store, name=name, **options)[...] = rng.integers(1, 9, shape)
        sparse = zarr.create_array(store, name="sparse", shape=(90,), chunks=(1,), dtype="f8")
        sparse[[3, 41, 42, 88]] = 1
    with repo.transaction("main", message="shrink") as store:
        zarr.open_array(store, path="sparse").resize((60,))

    def values(repo):
        store = repo.readonly_session("main").store
        return {
            name: zarr.open_array(store, path=name)[...].tolist() for name in [*arrays, "sparse"]
        }

    expected = values(repo)
    for size in (3, 2):
        other = copy(tmp_path / "repo", tmp_path / f"other-{size}")
        ours, theirs = (
            Repository.open(it, config=split_config(size)) for it in (repo.storage, other)
        )
        ice.maintain.rewrite_manifests(spark, ours, "cut", branch="main")
        theirs.rewrite_manifests("cut", branch="main")
        boxes = [
            {
                (name, repr(box))
                for name in [*arrays, "sparse"]
                for box in it.readonly_session("main")
                .node(f"/{name}")
                .array.manifests.extents.tolist()
            }
            for it in (ours, theirs)
        ]
        assert boxes[0] == boxes[1]
        assert values(ours) == expected
        assert ours.verify("data") == []


@pytest.mark.parametrize("operation", ["rewrite", "repack"])
def test_a_commit_that_comes_in_between_is_kept(spark, operation, path):
    storage = Writing(path, "put_many", "snapshots/")
    repo = Repository.open(storage, config=split_config(10))
    if operation == "rewrite":
        ice.maintain.rewrite_manifests(spark, repo, "cut", branch="main")
    else:
        assert ice.maintain.repack(spark, repo, "main").chunks == 40
    assert storage.marker.exists()
    repo = Repository.open(path)
    assert [it.message for it in repo.ancestry(branch="main")][1] == "rival"
    store = repo.readonly_session("main").store
    expected = VALUES["small"].copy()
    expected[3] = -1
    assert zarr.open_array(store, path="small", mode="r")[:].tolist() == expected.tolist()
    assert repo.verify("data") == []


def test_small_chunks_are_packed_once_and_the_collector_takes_the_rest(
    spark, path, origin, tmp_path
):
    expected = Repository.open(copy(origin, tmp_path / "other")).repack("main")
    repo = Repository.open(path)
    summary = ice.maintain.repack(spark, repo, "main")
    assert replace(summary, snapshot_id=None) == replace(expected, snapshot_id=None)
    assert summary.snapshot_id == repo.lookup_branch("main")
    check(path)
    assert keys(repo.storage, "icefloe/") == set()
    assert ice.maintain.repack(spark, repo, "main").snapshot_id is None
    future = datetime.now(UTC) + timedelta(seconds=5)
    repo.expire_snapshots(future)
    ice.maintain.garbage_collect(spark, repo, future, force=True)
    assert len(keys(repo.storage, "chunks/")) == 1
    check(path)


def test_several_tasks_fill_their_packs(spark, path):
    rewrite(spark, path, 5)
    config = replace(split_config(5), packing=PackingConfig(target_bytes=2000))
    repo = Repository.open(path, config=config)
    summary = ice.maintain.repack(spark, repo, "main")
    # Chunks have 800 bytes: three to a pack, and ten or more to a task, which leaves no rest.
    assert (summary.chunks, summary.objects_before) == (40, 40)
    assert 10 <= summary.objects_after <= 13
    assert len(manifests(repo)) == 8 + 3
    check(path)
    assert ice.maintain.repack(spark, repo, "main").snapshot_id is None


def test_small_arrays_of_any_rank_share_packs_and_are_packed_once(spark, tmp_path):
    path = small_arrays(tmp_path / "repo")
    before = array_values(path)
    repo = Repository.open(path)
    assert ice.maintain.repack(spark, repo, "main").objects_after == 1
    assert ice.maintain.repack(spark, repo, "main").snapshot_id is None
    assert array_values(path) == before
    assert repo.verify("data") == []


def test_only_the_arrays_that_are_named_are_repacked(spark, path):
    repo = Repository.open(path)
    assert ice.maintain.repack(spark, repo, "main", ["/nested/tiny"]).snapshot_id is None
    with pytest.raises(NotFoundError, match="/nothing"):
        ice.maintain.repack(spark, repo, "main", ["/nothing"])
    assert ice.maintain.repack(spark, repo, "main", ["/small"]).chunks == 40
    check(path)


@pytest.mark.s3
def test_on_s3(spark, s3_server):
    options = dict(s3_server.options)
    del options["key"], options["secret"]
    storage = open_storage(s3_server.root(), options, credentials=servers.credentials)
    fill(Repository.create(storage, config=UNPACKED))
    repo = Repository.open(storage, config=split_config(10))
    ice.maintain.rewrite_manifests(spark, repo, "cut", branch="main")
    assert len(manifests(repo)) == 6
    assert ice.maintain.repack(spark, repo, "main").objects_after == 1
    check(None, repo)
