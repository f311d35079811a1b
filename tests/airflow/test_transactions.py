"""Staged writes become one commit: once, completely, and only if the guards let it."""

from collections.abc import Sequence

import pytest
import zarr
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset

import icefloe
from airflow_icechunk.guards import PublishRefusedError
from airflow_icechunk.operators.transactions import (
    IcechunkBeginOperator,
    IcechunkCommitOperator,
    IcechunkPublishOperator,
)


def commit_of(staged, **arguments):
    return IcechunkCommitOperator(task_id="commit", snapshot_ids=staged, **arguments)


def commits(repo):
    return [item.id for item in repo.ancestry(branch="main")]


def test_begin_tells_the_tip(repo, run):
    assert run(IcechunkBeginOperator(task_id="begin")) == repo.lookup_branch("main")


def test_staged_writes_become_one_commit(repo, run, stage, read):
    before = commits(repo)
    snapshot_id = run(commit_of([stage(0, 1), stage(1, 2), stage(2, 3)]))
    assert commits(repo) == [snapshot_id, *before]
    assert read() == [[1, 1], [2, 2], [3, 3], [0, 0]]


def test_a_commit_says_who_made_it(repo, run, stage, instance):
    ti = instance("commit", try_number=3, max_tries=5)
    operator = commit_of(stage(0), message="Rows of {{ run_id }}", metadata={"source": "era5"})
    snapshot = repo.lookup_snapshot(run(operator, ti))
    assert snapshot.message == "Rows of manual__2026-01-01T00:00:00+00:00"
    said = dict(snapshot.metadata)
    assert said.pop("icefloe.write_key").startswith("airflow-")
    assert said == {
        "source": "era5",
        "airflow.dag_id": "dag",
        "airflow.run_id": ti.run_id,
        "airflow.task_id": "commit",
        "airflow.map_index": -1,
        "airflow.try_number": 3,
    }


def test_a_retry_of_a_commit_that_landed_finds_it(repo, run, stage, commit, instance):
    staged = [stage(0), stage(1)]
    ti = instance("commit")
    first = run(commit_of(staged), ti)
    commit(3)
    ti.retry()
    assert run(commit_of(staged), ti) == first
    assert commits(repo).count(first) == 1
    assert len(commits(repo)) == 4


def test_a_commit_that_is_cleared_alone_finds_what_it_committed(run, stage, instance):
    staged = [stage(0)]
    ti = instance("commit")
    first = run(commit_of(staged), ti)
    ti.clear()
    assert run(commit_of(staged), ti) == first


def test_a_commit_whose_writers_were_cleared_commits_what_they_wrote_anew(
    repo, run, stage, read, instance
):
    ti = instance("commit")
    first = run(commit_of([stage(0, 1)]), ti)
    ti.clear()
    second = run(commit_of([stage(0, 5)]), ti)
    assert second != first
    assert read()[0] == [5, 5]


def test_the_runs_of_two_days_do_not_take_each_others_commits(repo, run, stage, instance):
    staged = [stage(0)]
    first = run(commit_of(staged), instance("commit", run_id="monday"))
    with pytest.raises(icefloe.ConflictError):
        run(commit_of(staged), instance("commit", run_id="tuesday"))
    assert repo.lookup_branch("main") == first


def test_two_staged_writes_to_one_chunk_are_refused(repo, run, stage):
    before = commits(repo)
    with pytest.raises(icefloe.ConflictError):
        run(commit_of([stage(0, 1), stage(0, 2)]))
    assert commits(repo) == before


