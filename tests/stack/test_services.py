"""Airflow's four services as processes of their own: a run over REST, without Spark and S3."""

import time

import pytest
import zarr

import icefloe
from running_stack import DAGS, await_true, left_over, private_stack

# Starting the services takes half a minute, and more on a machine that does other things.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def stack():
    with private_stack(DAGS / "short_checks.py") as made:
        yield made


def test_a_run_over_rest_is_deferred_retried_and_cleared(stack):
    told = stack.run("up", "--airflow-only")
    assert "S3" not in told
    services = {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert services <= {*stack.pids()} <= services | {"postgres"}
    assert stack.run("status").count(" healthy") == len(stack.pids())

    run = stack.trigger("check_services")
    stack.await_state(run, "wait", ["deferred"])
    repo = icefloe.Repository.open(str(stack.folder / "repository"))
    first = repo.lookup_branch("main")
    repo.create_tag("go", first)
    stack.await_success(run)
    waited = stack.result(run, "wait")
    assert (waited["tag"], waited["snapshot_id"]) == ("go", first)

    # The first attempt of the commit landed and died: the second one found it.
    tasks = stack.tasks(run)
    assert tasks["commit", -1]["try_number"] == 2
    committed = stack.result(run, "commit")
    assert [item.id for item in repo.ancestry(branch="main")] == [committed, first]
    assert repo.lookup_snapshot(committed).metadata["airflow.try_number"] == 1
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="rows", mode="r")[...].tolist() == [0, 2, 0]

    # Cleared by a user, the task that writes does its work again, and the commit takes that.
    staged = stack.result(run, "write")
    body = {"dry_run": False, "only_failed": False, "task_ids": ["write"]}
    body |= {"include_downstream": True, "dag_run_id": run.rpartition("/")[2]}
    stack.api("POST", "/dags/check_services/clearTaskInstances", body)
    stack.await_success(run)
    assert stack.result(run, "write") != staged

    check_that_a_watcher_tells_runs_of_every_commit(stack)

    ended = stack.run("down")
    assert "scheduler" in ended
    assert left_over(stack.folder) == []


def check_that_a_watcher_tells_runs_of_every_commit(stack):
    """Several commits between two looks; and nobody commits afterwards to push the last one."""
    place = str(stack.folder.parent / "watched")
    repo = icefloe.Repository.create(place)
    with repo.transaction("main", message="Group") as store:
        zarr.create_group(store)

    def commit(message):
        with repo.transaction("main", message=message) as store:
            zarr.group(store).attrs["said"] = message

    def history():
        return [item.id for item in repo.ancestry(branch="main")][::-1]

    runs_path = "/dags/check_watcher/dagRuns?limit=50&order_by=run_after"

    def told():
        runs = stack.api("GET", runs_path)["dag_runs"]
        if any(run["state"] != "success" for run in runs):
            return []
        paths = [f"/dags/check_watcher/dagRuns/{run['dag_run_id']}" for run in runs]
        events = [event for path in paths for event in stack.result(path, "told")]
        return [snapshot_id for event in events for snapshot_id in event]

    for number in range(3):
        commit(f"before {number}")
    # The connection is what the watcher waits for: all of it is new at one look.
    body = {"connection_id": "watched", "conn_type": "icechunk", "host": place}
    stack.api("POST", "/connections", body)
    await_true(lambda: told() == history(), 120)
    assert len(stack.api("GET", runs_path)["dag_runs"]) == 1

    # Looks of the watcher fall in between these.
    for number in range(12):
        commit(f"after {number}")
        time.sleep(0.3)
    await_true(lambda: told() == history(), 120)
