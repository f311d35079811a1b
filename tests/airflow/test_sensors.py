"""Sensors and triggers: what they wait for, and what does not stop them."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException, TaskDeferred

import icefloe
from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.conditions import ArrayReady, SnapshotArrived, TagExists, describe, restore
from airflow_icechunk.events import snapshot_id_from_event, snapshot_ids_from_event
from airflow_icechunk.sensors.icechunk import (
    IcechunkArraySensor,
    IcechunkBranchSensor,
    IcechunkTagSensor,
)
from airflow_icechunk.triggers import icechunk as triggers
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger, IcechunkConditionTrigger

SOON = 0.02


def poke(sensor):
    return sensor.poke({})


async def collect(trigger, count, seconds=20.0):
    """The payloads of the first events of a trigger."""
    events = []
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            events.append(event.payload)
            if len(events) == count:
                break
    return events


class StateStore:
    """What a task remembers over its attempts."""

    def __init__(self, values):
        self.values = values

    def get(self, key, default=None):
        return self.values.get(key, default)

    def set(self, key, value):
        self.values[key] = value


class AssetStore:
    """The state store of one watched asset, which outlives the triggerer."""

    def __init__(self):
        self.values = {}
        self.kept = asyncio.Event()

    async def aget(self, key):
        return self.values.get(key)

    async def aset(self, key, value):
        self.values[key] = value
        self.kept.set()


async def watching(watcher, count, store=None):
    """The watcher at work, and known to have looked once: what is committed now is new to it."""
    watcher.asset_state_store = store = store or AssetStore()
    task = asyncio.create_task(collect(watcher, count))
    async with asyncio.timeout(20):
        await store.kept.wait()
    return task


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
    IcechunkBranchSensor(task_id="s", mode="reschedule", after="A")
    IcechunkBranchSensor(task_id="s", mode="reschedule", deferrable=True)
    IcechunkBranchSensor(task_id="s")


@pytest.mark.parametrize("name", ["after", "contains", "path", "branch"])
@pytest.mark.parametrize("nothing", ["{{ none }}", "{{ '' }}"])
def test_what_renders_to_nothing_does_not_fit_everything(repo, commit, run, name, nothing):
    commit(0)
    with pytest.raises(WrongArgumentError, match=f"{name} is"):
        run(IcechunkBranchSensor(task_id="s", **{"after": "A", name: nothing}))


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


async def test_a_watcher_tells_of_new_snapshots_only(repo, commit):
    commit(0)
    watcher = IcechunkBranchTrigger(poll_interval=SOON, event_interval=SOON)
    at_work = await watching(watcher, 2)
    before = repo.lookup_branch("main")
    first = await asyncio.to_thread(commit, 1)
    await asyncio.sleep(0.3)
    second = await asyncio.to_thread(commit, 2)
    events = await at_work
    assert [event["snapshot_ids"] for event in events] == [[first], [second]]
    assert [event["previous_snapshot_id"] for event in events] == [before, first]


async def test_what_is_new_at_one_look_is_one_event_that_lists_it(repo, commit):
    tip = repo.lookup_branch("main")
    made = [commit(row) for row in range(3)]
    (event,) = await collect(IcechunkBranchTrigger(after=tip, poll_interval=SOON), 1)
    assert event["snapshot_ids"] == made
    assert (event["snapshot_id"], event["previous_snapshot_id"]) == (made[-1], tip)
    assert event["parent"] == made[-2]
    assert snapshot_ids_from_event({"from_trigger": True, "payload": event}) == made


async def test_events_keep_the_distance_that_the_scheduler_needs(repo, commit):
    tip = repo.lookup_branch("main")
    commit(0)
    watcher = IcechunkBranchTrigger(after=tip, poll_interval=SOON, event_interval=1.5)
    events = watcher.run()
    await anext(events)
    began = time.monotonic()
    made = [commit(1), commit(2)]
    assert (await anext(events)).payload["snapshot_ids"] == made
    assert time.monotonic() - began > 1.4
    await events.aclose()


async def test_a_long_history_is_told_in_several_events(repo, commit, monkeypatch):
    monkeypatch.setattr(triggers, "_MAX_LISTED", 2)
    tip = repo.lookup_branch("main")
    made = [commit(row % 4) for row in range(5)]
    watcher = IcechunkBranchTrigger(after=tip, poll_interval=SOON, event_interval=SOON)
    events = await collect(watcher, 3)
    assert [event["snapshot_ids"] for event in events] == [made[:2], made[2:4], made[4:]]
    assert [event["previous_snapshot_id"] for event in events] == [tip, made[1], made[3]]


async def test_a_watcher_may_tell_of_what_is_there(repo, commit):
    made = [commit(0), commit(1)]
    head = IcechunkBranchTrigger(initial="head", poll_interval=SOON)
    assert [event["snapshot_id"] for event in await collect(head, 1)] == made[-1:]
    every = IcechunkBranchTrigger(initial="all", poll_interval=SOON)
    (event,) = await collect(every, 1)
    assert event["snapshot_ids"] == [item.id for item in repo.ancestry(branch="main")][::-1]
    assert event["previous_snapshot_id"] is None


async def test_a_watcher_may_tell_of_the_newest_only(repo, commit):
    tip = repo.lookup_branch("main")
    made = [commit(row) for row in range(3)]
    watcher = IcechunkBranchTrigger(after=tip, every_snapshot=False, poll_interval=SOON)
    (event,) = await collect(watcher, 1)
    assert (event["snapshot_id"], event["previous_snapshot_id"]) == (made[-1], tip)
    assert event["snapshot_ids"] == made[-1:]


async def test_a_watcher_tells_of_changes_under_its_path_only(repo, commit):
    tip = repo.lookup_branch("main")
    commit(0)
    wanted = commit(0, path="daily/max")
    watcher = IcechunkBranchTrigger(after=tip, path="/daily", poll_interval=SOON)
    (event,) = await collect(watcher, 1)
    assert event["snapshot_id"] == wanted


async def test_a_watcher_outlives_a_branch_that_was_reset(repo, commit):
    tip = repo.lookup_branch("main")
    gone = commit(0)
    repo.reset_branch("main", tip)
    now = commit(1)
    watcher = IcechunkBranchTrigger(after=gone, every_snapshot=False, poll_interval=SOON)
    (event,) = await collect(watcher, 1)
    assert event["snapshot_id"] == now


async def test_a_watcher_waits_for_connection_repository_and_branch(tmp_path, connect, commit):
    place = str(tmp_path / "later")
    watcher = IcechunkBranchTrigger(
        icechunk_conn_id="later", branch="dev", initial="all", poll_interval=SOON
    )
    at_work = asyncio.create_task(collect(watcher, 1))
    await asyncio.sleep(0.1)
    connect("later", host=place)
    await asyncio.sleep(0.1)
    repository = await asyncio.to_thread(icefloe.Repository.create, place)
    await asyncio.sleep(0.1)
    assert not at_work.done()
    tip = repository.lookup_branch("main")
    await asyncio.to_thread(repository.create_branch, "dev", tip)
    (event,) = await at_work
    assert event["snapshot_id"] == tip


async def test_a_watcher_goes_on_from_its_watermark_after_a_restart(repo, commit):
    store = AssetStore()
    watcher = IcechunkBranchTrigger(poll_interval=SOON)
    (await watching(watcher, 1, store)).cancel()
    assert [*store.values.values()] == [repo.lookup_branch("main")]
    missed = [commit(0), commit(1)]
    _, arguments = watcher.serialize()
    again = IcechunkBranchTrigger(**arguments)
    again.asset_state_store = store
    assert [event["snapshot_ids"] for event in await collect(again, 1)] == [missed]


async def test_a_watcher_that_dies_before_its_events_left_tells_them_again(repo, commit):
    store = AssetStore()
    tip = repo.lookup_branch("main")
    watcher = IcechunkBranchTrigger(after=None, poll_interval=SOON)
    watcher.asset_state_store = store
    await watcher._keep(tip)
    made = commit(0)
    # Cancelled right after the event, as a triggerer is that stops.
    assert [event["snapshot_id"] for event in await collect(watcher, 1)] == [made]
    again = IcechunkBranchTrigger(poll_interval=SOON)
    again.asset_state_store = store
    assert [event["snapshot_id"] for event in await collect(again, 1)] == [made]


async def test_a_watermark_counts_more_than_where_the_watcher_began(repo, commit):
    store = AssetStore()
    watcher = IcechunkBranchTrigger(after=repo.lookup_branch("main"), poll_interval=SOON)
    watcher.asset_state_store = store
    await watcher._keep(commit(0))
    made = commit(1)
    assert [event["snapshot_id"] for event in await collect(watcher, 1)] == [made]


async def test_a_state_store_that_fails_does_not_stop_a_watcher(repo, commit):
    class Failing(AssetStore):
        failures = 2

        async def aget(self, key):
            self.fail()
            return await super().aget(key)

        async def aset(self, key, value):
            self.fail()
            await super().aset(key, value)

        def fail(self):
            self.failures -= 1
            if self.failures >= 0:
                raise RuntimeError("the API server is away")

    store = Failing()
    at_work = await watching(IcechunkBranchTrigger(poll_interval=SOON), 1, store)
    store.failures = 2
    made = await asyncio.to_thread(commit, 0)
    assert [event["snapshot_id"] for event in await at_work] == [made]


async def test_a_watermark_is_kept_only_once_the_events_had_time_to_leave(repo, commit):
    """Airflow sends events away some time after the trigger yielded them."""
    store = AssetStore()
    watcher = IcechunkBranchTrigger(after=repo.lookup_branch("main"), poll_interval=2.0)
    watcher.asset_state_store = store
    made = commit(0)
    events = watcher.run()
    assert (await anext(events)).payload["snapshot_id"] == made
    going_on = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    assert store.values == {}
    async with asyncio.timeout(20):
        await store.kept.wait()
    assert [*store.values.values()] == [made]
    going_on.cancel()


async def test_a_watcher_of_several_assets_keeps_no_watermark_and_goes_on(repo, commit):
    class Ambiguous(AssetStore):
        async def aget(self, key):
            raise ValueError("Task has 2 concrete inlets and outlets")

        async def aset(self, key, value):
            self.kept.set()
            raise ValueError("Task has 2 concrete inlets and outlets")

    at_work = await watching(IcechunkBranchTrigger(poll_interval=SOON), 1, Ambiguous())
    made = await asyncio.to_thread(commit, 0)
    assert [event["snapshot_id"] for event in await at_work] == [made]


def test_a_snapshot_id_is_read_from_both_shapes_of_events():
    event = SimpleNamespace(extra={"from_trigger": True, "payload": {"snapshot_id": "A"}})
    assert snapshot_id_from_event(event) == "A"
    assert snapshot_id_from_event({"snapshot_id": "B"}) == "B"
    assert snapshot_ids_from_event({"snapshot_id": "B"}) == ["B"]
    with pytest.raises(ValueError, match="tells of no snapshot"):
        snapshot_id_from_event({"something": "else"})
