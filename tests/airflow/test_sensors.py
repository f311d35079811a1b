"""Sensors and triggers: what they wait for, and what does not stop them."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException, TaskDeferred

import icefloe
from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.conditions import ArrayReady, SnapshotArrived, TagExists, describe, restore
from airflow_icechunk.sensors.icechunk import (
    IcechunkArraySensor,
    IcechunkBranchSensor,
    IcechunkTagSensor,
)
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger, IcechunkConditionTrigger
from trigger_events import SOON, collect


def poke(sensor):
    return sensor.poke({})


class StateStore:
    """What a task remembers over its attempts."""

    def __init__(self, values):
        self.values = values

    def get(self, key, default=None):
        return self.values.get(key, default)

    def set(self, key, value):
        self.values[key] = value


def test_a_branch_sensor_waits_for_a_snapshot_after_another(repo, commit):
    tip = repo.lookup_branch("main")
    sensor = IcechunkBranchSensor(task_id="s", after=tip)
    assert not poke(sensor)
    commit(0)
    newest = commit(1)
    found = poke(sensor)
    assert found
    assert found.xcom_value == {
        "repo": repo.storage.url,
        "branch": "main",
        "snapshot_id": newest,
        "parent": repo.lookup_snapshot(newest).parent_id,
        "tag": None,
        "write_key": None,
    }


def test_a_branch_sensor_waits_for_a_given_snapshot(repo, stage):
    staged = stage(0)
    sensor = IcechunkBranchSensor(task_id="s", contains=staged)
    assert not poke(sensor)
    repo.publish("main", staged)
    assert poke(sensor).xcom_value["snapshot_id"] == staged


def test_a_branch_sensor_waits_for_metadata(repo, commit):
    sensor = IcechunkBranchSensor(task_id="s", metadata={"day": "2026-01-02"})
    commit(0, metadata={"day": "2026-01-01"})
    assert not poke(sensor)
    wanted = commit(1, metadata={"day": "2026-01-02"})
    commit(2, metadata={"day": "2026-01-03"})
    assert poke(sensor).xcom_value["snapshot_id"] == wanted


def test_a_branch_sensor_waits_for_a_change_under_a_path(repo, commit):
    tip = repo.lookup_branch("main")
    sensor = IcechunkBranchSensor(task_id="s", after=tip, path="daily")
    commit(0)
    assert not poke(sensor)
    wanted = commit(0, path="daily/max")
    assert poke(sensor).xcom_value["snapshot_id"] == wanted


def test_a_path_is_not_the_beginning_of_a_name(repo, commit):
    sensor = IcechunkBranchSensor(task_id="s", after=repo.lookup_branch("main"), path="t2")
    commit(0)
    assert not poke(sensor)


@pytest.fixture
def poke_in_run(run, instance):
    """Look once, as a task of a run."""
    return lambda sensor, ti: sensor.poke({"ti": ti, "task": sensor, **state_of(ti)})


def state_of(ti):
    return {"task_state_store": StateStore(ti.state)}


def test_without_arguments_a_branch_sensor_waits_for_the_next_commit(
    repo, commit, poke_in_run, instance
):
    commit(0)
    sensor, ti = IcechunkBranchSensor(task_id="s"), instance("s")
    assert not poke_in_run(sensor, ti)
    assert not poke_in_run(sensor, ti)
    made = commit(1)
    assert poke_in_run(sensor, ti).xcom_value["snapshot_id"] == made


def test_the_next_commit_may_be_one_that_touches_a_path(repo, commit, poke_in_run, instance):
    sensor, ti = IcechunkBranchSensor(task_id="s", path="/daily"), instance("s")
    assert not poke_in_run(sensor, ti)
    commit(0)
    assert not poke_in_run(sensor, ti)
    made = commit(0, path="daily/max")
    assert poke_in_run(sensor, ti).xcom_value["snapshot_id"] == made


def test_the_next_commit_counts_from_the_first_look_of_the_first_attempt(
    repo, commit, poke_in_run, instance
):
    """So it is with the mode reschedule, whose every look is a process of its own."""
    ti = instance("s")
    assert not poke_in_run(IcechunkBranchSensor(task_id="s", mode="reschedule"), ti)
    made = commit(0)
    ti.retry()
    again = IcechunkBranchSensor(task_id="s", mode="reschedule")
    assert poke_in_run(again, ti).xcom_value["snapshot_id"] == made
    ti.clear()
    assert not poke_in_run(IcechunkBranchSensor(task_id="s"), ti)


def test_where_there_is_no_branch_all_that_it_will_have_is_new(repo, poke_in_run, instance):
    sensor, ti = IcechunkBranchSensor(task_id="s", branch="dev"), instance("s")
    assert not poke_in_run(sensor, ti)
    tip = repo.lookup_branch("main")
    repo.create_branch("dev", tip)
    assert poke_in_run(sensor, ti).xcom_value["snapshot_id"] == tip


def test_a_deferred_sensor_waits_for_the_next_commit(repo, commit, run):
    tip = commit(0)
    with pytest.raises(TaskDeferred) as deferred:
        run(IcechunkBranchSensor(task_id="s", deferrable=True))
    assert deferred.value.trigger.after == tip


def test_what_cannot_be_remembered_is_refused_when_the_dag_is_parsed(monkeypatch):
    monkeypatch.setattr("airflow_icechunk.compat.VERSION", (3, 2))
    with pytest.raises(ValueError, match="give after, contains or metadata"):
        IcechunkBranchSensor(task_id="s", mode="reschedule")
    IcechunkBranchSensor(task_id="s", mode="reschedule", after="A" * 19 + "0")
    IcechunkBranchSensor(task_id="s", mode="reschedule", deferrable=True)
    IcechunkBranchSensor(task_id="s")


@pytest.mark.parametrize("name", ["after", "contains", "path", "branch"])
@pytest.mark.parametrize("nothing", ["{{ none }}", "{{ '' }}"])
def test_what_renders_to_nothing_does_not_fit_everything(repo, commit, run, name, nothing):
    commit(0)
    with pytest.raises(WrongArgumentError, match=f"{name} is"):
        run(
            IcechunkBranchSensor(
                task_id="s", **{"after": repo.lookup_branch("main"), name: nothing}
            )
        )


def test_other_sensors_do_not_take_what_renders_to_nothing(repo, run):
    repo.create_tag("v1", repo.lookup_branch("main"))
    with pytest.raises(ValueError, match="metadata is empty"):
        IcechunkBranchSensor(task_id="s", metadata={})
    for wrong in (
        IcechunkTagSensor(task_id="s", tag="v1", snapshot_id="{{ none }}"),
        IcechunkTagSensor(task_id="s", tag="{{ none }}"),
        IcechunkArraySensor(task_id="s", path="{{ '' }}"),
        IcechunkArraySensor(task_id="s", path="t2m", max_age="{{ '' }}"),
        IcechunkArraySensor(task_id="s", path="t2m", min_shape="{{ 'large' }}"),
    ):
        with pytest.raises(WrongArgumentError):
            run(wrong)


def test_a_shape_may_come_as_text(repo):
    assert poke(IcechunkArraySensor(task_id="s", path="t2m", min_shape="[4, 2]"))
    assert not poke(IcechunkArraySensor(task_id="s", path="t2m", min_shape="(4, 3)"))


def test_a_sensor_waits_for_a_repository_and_a_branch_that_are_not_there(tmp_path, connect):
    connect(host=str(tmp_path / "later"))
    sensor = IcechunkBranchSensor(task_id="s", branch="dev", metadata={"a": 1})
    assert not poke(sensor)
    repository = icefloe.Repository.create(str(tmp_path / "later"))
    assert not poke(sensor)
    repository.create_branch("dev", repository.lookup_branch("main"))
    assert not poke(sensor)


def test_a_sensor_does_not_wait_for_a_connection_that_is_not_there():
    with pytest.raises(AirflowNotFoundException):
        poke(IcechunkTagSensor(task_id="s", icechunk_conn_id="nobody", tag="v1"))


def test_a_tag_sensor_waits_for_its_tag(repo):
    sensor = IcechunkTagSensor(task_id="s", tag="v1")
    assert not poke(sensor)
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)
    found = poke(sensor).xcom_value
    assert (found["tag"], found["snapshot_id"]) == ("v1", tip)


def test_a_tag_at_another_snapshot_is_no_reason_to_wait(repo, commit):
    repo.create_tag("v1", repo.lookup_branch("main"))
    with pytest.raises(ValueError, match="the tag v1 names"):
        poke(IcechunkTagSensor(task_id="s", tag="v1", snapshot_id=commit(0)))


def test_an_array_sensor_waits_for_an_array_that_is_large_enough(repo):
    assert poke(IcechunkArraySensor(task_id="s", path="t2m")).xcom_value["shape"] == [4, 2]
    assert poke(IcechunkArraySensor(task_id="s", path="/t2m", min_shape=["4", 2]))
    assert not poke(IcechunkArraySensor(task_id="s", path="t2m", min_shape=[5, 2]))
    assert not poke(IcechunkArraySensor(task_id="s", path="nothing"))
    assert not poke(IcechunkArraySensor(task_id="s", path="daily"))


def test_an_array_sensor_waits_for_a_fresh_change_of_that_array(repo, commit):
    commit(0)
    sensor = IcechunkArraySensor(task_id="s", path="t2m", max_age=timedelta(hours=1))
    assert poke(sensor)
    assert not poke(IcechunkArraySensor(task_id="s", path="t2m", max_age=0))
    repo.create_branch("dev", repo.lookup_branch("main"))
    assert poke(IcechunkArraySensor(task_id="s", path="daily/max", max_age="3600"))


def test_freshness_is_of_the_array_and_not_of_the_branch(repo, commit):
    old = repo.lookup_snapshot(commit(0, path="daily/max")).written_at
    time.sleep(2)
    new = repo.lookup_snapshot(commit(0)).written_at
    between = old + (new - old) / 2
    age = (datetime.now(UTC) - between).total_seconds()
    assert ArrayReady(path="/t2m", max_age=age).check(repo)
    assert not ArrayReady(path="/daily/max", max_age=age).check(repo)


@pytest.mark.parametrize(
    "condition",
    [
        TagExists(tag="v1", snapshot_id="X"),
        ArrayReady(path="/a", min_shape=[1, 2], max_age=3.5),
        SnapshotArrived(branch="dev", after="A", contains="C", metadata={"k": 1}, path="/p"),
    ],
    ids=lambda condition: condition.KIND,
)
def test_a_condition_survives_its_description(condition):
    assert restore(describe(condition)) == condition


def test_a_deferrable_sensor_pokes_once_and_defers(repo, run):
    tip = repo.lookup_branch("main")
    sensor = IcechunkBranchSensor(task_id="s", after=tip, deferrable=True, poke_interval=7)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    trigger = deferred.value.trigger
    assert isinstance(trigger, IcechunkBranchTrigger)
    assert (trigger.after, trigger.once, trigger.poll_interval) == (tip, True, 7)
    assert deferred.value.timeout == timedelta(seconds=sensor.timeout)


def rescheduled():
    try:
        return import_module("airflow.sdk.exceptions").AirflowRescheduleException
    except AttributeError:
        # Before Airflow 3.2.
        return import_module("airflow.exceptions").AirflowRescheduleException


def test_a_sensor_gives_its_worker_back_between_two_looks(repo, run):
    def sensor():
        return IcechunkTagSensor(task_id="s", tag="v1", mode="reschedule", poke_interval=60)

    with pytest.raises(rescheduled()):
        run(sensor())
    repo.create_tag("v1", repo.lookup_branch("main"))
    assert run(sensor())["tag"] == "v1"


def test_a_deferrable_sensor_does_not_defer_if_it_need_not(repo, run):
    repo.create_tag("v1", repo.lookup_branch("main"))
    sensor = IcechunkTagSensor(task_id="s", tag="v1", deferrable=True)
    assert run(sensor)["tag"] == "v1"


def test_a_sensor_goes_on_with_what_the_trigger_tells(instance):
    sensor = IcechunkTagSensor(task_id="s", tag="v1")
    told = sensor.execute_complete({"ti": instance("s")}, {"status": "success", "snapshot_id": "A"})
    assert told == {"snapshot_id": "A"}
    with pytest.raises(RuntimeError, match="not yours"):
        sensor.execute_complete({}, {"status": "error", "message": "not yours"})


async def test_a_deferred_branch_sensor_wakes_up_for_a_commit(repo, commit):
    sensor = IcechunkBranchSensor(
        task_id="s", after=repo.lookup_branch("main"), deferrable=True, poke_interval=SOON
    )
    waiting = asyncio.create_task(collect(sensor.trigger(), 5))
    await asyncio.sleep(0.1)
    snapshot_id = await asyncio.to_thread(commit, 0)
    (event,) = await waiting
    assert (event["status"], event["snapshot_id"]) == ("success", snapshot_id)


async def test_a_deferred_sensor_sees_what_came_before_the_trigger_started(repo, commit, stage):
    staged = stage(0)
    sensor = IcechunkBranchSensor(task_id="s", contains=staged, poke_interval=SOON)
    trigger = sensor.trigger()
    repo.publish("main", staged)
    commit(1)
    (event,) = await collect(trigger, 1)
    assert event["snapshot_id"] == staged


async def test_a_deferred_tag_sensor_wakes_up_for_its_tag(repo):
    trigger = IcechunkTagSensor(task_id="s", tag="v1", poke_interval=SOON).trigger()
    assert isinstance(trigger, IcechunkConditionTrigger)
    waiting = asyncio.create_task(collect(trigger, 5))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(repo.create_tag, "v1", repo.lookup_branch("main"))
    (event,) = await waiting
    assert (event["status"], event["tag"]) == ("success", "v1")


async def test_a_deferred_sensor_fails_where_a_person_has_to_act(repo):
    branch = IcechunkBranchTrigger(icechunk_conn_id="nobody", once=True, poll_interval=SOON)
    tag = IcechunkConditionTrigger(
        icechunk_conn_id="nobody", condition=describe(TagExists(tag="v1")), poll_interval=SOON
    )
    for trigger in (branch, tag):
        (event,) = await collect(trigger, 5)
        assert event["status"] == "error"
        assert "nobody" in event["message"]
