"""Writing with Spark: values, manifests, and what official clients read."""

import json

import icechunk
import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.splitting import with_rule
from spark.jobs import create, expected, place
from stateful.layout import check_layout, manifest_ids


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "repo")


def split(**sizes):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    for name, cut in sizes.items():
        config = with_rule(config, f"/{name}", cut)
    return config


@pytest.fixture
def repo(url):
    """An empty repository whose array `a` has manifests of 2 x 3 chunks."""
    return Repository.create(url, config=split(a=(2, 3)))


def read(repo, path="a", **ref):
    session = repo.readonly_session(**(ref or {"branch": "main"}))
    return zarr.open_array(session.store, path=path, mode="r")[...]


def official(url, path="a"):
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(url))
    store = repo.readonly_session("main").store
    return zarr.open_array(store, path=path, mode="r")[...]


def test_values_equal_those_of_numpy_and_the_official_library_reads_them(spark, repo, url):
    session = repo.writable_session("main")
    create(session)
    plan = ice.plan(session, "/a")
    assert (plan.regions, plan.chunks) == (6, 25)
    staged = ice.write(spark, plan, place)
    tip = session.commit("written", write_key="day 1")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    np.testing.assert_array_equal(official(url), expected((17, 23)))
    check_layout(repo.storage, tip)
    assert len(manifest_ids(repo.storage, tip, "/a")) == 6
    assert json.loads(json.dumps(staged.as_json()))["arrays"] == [
        {"path": "/a", "regions": 6, "chunks": 25, "stored_bytes": staged.arrays[0].stored_bytes}
    ]


def test_a_region_that_several_tasks_share_has_one_manifest(spark, url):
    repo = Repository.create(url)
    session = repo.writable_session("main")
    create(session, shape=(40, 40))
    staged = ice.write(spark, ice.plan(session, "a"), place, block_bytes=1, tasks=7)
    tip = session.commit("written")
    assert staged.arrays[0].regions == 1
    np.testing.assert_array_equal(read(repo), expected((40, 40)))
    check_layout(repo.storage, tip)


@pytest.mark.parametrize("tasks", [1, 30])
def test_a_partial_overwrite_keeps_everything_around_it(spark, repo, url, tasks):
    session = repo.writable_session("main")
    values = np.random.default_rng(1).random((17, 23))
    create(session)[:] = values
    first = session.commit("base")
    session = repo.writable_session("main")
    plan = ice.plan(session, "/a", region={"y": slice(6, 15)})
    assert plan.regions == 4
    ice.write(spark, plan, lambda block: -place(block), block_bytes=1, tasks=tasks)
    assert session.status().updated_chunks == {"/a": [[y, x] for y in (1, 2, 3) for x in range(5)]}
    tip = session.commit("rows 6 to 15")
    values[6:15] = -expected((17, 23))[6:15]
    np.testing.assert_array_equal(read(repo), values)
    np.testing.assert_array_equal(official(url), values)
    check_layout(repo.storage, tip)
    before, after = (manifest_ids(repo.storage, each, "/a") for each in (first, tip))
    kept = {name for name, box in before.items() if box[0][0] >= 4}
    assert kept == before.keys() & after.keys(), "regions that were not touched keep their files"


@pytest.mark.parametrize("tasks", [1, 30])
def test_chunks_of_fill_value_are_skipped_and_old_ones_deleted(spark, repo, tasks):
    session = repo.writable_session("main")
    create(session, fill_value=7.0)[0:8] = 1.0
    session.commit("base")
    session = repo.writable_session("main")

    def mostly_fill(block):
        values = np.full(block.shape, 7.0)
        values[(block.mesh()[0] == 9) & (block.mesh()[1] == 11)] = 1.0
        return values

    plan = ice.plan(session, "a")
    staged = ice.write(spark, plan, mostly_fill, block_bytes=1, tasks=tasks)
    tip = session.commit("fill")
    assert staged.chunks == 11, "ten chunks went, one came"
    check_layout(repo.storage, tip)
    values = read(repo)
    assert values[9, 11] == 1.0
    assert (values == 7.0).sum() == values.size - 1
    session = repo.readonly_session("main")
    assert session.refs("/a").index.tolist() == [[2, 2]]


