"""Airflow's four services as processes of their own: a run over REST, without Spark and S3."""

import pytest
import zarr

import icefloe
from running_stack import DAGS, left_over, private_stack

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

    ended = stack.run("down")
    assert "scheduler" in ended
    assert left_over(stack.folder) == []
