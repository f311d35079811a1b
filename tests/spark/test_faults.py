"""Tasks and drivers that fail, run twice or race: the right chunks, once, or nothing."""

import pickle
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zarr
from pyspark import TaskContext

import servers
from icefloe import ConflictError, InvalidInputError, PackingConfig, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.assets import Assets
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from icefloe.spark.maintain.repacking import repack
from icefloe.spark.maintain.resplitting import rewrite_manifests
from icefloe.spark.slicing import write_sliced
from icefloe.spark.source import Source
from icefloe.splitting import with_rule
from spark.jobs import create, expected, place
from stateful.layout import check_layout


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    return Repository.create(str(tmp_path / "repo"), config=with_rule(config, "/a", (2, 3)))


def read(repo, branch="main"):
    store = repo.readonly_session(branch).store
    return zarr.open_array(store, path="a", mode="r")[...]


def chunk_objects(repo):
    return sum(len(page) for page in repo.storage.list("chunks/"))


def test_a_task_that_fails_twice_writes_its_chunks_once(spark, repo):
    session = repo.writable_session("main")
    create(session)

    def compute(block):
        is_last = block.slices[1].stop == 15 and block.slices[0].start == 4
        if is_last and TaskContext.get().attemptNumber() < 2:
            raise OSError("the disk of this worker is full")
        return place(block)

    staged = ice.write(spark, ice.plan(session, "a"), compute, block_bytes=1, tasks=1)
    tip = session.commit("third time lucky")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    check_layout(repo.storage, tip)
    assert staged.chunks == 25
    assert len(repo.readonly_session("main").refs("/a")) == 25
    # Two attempts left five chunks each, before the sixth failed.
    assert chunk_objects(repo) == 25 + 2 * 5
    soon = datetime.now(UTC) + timedelta(days=1)
    assert garbage_collect(Assets(repo.storage), soon, force=True).chunks_deleted == 10
    assert [*verify(Assets(repo.storage), "objects")] == []
    np.testing.assert_array_equal(read(repo), expected((17, 23)))


def test_a_task_that_keeps_failing_fails_the_write_and_changes_nothing(spark, repo):
    session = repo.writable_session("main")
    create(session)

    def compute(block):
        raise ZeroDivisionError("never works")

    with pytest.raises(Exception, match="never works"):
        ice.write(spark, ice.plan(session, "a", region=[slice(4), slice(5)]), compute)
    assert session.status().updated_chunks == {}
    session.commit("only the array")
    assert not read(repo).any()


def test_a_driver_that_dies_before_publishing_leaves_nothing_visible(spark, repo):
    tip = repo.lookup_branch("main")
    for attempt in range(2):
        session = repo.writable_session("main")
        create(session)
        ice.write(spark, ice.plan(session, "a"), place)
        if attempt:
            session.commit("second driver", write_key="day 1")
        else:
            assert repo.lookup_branch("main") == tip
    np.testing.assert_array_equal(read(repo), expected((17, 23)))


def test_two_drivers_with_one_write_key_publish_one_snapshot(spark, repo):
    sessions = [repo.writable_session("main") for _ in range(2)]
    for session in sessions:
        create(session)
        ice.write(spark, ice.plan(session, "a"), place)
    before = len(list(repo.ops_log()))
    first, second = (session.flush("staged", write_key="day 1") for session in sessions)
    assert first == second
    assert len(list(repo.ops_log())) == before + 1
    tip = repo.merge_snapshots("main", [first], "published")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    check_layout(repo.storage, tip)


def test_writers_of_different_regions_are_merged(spark, repo):
    session = repo.writable_session("main")
    create(session)
    base = session.commit("empty")
    staged = []
    for rows in (slice(0, 8), slice(8, 17)):
        session = repo.writable_session(snapshot_id=base)
        ice.write(spark, ice.plan(session, "a", region={"y": rows}), place)
        staged.append(session.flush(f"rows {rows}", write_key=str(rows)))
    tip = repo.merge_snapshots("main", staged, "both")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    check_layout(repo.storage, tip)


