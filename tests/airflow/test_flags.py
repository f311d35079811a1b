"""Yes or no: a text is not yes because it is a text."""

import inspect
from datetime import timedelta

import pytest
import zarr

from airflow_icechunk.arguments import WrongArgumentError, check_flag, flag
from airflow_icechunk.decorators.icechunk import IcechunkDecoratedOperator, icechunk_task
from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkTrimOpsLogOperator,
)
from airflow_icechunk.operators.spark_maintenance import IcechunkSparkMaintenanceOperator
from airflow_icechunk.operators.transactions import IcechunkPublishOperator
from airflow_icechunk.sensors.icechunk import IcechunkBranchSensor
from airflow_icechunk.task_groups import icechunk_transaction
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger
from provider_classes import TASKS


def write(store):
    zarr.open_array(store, path="t2m")[0] = 1


def build(kind, staged, **given):
    """One that would run, if it is not refused."""
    if kind is IcechunkDecoratedOperator:
        return icechunk_task(write, **given)().operator
    values = {"branch": "b", "tag": "v", "snapshot_id": staged, "snapshot_ids": [staged]}
    values |= {"path": "/t2m", "job": "m:f", "status": "online", "older_than": timedelta(1)}
    values |= {"maintenance": "garbage_collect"}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if parameter.default is inspect.Parameter.empty and name in values:
            given.setdefault(name, values[name])
    return kind(task_id="t", **given)


def flags_of(kind):
    """Arguments whose default is yes or no, of the classes that this provider wrote."""
    for each in kind.__mro__:
        if each.__module__.startswith("airflow_icechunk") and "__init__" in vars(each):
            for name, parameter in inspect.signature(each.__init__).parameters.items():
                if isinstance(parameter.default, bool):
                    yield name


FLAGS = [
    pytest.param(kind, name, id=f"{kind.__name__}-{name}")
    for kind in (*TASKS, IcechunkDecoratedOperator)
    for name in sorted({*flags_of(kind)})
]


def test_there_are_flags_to_look_at():
    assert len(FLAGS) >= 15


@pytest.mark.parametrize(("kind", "name"), FLAGS)
def test_what_is_neither_yes_nor_no_is_refused(kind, name, repo, stage, run):
    staged = stage(0)
    before = (repo.list_branches(), repo.lookup_branch("main"))
    # A number counts as yes, or as no, and so does what is missing.
    for wrong in ("perhaps", "", 2, None, []):
        with pytest.raises(WrongArgumentError, match=f"{name} is"):
            build(kind, staged, **{name: wrong})
    for nothing in ("{{ 'perhaps' }}", "{{ none }}", "{{ '' }}"):
        with pytest.raises(WrongArgumentError, match=f"{name} is"):
            run(build(kind, staged, **{name: nothing}))
    assert (repo.list_branches(), repo.lookup_branch("main")) == before


@pytest.mark.parametrize("name", ["once", "every_snapshot", "is_strict"])
def test_a_trigger_takes_yes_or_no_alone(name):
    assert getattr(IcechunkBranchTrigger(**{name: "False"}), name) is False
    with pytest.raises(WrongArgumentError, match=name):
        IcechunkBranchTrigger(**{name: "perhaps"})


@pytest.mark.parametrize("name", ["force", "dry_run", "skip_unchanged"])
def test_the_options_of_maintenance_on_spark_are_judged_as_well(name, repo, run):
    def collect(value):
        return IcechunkSparkMaintenanceOperator(
            task_id="t", maintenance="garbage_collect", options={name: value}
        )

    with pytest.raises(WrongArgumentError, match=name):
        collect("perhaps")
    for nothing in ("{{ 'perhaps' }}", "{{ none }}"):
        with pytest.raises(WrongArgumentError, match=name):
            run(collect(nothing))


@pytest.mark.parametrize("no", [False, "False", "false", " FALSE ", "0", "{{ 'False' }}"])
def test_a_text_that_says_no_deletes_no_branch(repo, run, commit, no):
    repo.create_branch("old", repo.lookup_branch("main"))
    commit(0)
    expire = IcechunkExpireSnapshotsOperator(
        task_id="t", older_than=timedelta(0), delete_expired_branches=no, delete_expired_tags=no
    )
    assert run(expire)["deleted_branches"] == []
    assert "old" in repo.list_branches()


@pytest.mark.parametrize("no", ["False", "{{ 0 }}"])
def test_a_text_that_says_no_forces_nothing(repo, run, no):
    collect = IcechunkGarbageCollectOperator(
        task_id="t", grace=timedelta(0), skip_unchanged=False, force=no
    )
    with pytest.raises(ValueError, match="force"):
        run(collect)
    assert run(IcechunkTrimOpsLogOperator(task_id="t", dry_run=no))["dry_run"] is False


def test_a_dry_run_that_a_text_ends_is_over(repo, run, commit):
    commit(0)
    expire = IcechunkExpireSnapshotsOperator(
        task_id="t", older_than=timedelta(0), dry_run="{{ 'False' }}"
    )
    assert run(expire)["dry_run"] is False
    assert len([*repo.ancestry(branch="main")]) == 2


def test_shrinking_is_forbidden_by_a_text_that_says_so_and_by_no_other(repo, run, read):
    def shrunk():
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="t2m").resize((2, 2))
        return session.flush("Shrink")

    staged = shrunk()
    with pytest.raises(Exception, match="shrink"):
        run(IcechunkPublishOperator(task_id="t", snapshot_id=staged, forbid_shrink="{{ true }}"))
    run(IcechunkPublishOperator(task_id="t", snapshot_id=staged, forbid_shrink="False"))
    assert len(read()) == 2


def test_a_text_says_whether_a_task_stages(repo, run):
    tip = repo.lookup_branch("main")
    run(icechunk_task(write, stage="{{ 'True' }}")().operator)
    assert repo.lookup_branch("main") == tip
    run(icechunk_task(write, stage="{{ 'False' }}")().operator)
    assert repo.lookup_branch("main") != tip


def test_a_sensor_that_is_not_to_be_deferred_is_not(repo, run, commit):
    tip = repo.lookup_branch("main")
    new = commit(0)
    sensor = IcechunkBranchSensor(task_id="t", after=tip, deferrable="{{ 'False' }}")
    assert run(sensor)["snapshot_id"] == new


def test_the_guards_of_a_transaction_are_judged_when_the_dag_is_parsed():
    from airflow.sdk import DAG

    with DAG("d"), pytest.raises(WrongArgumentError, match="forbid_shrink"):
        icechunk_transaction(
            write=lambda base: icechunk_task(write, stage=True)(),
            guards={"forbid_shrink": "perhaps"},
        )


def test_flags_are_read_one_by_one():
    assert [flag("f", value) for value in (True, "true", "TRUE", "1")] == [True] * 4
    assert [flag("f", value) for value in (False, "false", "False", "0")] == [False] * 4
    check_flag("f", "{{ later }}")