def test_a_detached_merge_moves_no_branch(repo, run, stage):
    before = commits(repo)
    asset = Asset("weather")
    operator = commit_of([stage(0), stage(1)], branch=None, outlets=[asset])
    merged = run(operator)
    assert commits(repo) == before
    session = repo.readonly_session(snapshot_id=merged)
    assert zarr.open_array(session.store, path="t2m", mode="r")[:2].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("staged", "message"),
    [
        ([], "no staged snapshot"),
        (None, "1 of 1 staged snapshots are missing"),
        (["1CECHNKREP0F1RSTCMT0", None], "1 of 2 staged snapshots are missing"),
        (["not-an-id"], "not a snapshot id: 'not-an-id'"),
        ([{"snapshot_id": "x"}], "not a snapshot id: dict"),
        (["x" * 1_000_000], "^not a snapshot id: 'x{39}$"),
    ],
    ids=["empty", "none", "one missing", "not an id", "mapping", "large"],
)
def test_what_is_no_staged_snapshot_is_refused(repo, run, staged, message):
    with pytest.raises(ValueError, match=message):
        run(commit_of(staged))


def test_a_lost_xcom_of_a_mapped_writer_is_noticed(repo, run, stage, instance):
    before = commits(repo)
    operator = commit_of([stage(0)], writer_task_ids=["write"])
    with pytest.raises(ValueError, match="2 tasks staged a write, but only 1 snapshot"):
        run(operator, instance("commit", succeeded=2))
    assert commits(repo) == before


def test_the_xcoms_of_mapped_writers_are_fetched_in_one_request(run, stage):
    class Lazy(Sequence):
        """As Airflow gives them: each item, asked for alone, is a request."""

        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, key):
            assert isinstance(key, slice)
            return self.items[key]

    operator = commit_of(None)
    operator.template_fields = tuple(f for f in operator.template_fields if f != "snapshot_ids")
    operator.snapshot_ids = Lazy([stage(0), stage(1)])
    assert run(operator)


def test_a_repository_that_is_offline_takes_no_commit(repo, run, stage):
    staged = stage(0)
    repo.set_status(icefloe.Availability.OFFLINE, "moving house")
    with pytest.raises(icefloe.ReadOnlyError, match="moving house"):
        run(commit_of(staged))


def publish_of(snapshot_id, **arguments):
    return IcechunkPublishOperator(task_id="publish", snapshot_id=snapshot_id, **arguments)


def test_publishing_moves_the_branch_to_the_snapshot_itself(repo, run, stage):
    staged = stage(0)
    assert run(publish_of(staged)) == staged
    assert repo.lookup_branch("main") == staged


def test_publishing_twice_is_publishing_once(repo, run, stage, commit):
    staged = stage(0)
    run(publish_of(staged))
    theirs = commit(1)
    assert run(publish_of(staged)) == staged
    assert repo.lookup_branch("main") == theirs


def test_publishing_on_a_branch_that_moved_merges(repo, run, stage, commit, read):
    staged = stage(0, 1)
    theirs = commit(1, 2)
    published = run(publish_of(staged))
    assert published not in (staged, theirs)
    assert read()[:2] == [[1, 1], [2, 2]]
    assert run(publish_of(staged)) == published


def test_guards_judge_what_the_branch_will_be_and_not_the_base_of_the_candidate(
    repo, run, stage, commit, read
):
    """What others added meanwhile is neither gone nor changed by an innocent candidate."""
    staged = stage(0, 1)
    with repo.transaction("main", message="theirs") as store:
        zarr.create_array(store, name="rain", shape=(2,), dtype="f4")
    commit(3, 4, path="daily/max")
    seen = []

    def look(before, after, diff):
        seen.append((sorted(before.paths()), sorted(after.paths()), sorted(diff.chunk_index)))

    guards = {"forbid_shrink": True, "allowed_arrays": ["/t2m"], "guard": look}
    run(publish_of(staged, **guards))
    assert read()[0] == [1, 1]
    (((*before,), (*after,), changed),) = seen
    assert before == after
    assert "/rain" in after
    assert changed == ["/t2m"]


def test_guards_judge_a_merge_that_shrinks_what_others_made_larger(repo, run, stage):
    larger = reshaped(repo, t2m=(6, 2))
    staged = reshaped(repo, t2m=(5, 2))
    repo.publish("main", larger)
    before = repo.lookup_branch("main")
    with pytest.raises((PublishRefusedError, icefloe.ConflictError)):
        run(publish_of(staged, forbid_shrink=True))
    assert repo.lookup_branch("main") == before