def test_a_sliced_write_goes_on_where_it_stopped_and_appears_at_once(spark, repo):
    session = repo.writable_session("main")
    create(session)
    base = session.commit("empty")
    calls = spark.sparkContext.accumulator(0)
    broken = spark.sparkContext.broadcast(True)

    def compute(block, broken=broken):
        calls.add(1)
        if broken.value and block.slices[0].start >= 8:
            raise OSError("gone")
        return place(block)

    options = {"message": "all", "write_key": "all of a", "max_chunks": 7}
    with pytest.raises(Exception, match="gone"):
        write_sliced(spark, repo, "main", "a", compute, **options)
    assert repo.lookup_branch("main") == base
    assert len(repo.list_branches()) == 2
    calls.value = 0
    healed = spark.sparkContext.broadcast(False)
    tip = write_sliced(spark, repo, "main", "a", lambda block: compute(block, healed), **options)
    assert calls.value == 4, "the regions of the first slices were not computed again"
    assert repo.lookup_branch("main") == tip
    assert repo.list_branches() == {"main"}
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    for commit in repo.ancestry(branch="main"):
        check_layout(repo.storage, commit.id)
    assert write_sliced(spark, repo, "main", "a", compute, **options) == tip


def test_a_sliced_write_does_not_move_a_branch_that_moved(spark, repo):
    session = repo.writable_session("main")
    create(session)
    session.commit("empty")

    def compute(block):
        return place(block)

    class Rival(Repository):
        def reset_branch(self, branch, *args, **options):
            with self.transaction("main", message="rival") as store:
                zarr.create_group(store, path="g")
            super().reset_branch(branch, *args, **options)

    rival = Rival.open(repo.storage)
    with pytest.raises(ConflictError, match="icefloe-slices-"):
        write_sliced(spark, rival, "main", "a", compute, message="all", write_key="k", max_chunks=9)
    assert not read(repo).any()


@pytest.mark.s3
def test_executors_get_their_secrets_from_a_function_on_s3(spark, s3_server):
    options = dict(s3_server.options)
    del options["key"], options["secret"]
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    repo = Repository.create(
        s3_server.root(), options, credentials=servers.credentials, config=config
    )
    session = repo.writable_session("main")
    create(session)
    source = Source.of(session.context, session.snapshot_id)
    assert servers.SECRET.encode() not in source.pickled
    assert servers.SECRET.encode() not in pickle.dumps(source)
    ice.write(spark, ice.plan(session, "a"), place)
    tip = session.commit("on s3")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    check_layout(repo.storage, tip)


@pytest.mark.s3
def test_secrets_given_as_options_stay_on_the_driver(spark, s3_server):
    repo = Repository.create(s3_server.root(), s3_server.options)
    session = repo.writable_session("main")
    create(session)
    source = Source.of(session.context, session.snapshot_id)
    assert servers.SECRET.encode() not in source.pickled


@pytest.mark.parametrize("key", ["icefloe.write_key", "icefloe.staged_on"])
def test_metadata_that_the_commit_would_refuse_cost_no_job(spark, repo, key):
    session = repo.writable_session("main")
    create(session)
    base = session.commit("empty")
    calls = spark.sparkContext.accumulator(0)

    def compute(block):
        calls.add(1)
        return place(block)

    for job in (
        lambda: write_sliced(
            spark, repo, "main", "a", compute, message="x", write_key="k", metadata={key: "x"}
        ),
        lambda: repack(spark, repo, "main", metadata={key: "x"}),
        lambda: rewrite_manifests(spark, repo, "x", branch="main", metadata={key: "x"}),
    ):
        with pytest.raises(InvalidInputError, match=key):
            job()
    assert calls.value == 0
    assert repo.list_branches() == {"main"}
    assert repo.lookup_branch("main") == base
