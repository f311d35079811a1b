"""Dags of our own, run by Airflow: retries, deferral, and what its database gets to see."""

from datetime import UTC, datetime

import pytest
import zarr

import icefloe
from airflow_icechunk.retries import icechunk_retry_policy

# Airflow imports the test client of starlette, which wants another HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)

RETRIES = '''
"""A task that dies after its work has landed."""

from datetime import timedelta

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.operators.transactions import IcechunkCommitOperator


class DyingCommitOperator(IcechunkCommitOperator):
    """Its first attempt dies between the swap and the report."""

    def report(self, context, snapshot_id, **about):
        if context["ti"].try_number == 1:
            raise RuntimeError("killed")
        return super().report(context, snapshot_id, **about)


with DAG("retries", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:

    @task.icechunk(stage=True)
    def write(row, store):
        zarr.open_array(store, path="t2m")[row] += 1

    DyingCommitOperator(
        task_id="commit",
        snapshot_ids=write.expand(row=[0, 1, 2]),
        writer_task_ids=["write"],
    )
'''

TAGS = '''
"""A task that tags the tip, and dies after somebody committed."""

from datetime import timedelta

import zarr
from airflow.sdk import DAG

from airflow_icechunk.operators.tags import IcechunkCreateTagOperator


class DyingTagOperator(IcechunkCreateTagOperator):
    def report(self, context, snapshot_id, **about):
        if context["ti"].try_number == 1:
            with self.repository.transaction("main", message="somebody") as store:
                zarr.open_array(store, path="t2m")[3] = 3
            raise RuntimeError("killed")
        return super().report(context, snapshot_id, **about)


with DAG("tags", schedule=None) as dag:
    DyingTagOperator(
        task_id="tag", tag="v1", branch="main", retries=1, retry_delay=timedelta(0)
    )
'''

LOST = '''
"""Mapped writers, one of whose XComs gets lost before the commit."""

import zarr
from airflow.sdk import DAG, task
from airflow.sdk.execution_time.xcom import XCom

from airflow_icechunk.operators.transactions import IcechunkCommitOperator

with DAG("lost", schedule=None) as dag:

    @task.icechunk(stage=True)
    def write(row, store):
        zarr.open_array(store, path="t2m")[row] += 1

    @task
    def lose(run_id=None):
        XCom.delete(
            key="return_value", task_id="write", dag_id="lost", run_id=run_id, map_index=1
        )

    written = write.expand(row=[0, 1, 2])
    commit = IcechunkCommitOperator(
        task_id="commit", snapshot_ids=written, writer_task_ids=["write"]
    )
    written >> lose() >> commit
'''

WAITING = '''
"""A sensor that is deferred until another task of the run has committed."""

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.operators.transactions import IcechunkBeginOperator
from airflow_icechunk.sensors.icechunk import IcechunkBranchSensor, IcechunkTagSensor
from airflow_icechunk.hooks.icechunk import IcechunkHook

with DAG("waiting", schedule=None) as dag:
    begin = IcechunkBeginOperator(task_id="begin")

    @task
    def commit_from_elsewhere(after):
        import threading, time

        def later():
            time.sleep(1.5)
            repo = IcechunkHook().get_conn()
            with repo.transaction("main", message="late") as store:
                zarr.open_array(store, path="t2m")[0] = 1
            repo.create_tag("late", repo.lookup_branch("main"))

        threading.Thread(target=later).start()

    started = commit_from_elsewhere(begin.output)
    new = IcechunkBranchSensor(
        task_id="new", after=begin.output, path="/t2m", deferrable=True, poke_interval=0.2
    )
    tagged = IcechunkTagSensor(task_id="tagged", tag="late", deferrable=True, poke_interval=0.2)
    started >> new >> tagged
'''


@pytest.fixture
def write_dag(database, dag_of):
    def write(name, text):
        (database / f"{name}.py").write_text(text)
        return dag_of(name)

    return write


def test_what_landed_before_its_task_died_is_found_by_the_retry(write_dag, states, repo, read):
    run = write_dag("retries", RETRIES).test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    (commit,) = (ti for ti in run.get_task_instances() if ti.task_id == "commit")
    assert commit.try_number == 2
    assert read()[:3] == [[1, 1], [1, 1], [1, 1]]
    snapshots = [*repo.ancestry(branch="main")]
    assert len(snapshots) == 3
    assert snapshots[0].metadata["airflow.try_number"] == 1


@pytest.mark.skipif(
    icechunk_retry_policy() is None, reason="Airflow has a state store for tasks from 3.3 on"
)
def test_a_retry_remembers_the_tip_that_the_first_attempt_tagged(write_dag, states, repo):
    before = repo.lookup_branch("main")
    run = write_dag("tags", TAGS).test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    assert repo.lookup_branch("main") != before
    assert repo.lookup_tag("v1") == before


def test_a_commit_notices_that_the_xcom_of_a_mapped_writer_is_gone(write_dag, states, repo):
    before = repo.lookup_branch("main")
    run = write_dag("lost", LOST).test(logical_date=MONDAY)
    ended = states(run)
    assert (ended["lose", -1], ended["commit", -1]) == ("success", "failed"), ended
    assert repo.lookup_branch("main") == before


def test_deferred_sensors_wake_up(write_dag, states, repo):
    run = write_dag("waiting", WAITING).test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    (new,) = (ti for ti in run.get_task_instances() if ti.task_id == "new")
    assert new.xcom_pull(task_ids="new")["snapshot_id"] == repo.lookup_branch("main")


@pytest.mark.s3
def test_no_secret_reaches_the_database_or_the_logs(
    dag_of, states, database, connect, s3_server, capfd
):
    url = s3_server.root()
    repo = icefloe.Repository.create(url, s3_server.options)
    extra = {"endpoint_url": s3_server.endpoint, "region": "us-east-1", "path_style": True}
    connect(host=url, login=s3_server.key, password=s3_server.secret, extra=extra)
    run = dag_of("example_write_audit_publish").test(
        logical_date=datetime(2026, 1, 6, tzinfo=UTC), mark_success_pattern=r".*\.?approve"
    )
    assert set(states(run).values()) == {"success"}, states(run)
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="temperature", mode="r")[2, 0] == 12
    secret = s3_server.secret.encode()
    home = database.parent
    searched = [path for path in home.rglob("*") if path.is_file()]
    assert home / "airflow.db" in searched
    assert [path for path in searched if secret in path.read_bytes()] == []
    assert s3_server.secret not in "".join(capfd.readouterr())


@pytest.mark.s3
def test_a_connection_without_permission_fails_as_such(connect, s3_server, run):
    from airflow_icechunk.hooks.icechunk import IcechunkHook
    from airflow_icechunk.operators.transactions import IcechunkBeginOperator

    url = s3_server.root()
    icefloe.Repository.create(url, s3_server.options)
    extra = {"endpoint_url": s3_server.endpoint, "region": "us-east-1", "path_style": True}
    connect(host=url, login=s3_server.key, password="this-is-wrong", extra=extra)
    with pytest.raises(icefloe.PermissionDeniedError) as caught:
        run(IcechunkBeginOperator(task_id="begin"))
    ok, message = IcechunkHook().test_connection()
    assert not ok
    assert "this-is-wrong" not in message + str(caught.value)