def test_several_arrays_of_one_group_go_in_one_plan(spark, repo, url):
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="g")
    create(session, "a")
    create(session, "g/b", shape=(17,), chunks=(3,), dtype="i4")
    create(session, "scalar", shape=(), chunks=(), dtype="u1")
    plan = ice.plan(session, ["/a", "/g/b", "/scalar"])
    assert "/g/b: 6 chunks in 1 regions" in str(plan)
    ice.write(spark, plan, lambda block: place(block) if block.slices else 5)
    tip = session.commit("both")
    np.testing.assert_array_equal(official(url), expected((17, 23)))
    np.testing.assert_array_equal(official(url, "g/b"), expected((17,)))
    assert official(url, "scalar") == 5
    check_layout(repo.storage, tip)


def test_an_array_grows_and_is_written_in_one_commit(spark, repo):
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("base")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((30, 23))
    ice.write(spark, ice.plan(session, "a", region=[slice(17, 30), slice(None)]), place)
    tip = session.commit("grown")
    np.testing.assert_array_equal(read(repo), expected((30, 23)))
    check_layout(repo.storage, tip)


def test_uncommitted_writes_of_the_session_stay_and_are_logged(spark, repo):
    session = repo.writable_session("main")
    create(session)
    session.commit("empty")
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[0:4, 0:5] = -1.0
    ice.write(spark, ice.plan(session, "a", region=[slice(4, 8), slice(0, 5)]), place)
    ice.write(spark, ice.plan(session, "a", region=[slice(8, 12), slice(20, 23)]), place)
    array[4, 0] = -2.0
    assert session.status().updated_chunks == {"/a": [[0, 0], [1, 0], [2, 4]]}
    tip = session.commit("three writers")
    values = np.zeros((17, 23))
    values[0:4, 0:5] = -1.0
    values[4:8, 0:5] = expected((17, 23))[4:8, 0:5]
    values[8:12, 20:23] = expected((17, 23))[8:12, 20:23]
    values[4, 0] = -2.0
    np.testing.assert_array_equal(read(repo), values)
    check_layout(repo.storage, tip)


def test_manifests_across_regions_are_carried_over(spark, url):
    """The base was written with one manifest, and the split came later."""
    repo = Repository.create(url, config=RepositoryConfig(inline_chunk_threshold_bytes=0))
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("one manifest")
    repo = Repository.open(url, config=split(a=(2, 3)))
    session = repo.writable_session("main")
    plan = ice.plan(session, "a", region=[slice(0, 4), slice(0, 5)])
    assert (plan.regions, plan.chunks) == (6, 1)
    ice.write(spark, plan, lambda block: 0.5)
    tip = session.commit("one chunk")
    values = expected((17, 23)).astype("f8")
    values[0:4, 0:5] = 0.5
    np.testing.assert_array_equal(read(repo), values)
    check_layout(repo.storage, tip)
    assert len(manifest_ids(repo.storage, tip, "/a")) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": ">i2", "compressors": None},
        {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
        {"shards": (8, 10)},
        {"compressors": [zarr.codecs.BloscCodec(cname="lz4")], "dtype": "f4"},
        {"compressors": [zarr.codecs.GzipCodec()], "dtype": "c16"},
        {"dtype": "bool", "fill_value": True},
    ],
    ids=["big-endian", "transpose", "shards", "blosc", "complex", "bool"],
)
def test_the_array_s_own_codecs_encode_its_chunks(spark, repo, url, options):
    session = repo.writable_session("main")
    array = create(session, **options)
    ice.write(spark, ice.plan(session, "a"), lambda block: (place(block) % 128).astype(block.dtype))
    session.commit("encoded")
    wanted = (expected((17, 23)) % 128).astype(array.dtype)
    np.testing.assert_array_equal(official(url), wanted)
    check_layout(repo.storage, repo.lookup_branch("main"))


def test_chunks_of_different_shapes(spark, repo):
    session = repo.writable_session("main")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        create(session, chunks=[[4, 6, 7], [20, 3]])
        ice.write(spark, ice.plan(session, "a", region=[slice(2, 12), slice(0, 23)]), place)
        tip = session.commit("rectilinear")
        values = np.zeros((17, 23))
        values[2:12] = expected((17, 23))[2:12]
        np.testing.assert_array_equal(read(repo), values)
    check_layout(repo.storage, tip)


