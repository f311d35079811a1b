"""Arguments: what is refused when the Dag is parsed, and what templates make of them."""

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_icechunk.arguments import (
    WrongArgumentError,
    check_choice,
    check_function,
    mapping,
    number,
    numbers,
    required,
    texts,
)
from airflow_icechunk.decorators.icechunk import icechunk_task
from airflow_icechunk.operators import branches, maintenance, repositories, transactions
from airflow_icechunk.operators.spark_maintenance import IcechunkSparkMaintenanceOperator


@pytest.mark.parametrize(
    "make",
    [
        lambda: maintenance.IcechunkVerifyOperator(task_id="t", level="all"),
        lambda: maintenance.IcechunkVerifyOperator(task_id="t", fail_on="never"),
        lambda: maintenance.IcechunkExpireSnapshotsOperator(task_id="t", older_than="yesterday"),
        lambda: maintenance.IcechunkExpireSnapshotsOperator(task_id="t", older_than="2026-01-02"),
        lambda: maintenance.IcechunkGarbageCollectOperator(task_id="t", grace=""),
        lambda: repositories.IcechunkSetStatusOperator(task_id="t", status="asleep"),
        lambda: transactions.IcechunkPublishOperator(task_id="t", snapshot_id="x", if_moved="wait"),
        lambda: IcechunkSparkMaintenanceOperator(
            task_id="t", maintenance="verify", options={"depth": 3}
        ),
        lambda: icechunk_task(lambda store: None, base="A")(),
    ],
)
def test_what_is_wrong_is_told_when_the_dag_is_parsed(make):
    with pytest.raises(ValueError, match=r"."):
        make()


def test_what_only_a_template_knows_is_judged_when_the_task_runs(repo, run):
    verify = maintenance.IcechunkVerifyOperator(task_id="t", level="{{ 'all' }}")
    status = repositories.IcechunkSetStatusOperator(task_id="t", status="{{ 'asleep' }}")
    expire = maintenance.IcechunkExpireSnapshotsOperator(
        task_id="t", older_than="{{ 'yesterday' }}"
    )
    for operator in (verify, status, expire):
        # No retry would change it.
        with pytest.raises(AirflowFailException):
            run(operator)


@pytest.mark.parametrize(
    "wrong", [{"keep_last": "{{ '' }}"}, {"branches": "{{ '' }}"}, {"keep_last": "{{ 'two' }}"}]
)
def test_an_expiration_that_renders_to_less_than_was_meant_expires_nothing(
    repo, run, commit, wrong
):
    commit(0)
    before = [item.id for item in repo.ancestry(branch="main")]
    with pytest.raises(WrongArgumentError):
        run(
            maintenance.IcechunkExpireSnapshotsOperator(
                task_id="t", older_than=timedelta(0), **wrong
            )
        )
    assert [item.id for item in repo.ancestry(branch="main")] == before


def test_one_text_is_no_list_of_letters(repo, run, commit):
    commit(0)
    expire = maintenance.IcechunkExpireSnapshotsOperator(
        task_id="t", older_than=timedelta(0), branches="main"
    )
    assert run(expire)["released_snapshots"] == 1
    assert texts("branches", "main") == ["main"]
    assert texts("branches", ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("nothing", ["{{ none }}", "{{ '' }}"])
def test_messages_and_branches_that_render_to_nothing_are_refused(repo, run, stage, nothing):
    before = repo.lookup_branch("main")
    staged = stage(0)
    for operator in (
        transactions.IcechunkCommitOperator(task_id="t", snapshot_ids=staged, message=nothing),
        transactions.IcechunkCommitOperator(task_id="t", snapshot_ids=staged, branch=nothing),
        transactions.IcechunkPublishOperator(task_id="t", snapshot_id=staged, branch=nothing),
        transactions.IcechunkPublishOperator(
            task_id="t", snapshot_id=staged, allowed_arrays=[nothing]
        ),
        transactions.IcechunkBeginOperator(task_id="t", branch=nothing),
        maintenance.IcechunkRepackOperator(task_id="t", message=nothing),
        maintenance.IcechunkRewriteManifestsOperator(task_id="t", branch=nothing),
        branches.IcechunkDeleteBranchOperator(task_id="t", branch=nothing),
    ):
        with pytest.raises(WrongArgumentError):
            run(operator)
    assert repo.lookup_branch("main") == before


def test_values_are_checked_one_by_one():
    assert (number("n", "7"), number("n", 7.0), numbers("s", "(3, 4)")) == (7, 7, [3, 4])
    assert mapping("m", None) == {}
    check_choice("c", "{{ later }}", ["now"])
    check_function("f", "{{ later }}")
    for call, value in (
        (number, 1.5),
        (number, None),
        (numbers, "large"),
        (numbers, 3),
        (mapping, "{'a': 1}"),
        (required, "None"),
        (texts, [None]),
        (check_function, "module.function"),
    ):
        with pytest.raises(WrongArgumentError, match="name"):
            call("name", value)
