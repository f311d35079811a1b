"""Snapshot ids that sensors and triggers are given, and assets that watch."""

import pytest

from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.sensors.icechunk import IcechunkBranchSensor, IcechunkTagSensor
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger
from trigger_events import collect

SOON = 0.05


@pytest.mark.parametrize("name", ["after", "contains"])
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_text_that_is_no_snapshot_id_fails_at_once(repo, run, commit, name, deferrable):
    lower = commit(0).lower()
    for wrong in ("garbage", lower, "", "main"):
        with pytest.raises(WrongArgumentError, match=name):
            IcechunkBranchSensor(task_id="s", **{name: wrong}, deferrable=deferrable)
        made = f"{{{{ {wrong!r} }}}}"
        sensor = IcechunkBranchSensor(task_id="s", **{name: made}, deferrable=deferrable)
        with pytest.raises(WrongArgumentError, match=name):
            run(sensor)
        with pytest.raises(WrongArgumentError, match=name):
            IcechunkBranchTrigger(**{name: wrong})
    with pytest.raises(WrongArgumentError, match="snapshot_id"):
        IcechunkTagSensor(task_id="s", tag="v1", snapshot_id="garbage")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_snapshot_of_no_history_of_the_branch_is_told(repo, run, commit, stage, deferrable):
    commit(0)
    for other in (stage(1), "0" * 20):
        sensor = IcechunkBranchSensor(task_id="s", after=other, deferrable=deferrable)
        with pytest.raises(WrongArgumentError, match="not in the history of main"):
            run(sensor)


def test_an_expired_snapshot_is_told(repo, run, commit):
    from datetime import UTC, datetime, timedelta

    old = commit(0)
    commit(1)
    repo.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))
    with pytest.raises(WrongArgumentError, match="expired"):
        run(IcechunkBranchSensor(task_id="s", after=old))


async def test_a_deferred_sensor_tells_it_once_the_branch_is_there(repo, stage):
    after = stage(1)
    trigger = IcechunkBranchTrigger(
        branch="dev", after=after, initial="all", once=True, is_strict=True, poll_interval=SOON
    )
    repo.create_branch("dev", repo.lookup_branch("main"))
    (event,) = await collect(trigger, 1)
    assert event["status"] == "error"
    assert "not in the history of dev" in event["message"]


def test_a_sensor_from_now_on_waits_over_a_reset(repo, run, commit):
    from airflow_icechunk.conditions import SnapshotArrived

    first = repo.lookup_branch("main")
    seen = commit(0)
    repo.reset_branch("main", first)
    assert SnapshotArrived(after=seen).check(repo)["snapshot_id"] == first


def test_a_trigger_begins_nowhere_else():
    with pytest.raises(WrongArgumentError, match="initial is 'hed'"):
        IcechunkBranchTrigger(initial="hed")


@pytest.mark.parametrize(
    ("asset", "trigger", "what"),
    [
        ({}, {"once": True}, "once"),
        ({"branch": "dev"}, {}, "branch"),
        ({}, {"branch": "dev"}, "branch"),
        ({"path": "/a"}, {"path": "/b"}, "path"),
        ({"path": "/a"}, {}, "path"),
        ({}, {"path": "/a"}, "path"),
        ({}, {"icechunk_conn_id": "other"}, "icechunk_conn_id"),
    ],
)
def test_an_asset_and_its_trigger_are_of_one_thing(asset, trigger, what):
    with pytest.raises(WrongArgumentError, match=what):
        icechunk_asset(**asset, trigger=IcechunkBranchTrigger(**trigger))


def test_one_place_may_be_spelt_in_several_ways():
    for asset, trigger in (("/", None), ("/a", "a/"), ("a", "/a"), ("/", "/")):
        icechunk_asset(path=asset, trigger=IcechunkBranchTrigger(path=trigger))
