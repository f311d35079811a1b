"""Arguments and steps that do not go together, and how ages are written."""

from datetime import UTC, datetime, timedelta

import pytest
import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.ages import as_time, seconds, span
from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.operators.branches import IcechunkCreateBranchOperator
from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkTrimOpsLogOperator,
)
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator, IcechunkPublishOperator
from airflow_icechunk.task_groups import icechunk_transaction


@task.icechunk
def committing(store, row=0):
    zarr.open_array(store, path="t2m")[row] = 1


@task.icechunk(stage=True)
def staging(store, row=0):
    zarr.open_array(store, path="t2m")[row] = 1


@task
def plain():
    return None


def merged(base):
    return IcechunkCommitOperator(task_id="inner", snapshot_ids=staging().operator.output)


@pytest.mark.parametrize(
    "steps",
    [
        {"write": lambda base: committing()},
        {"write": lambda base: committing.expand(row=[0, 1])},
        {"write": lambda base: [staging(), committing()]},
        {"write": lambda base: committing.override(stage="False")()},
        {"write": lambda base: staging(), "prepare": lambda tip: committing()},
        {"write": merged},
    ],
)
def test_a_writer_that_commits_is_refused_when_the_dag_is_parsed(steps):
    with (
        DAG("d"),
        pytest.raises(WrongArgumentError, match=r"commits to the branch.*(stage=True|branch=None)"),
    ):
        icechunk_transaction(**steps)


@pytest.mark.parametrize("audited", [True, False])
def test_a_writer_that_has_committed_is_told_by_the_merge(repo, commit, stage, run, audited):
    staged, tip = stage(0), commit(1)
    merge = IcechunkCommitOperator(
        task_id="merge",
        snapshot_ids=[staged, tip],
        branch=None if audited else "main",
        writer_task_ids=["write"],
    )
    with pytest.raises(WrongArgumentError, match=rf"{tip} is on the branch main.*stage=True"):
        run(merge)
    assert repo.lookup_branch("main") == tip


def test_what_a_merge_has_published_is_no_commit_of_a_writer(repo, stage, run, instance):
    ids, ti = [stage(0), stage(1)], instance("t")

    def merge():
        return IcechunkCommitOperator(task_id="t", snapshot_ids=ids)

    first = run(merge(), ti)
    ti.retry()
    assert run(merge(), ti) == first
    alone = stage(2)
    tip = run(IcechunkCommitOperator(task_id="u", snapshot_ids=alone))
    assert run(IcechunkCommitOperator(task_id="u", snapshot_ids=alone)) == tip


@pytest.mark.parametrize(
    "steps",
    [
        {"write": lambda base: None},
        {"write": lambda base: []},
        {"write": lambda base: [staging(), None]},
        {"write": lambda base: "write"},
        {"write": lambda base: staging(), "prepare": lambda tip: None},
    ],
)
def test_a_step_that_returns_no_task_is_told(steps):
    with DAG("d"), pytest.raises(WrongArgumentError, match="must return the task"):
        icechunk_transaction(**steps)


def test_writers_may_be_several_tasks():
    with DAG("d") as dag:
        icechunk_transaction(
            write=lambda base: [
                staging.override(task_id="a", base=base)(),
                staging.override(task_id="b", base=base)().operator,
            ]
        )
    commit = dag.get_task("transaction.commit")
    assert commit.upstream_task_ids == {"transaction.a", "transaction.b"}
    assert commit.writer_task_ids == ["transaction.a", "transaction.b"]


def test_a_task_of_another_kind_may_hand_over_what_was_staged():
    with DAG("d"):
        icechunk_transaction(write=lambda base: plain(), audit=lambda merged: plain())


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (IcechunkCreateTagOperator, {"tag": "v", "branch": "main"}),
        (IcechunkCreateTagOperator, {"tag": "v", "branch": "{{ later }}"}),
        (IcechunkCreateBranchOperator, {"branch": "b", "from_branch": "main"}),
    ],
)
def test_two_ways_to_say_which_snapshot_are_refused_together(kind, given):
    with pytest.raises(WrongArgumentError, match="both given"):
        kind(task_id="t", snapshot_id="{{ found }}", **given)


def test_one_of_them_or_none_will_do(repo, run, commit):
    first = repo.lookup_branch("main")
    tip = commit(0)
    make_tag, make_branch = IcechunkCreateTagOperator, IcechunkCreateBranchOperator
    assert run(make_tag(task_id="t", tag="a")) == tip
    assert run(make_tag(task_id="t", tag="b", snapshot_id=first)) == first
    assert run(make_branch(task_id="t", branch="a")) == tip
    assert run(make_branch(task_id="t", branch="b", snapshot_id=first)) == first
    assert run(make_branch(task_id="t", branch="c", from_branch="b")) == first
    assert run(make_tag(task_id="t", tag="c", branch="b")) == first


@pytest.mark.parametrize("guard", ["nope", "a b:c", "nope:", ":nope", "", 3])
def test_a_guard_that_is_no_function_is_refused_when_the_dag_is_parsed(guard):
    with pytest.raises(WrongArgumentError, match="guard is"):
        IcechunkPublishOperator(task_id="t", snapshot_id="{{ x }}", guard=guard)


@pytest.mark.parametrize("guard", [None, "module:function", "package.module.function", max])
def test_a_guard_may_be_written_in_several_ways(guard):
    IcechunkPublishOperator(task_id="t", snapshot_id="{{ x }}", guard=guard)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90m", timedelta(minutes=90)),
        ("36h", timedelta(hours=36)),
        ("7d", timedelta(days=7)),
        ("8w", timedelta(weeks=8)),
    ],
)
def test_ages_are_written_as_on_the_command_line(text, age):
    assert span(text) == age
    assert seconds("max_age", text) == age.total_seconds()
    found = datetime.now(UTC) - as_time("grace", text)
    assert abs(found - age) < timedelta(minutes=1)
    IcechunkGarbageCollectOperator(task_id="t", grace=text)


def test_an_age_of_the_log_of_operations_is_written_so_too(repo, run):
    assert run(IcechunkTrimOpsLogOperator(task_id="t", keep="90d"))["operations_kept"] > 0
    with pytest.raises(WrongArgumentError, match="keep"):
        run(IcechunkTrimOpsLogOperator(task_id="t", keep="long"))


@pytest.mark.parametrize("wrong", ["7", "7x", "d7", "-7d", "99999999999d", "long ago"])
def test_what_is_no_age_is_none(wrong):
    assert span(wrong) is None


@pytest.mark.parametrize("naive", ["2026-01-01", "2026-01-01T12:30:00", datetime(2026, 1, 1)])
def test_a_time_without_a_zone_is_refused_with_the_remedy(naive):
    with pytest.raises(WrongArgumentError, match=r"no time zone.*2026-01-01T\d\d:\d\d:00Z"):
        IcechunkExpireSnapshotsOperator(task_id="t", older_than=naive)