def test_publishing_on_a_branch_that_moved_fails_if_that_is_asked(repo, run, stage, commit):
    staged = stage(0)
    theirs = commit(1)
    with pytest.raises(icefloe.ConflictError):
        run(publish_of(staged, if_moved="fail"))
    assert repo.lookup_branch("main") == theirs


def test_publishing_without_a_merge_moves_the_branch(repo, run, stage):
    staged = stage(0)
    assert run(publish_of(staged, if_moved="fail")) == staged
    assert run(publish_of(staged, if_moved="fail")) == staged


def test_a_guard_lets_allowed_arrays_pass_and_no_others(repo, run, stage):
    before = repo.lookup_branch("main")
    with pytest.raises(PublishRefusedError, match=r"may not: /t2m$"):
        run(publish_of(stage(0), allowed_arrays=["/daily/*"]))
    assert repo.lookup_branch("main") == before
    staged = stage(0, path="daily/max")
    assert run(publish_of(staged, allowed_arrays=["/daily/*"])) == staged


def test_groups_that_zarr_makes_need_not_be_allowed(tmp_path, connect, run):
    url = str(tmp_path / "empty")
    connect(host=url)
    repo = icefloe.Repository.create(url)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a/b/c", shape=(1,), dtype="i4")
    staged = session.flush("implicit groups")
    with pytest.raises(PublishRefusedError, match=r"may not: /a, /a/b, /a/b/c$"):
        run(publish_of(staged, allowed_arrays=["/other"]))
    assert run(publish_of(staged, allowed_arrays="/a/b/*")) == staged


def test_a_group_that_says_something_is_counted(tmp_path, connect, run):
    url = str(tmp_path / "empty")
    connect(host=url)
    session = icefloe.Repository.create(url).writable_session("main")
    zarr.create_group(session.store, attributes={"title": "mine"}).create_array(
        "a", shape=(1,), dtype="i4"
    )
    with pytest.raises(PublishRefusedError, match=r"may not: /$"):
        run(publish_of(session.flush("title"), allowed_arrays=["/a"]))


def reshaped(repo, **shapes):
    session = repo.writable_session("main")
    for path, shape in shapes.items():
        if shape is None:
            zarr.open_group(session.store)
            del zarr.open_group(session.store)[path]
        else:
            zarr.open_array(session.store, path=path).resize(shape)
    return session.flush("reshape")


def test_a_guard_refuses_smaller_arrays_and_lets_larger_ones_pass(repo, run):
    with pytest.raises(PublishRefusedError, match=r"/t2m goes from \[4, 2\] to \[3, 2\]"):
        run(publish_of(reshaped(repo, t2m=(3, 2)), forbid_shrink=True))
    with pytest.raises(PublishRefusedError, match="/t2m is gone"):
        run(publish_of(reshaped(repo, t2m=None), forbid_shrink=True))
    assert run(publish_of(reshaped(repo, t2m=(5, 2)), forbid_shrink=True))


def test_a_guard_asks_for_metadata(run, stage):
    with pytest.raises(PublishRefusedError, match="missing or wrong: source"):
        run(publish_of(stage(0), required_metadata=["source"]))
    with pytest.raises(PublishRefusedError, match="missing or wrong: source"):
        run(publish_of(stage(1, metadata={"source": "x"}), required_metadata={"source": "y"}))
    assert run(publish_of(stage(2, metadata={"source": "y"}), required_metadata={"source": "y"}))


def refuse(before, after, diff):
    assert sorted(diff.chunk_index) == ["/t2m"]
    assert before.snapshot_id != after.snapshot_id
    return False


def test_a_guard_of_the_user_decides(repo, run, stage):
    with pytest.raises(PublishRefusedError, match="the guard refuse refused it"):
        run(publish_of(stage(0), guard=refuse))
    assert issubclass(PublishRefusedError, AirflowFailException)


def test_a_guard_is_not_asked_about_what_is_published(repo, run, stage):
    staged = stage(0)
    repo.publish("main", staged)
    assert run(publish_of(staged, guard=refuse)) == staged