def test_a_block_tells_where_it_is_and_reads_other_arrays(spark, repo):
    session = repo.writable_session("main")
    create(session)
    create(session, "x", shape=(23,), chunks=(23,), dimension_names=["x"])[:] = np.arange(23) / 2
    create(session, "other")[:] = 3.0

    def compute(block):
        assert block.axis("x") == 1
        assert block.chunk_shape == (4, 5)
        return (
            block.coordinate("x") + block.open("other")[block.slices] + block.indices("y")[:, None]
        )

    ice.write(spark, ice.plan(session, "a"), compute)
    session.commit("computed")
    wanted = np.arange(23) / 2 + 3.0 + np.arange(17)[:, None]
    np.testing.assert_array_equal(read(repo), wanted)


def test_small_chunks_share_objects(spark, repo, tmp_path):
    session = repo.writable_session("main")
    create(session)
    ice.write(spark, ice.plan(session, "a"), place, tasks=1)
    session.commit("packed")
    assert len(list((tmp_path / "repo" / "chunks").iterdir())) == 6, "one pack for each region"


def test_bad_regions_and_shapes_are_refused(spark, repo):
    session = repo.writable_session("main")
    create(session)
    for region in (
        [slice(0, 18), slice(0, 1)],
        [slice(0, 4)],
        {"z": slice(1)},
        [slice(0, 9, 2)] * 2,
    ):
        with pytest.raises(InvalidInputError) as caught:
            ice.plan(session, "a", region=region)
        assert caught.value.kind == "invalid-region"
    with pytest.raises(InvalidInputError, match="twice"):
        ice.plan(session, ["a", "/a"])
    plan = ice.plan(session, "a", region=[slice(4), slice(5)])
    with pytest.raises(Exception, match="values for a block of shape"):
        ice.write(spark, plan, lambda block: np.zeros((2, 2)))
    zarr.open_array(session.store, path="a").resize((30, 23))
    with pytest.raises(InvalidInputError, match="plan again"):
        ice.write(spark, plan, place)


def test_an_empty_region_writes_nothing(spark, repo):
    session = repo.writable_session("main")
    create(session)
    plan = ice.plan(session, "a", region=[slice(3, 3), slice(None)])
    assert plan.regions == 0
    assert ice.write(spark, plan, place).chunks == 0


def test_too_many_chunks_for_one_commit_are_told_and_refused(spark, repo):
    session = repo.writable_session("main")
    create(session, "huge", shape=(10**8,), chunks=(1,), dtype="u1")
    plan = ice.plan(session, "huge")
    assert plan.needs_slices
    assert "write_sliced" in str(plan)
    with pytest.raises(InvalidInputError) as caught:
        ice.write(spark, plan, place)
    assert caught.value.kind == "too-many-chunks"


def test_the_description_of_a_job_is_set_and_restored(spark, repo):
    session = repo.writable_session("main")
    create(session)
    spark.sparkContext.setJobDescription("mine")
    ice.write(spark, ice.plan(session, "a"), place)
    tracker = spark.sparkContext.statusTracker()
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    assert tracker.getActiveJobsIds() == []
    spark.sparkContext.setLocalProperty("spark.job.description", None)


def test_a_staged_write_is_handed_over_by_its_snapshot(spark, repo):
    session = repo.writable_session("main")
    create(session)
    tip = repo.lookup_branch("main")
    staged = ice.write(spark, ice.plan(session, "/a"), place)
    handed_over = staged.snapshot_id
    assert staged.snapshot_id == handed_over, "asked twice, it is flushed once"
    assert repo.lookup_branch("main") == tip
    assert repo.lookup_snapshot(handed_over).message == "Write /a"
    np.testing.assert_array_equal(read(repo, snapshot_id=handed_over), expected((17, 23)))
    repo.publish("main", handed_over)
    np.testing.assert_array_equal(read(repo), expected((17, 23)))


def test_after_a_commit_a_staged_write_is_in_that_commit(spark, repo):
    session = repo.writable_session("main")
    create(session)
    staged = ice.write(spark, ice.plan(session, "/a"), place)
    assert session.commit("written") == staged.snapshot_id
