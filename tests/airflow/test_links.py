"""Buttons of a task lead to the pages of what it made."""

import inspect
import json
from importlib import import_module

import pytest
import zarr
from airflow.sdk import DAG, BaseOperator, task
from airflow.sdk.execution_time.xcom import XCom

from airflow_icechunk.get_provider_info import get_provider_info
from airflow_icechunk.links import (
    LINKS,
    XCOM_KEY,
    IcechunkRepositoryLink,
    IcechunkSnapshotLink,
    repository_url,
    snapshot_url,
)
from airflow_icechunk.operators.branches import IcechunkDeleteBranchOperator
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator
from airflow_icechunk.operators.transactions import IcechunkBeginOperator
from airflow_icechunk.sensors.icechunk import IcechunkTagSensor


@pytest.fixture
def link_of(monkeypatch):
    """What the worker gets for a link once a task has ended; XComs are those of the instance."""

    def get_value(*, key, ti_key):
        return ti_key.xcoms.get(key)

    monkeypatch.setattr(XCom, "get_value", get_value)

    def get(link, operator, ti):
        return link.get_link(operator, ti_key=ti)

    return get


def test_an_operator_links_to_its_snapshot_and_its_repository(repo, run, instance, link_of):
    operator, ti = IcechunkCreateTagOperator(task_id="t", tag="v1"), instance("t")
    snapshot_id = run(operator, ti)
    snapshot, repository = operator.operator_extra_links
    page = "icechunk/repos/icechunk_default"
    assert link_of(snapshot, operator, ti) == f"{page}/snapshots/{snapshot_id}"
    assert link_of(repository, operator, ti) == page


def test_a_task_that_only_looks_a_snapshot_up_links_to_it(repo, run, instance, link_of):
    operator, ti = IcechunkBeginOperator(task_id="t"), instance("t")
    tip = run(operator, ti)
    assert link_of(IcechunkSnapshotLink(), operator, ti).endswith(tip)


def test_a_task_without_a_snapshot_has_no_link_to_one(repo, run, instance, link_of):
    operator, ti = IcechunkDeleteBranchOperator(task_id="t", branch="gone"), instance("t")
    run(operator, ti)
    assert link_of(IcechunkSnapshotLink(), operator, ti) == ""
    assert link_of(IcechunkRepositoryLink(), operator, ti)


def test_sensors_link_to_what_they_found(repo, run, instance, link_of):
    repo.create_tag("v1", repo.lookup_branch("main"))
    sensor, ti = IcechunkTagSensor(task_id="t", tag="v1"), instance("t")
    found = run(sensor, ti)["snapshot_id"]
    assert link_of(IcechunkSnapshotLink(), sensor, ti) == snapshot_url("icechunk_default", found)


def test_a_sensor_that_was_deferred_links_too(repo, instance, link_of):
    sensor, ti = IcechunkTagSensor(task_id="t", tag="v1"), instance("t")
    told = {"status": "success", "snapshot_id": "S" * 20}
    sensor.execute_complete({"ti": ti, "task": sensor}, told)
    assert link_of(IcechunkSnapshotLink(), sensor, ti) == snapshot_url("icechunk_default", "S" * 20)


def test_what_is_left_for_the_link_is_small_and_holds_no_secret(repo, run, instance, connect):
    connect("mine", host=repo.storage.url.removeprefix("file://"), password="hush-hush")
    ti = instance("t")
    run(IcechunkCreateTagOperator(task_id="t", tag="v1", icechunk_conn_id="mine"), ti)
    left = ti.xcoms[XCOM_KEY]
    assert {*left} == {"icechunk_conn_id", "snapshot_id"}
    assert "hush" not in json.dumps(ti.xcoms)


def test_every_operator_and_sensor_of_the_provider_has_the_links():
    info = get_provider_info()
    for kind in ("operators", "sensors"):
        for entry in info[kind]:
            for name in entry["python-modules"]:
                tasks = [
                    item
                    for item in vars(import_module(name)).values()
                    if inspect.isclass(item) and issubclass(item, BaseOperator)
                ]
                own = [task for task in tasks if task.__module__ == name]
                assert own
                assert all(task.operator_extra_links is LINKS for task in own), name


def test_the_provider_names_every_link():
    named = {f"{type(link).__module__}.{type(link).__name__}" for link in LINKS}
    assert {*get_provider_info()["extra-links"]} == named


def test_ids_in_addresses_are_quoted():
    assert repository_url("a/b?c") == "icechunk/repos/a%2Fb%3Fc"
    assert snapshot_url("a", "../x") == "icechunk/repos/a/snapshots/..%2Fx"


def test_links_survive_the_serialisation_of_a_dag(monkeypatch):
    from airflow.serialization.serialized_objects import DagSerialization

    # Whatever clears tasks in this process turns them off, as the scheduler does.
    monkeypatch.setattr(DagSerialization, "_load_operator_extra_links", True)

    with DAG("d") as dag:
        IcechunkCreateTagOperator(task_id="tag", tag="v")
        IcechunkSparkSubmitOperator(task_id="spark", job="m:f")
        IcechunkSparkSubmitOperator.partial(task_id="mapped", job="m:f").expand(key=["a", "b"])
        IcechunkTagSensor(task_id="sensor", tag="v")

        @task.icechunk
        def decorated(store): ...

        decorated()
    back = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for each in back.task_dict.values():
        assert {*each.extra_links} >= {"Snapshot", "Repository"}, each.task_id
    assert {link.name for link in LINKS} == {"Snapshot", "Repository"}


def test_a_retry_links_to_what_the_first_attempt_wrote(repo, run, instance):
    """Airflow clears the XComs of a task before it runs again."""

    @task.icechunk
    def write(store):
        zarr.open_array(store, path="t2m")[0] = 3.0

    with DAG("d"):
        operator = write().operator
    ti = instance("write")
    made = run(operator, ti)
    first = dict(ti.xcoms)
    ti.xcoms.clear()
    ti.retry()
    assert run(operator, ti) == made
    assert ti.xcoms[XCOM_KEY] == first[XCOM_KEY]
