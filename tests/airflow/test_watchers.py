"""Watchers: triggers that make events of commits, and what does not stop them."""

import asyncio
import time
from types import SimpleNamespace

import pytest

import icefloe
from airflow_icechunk.events import snapshot_id_from_event, snapshot_ids_from_event
from airflow_icechunk.triggers import icechunk as triggers
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger
from trigger_events import SOON, collect


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
    watcher = IcechunkBranchTrigger(
        after=repo.lookup_branch("main"), poll_interval=2.0, event_interval=SOON
    )
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
