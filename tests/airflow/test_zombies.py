"""A task that is killed while the driver of its Spark job lives on: one key, one snapshot.

Everything is real: a process of Airflow runs the task, spark-submit runs the driver program. The
job waits for a file at a given point, so that the test decides what happens when.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zarr

from icefloe import UpdateKind

pytestmark = pytest.mark.timeout(600)
PATIENCE = 240
"""Seconds; a busy machine takes long to start Airflow and Spark."""

DAG = '''
"""One Spark job that waits for the test."""

from pathlib import Path

from airflow.sdk import DAG

from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator

with DAG("zombie", schedule=None) as dag:
    IcechunkSparkSubmitOperator(
        task_id="write",
        job="zombie_jobs:write",
        job_params={"folder": FOLDER},
        py_files=str(Path(__file__).with_name("zombie_jobs.py")),
        conf={"spark.ui.enabled": "false"},
    )
'''

JOBS = '''
"""A job that tells where it is, and goes on when the test says so."""

import os
import time
from pathlib import Path

import zarr


def write(spark, session, *, folder):
    number = len([*Path(folder).glob("began-*")]) + 1
    zarr.open_array(session.store, path="t2m")[0] = number
    Path(folder, f"began-{number}").write_text(str(os.getpid()))
    deadline = time.monotonic() + 600
    while not Path(folder, f"go-{number}").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the test forgot this job")
        time.sleep(0.05)
'''

# The same run each time: a second process finds the run of the first, as a retry does.
ATTEMPT = """
import sys
from datetime import UTC, datetime
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag  # before Airflow 3.2
moment = datetime(2026, 1, 5, tzinfo=UTC)
bag = DagBag(dag_folder=sys.argv[1], bundle_path=sys.argv[2])
run = bag.dags["zombie"].test(logical_date=moment, run_after=moment)
(ti,) = run.get_task_instances()
print("ENDED", ti.state, ti.xcom_pull(task_ids="write"))
"""


def await_file(path, process=None):
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path.name}"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def await_end(pid):
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{pid} does not end"
        time.sleep(0.05)


class Attempts:
    """Processes that run the task, and the drivers below them."""

    def __init__(self, folder, dags):
        self.folder = folder
        self.dags = dags
        self.processes = []

    def start(self, *, with_spark=True):
        hidden = set() if with_spark else {"AIRFLOW_CONN_SPARK_DEFAULT"}
        process = subprocess.Popen(
            [sys.executable, "-c", ATTEMPT, str(self.dags / "zombie.py"), str(self.dags)],
            env={name: value for name, value in os.environ.items() if name not in hidden},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def driver(self, number, process=None):
        """The process of the driver whose job has written, but not staged."""
        path = self.folder / f"began-{number}"
        await_file(path, process)
        return int(path.read_text())

    def release(self, number):
        (self.folder / f"go-{number}").touch()

    def result(self, process):
        said, _ = process.communicate(timeout=PATIENCE)
        assert "\nENDED success " in said, said
        return said.rpartition("ENDED success ")[2].split()[0]


@pytest.fixture
def attempts(repo, database, tmp_path, connect, monkeypatch):
    folder = tmp_path / "attempts"
    folder.mkdir()
    (database / "zombie.py").write_text(DAG.replace("FOLDER", repr(str(folder))))
    (database / "zombie_jobs.py").write_text(JOBS)
    connect("spark_default", "spark", host="local[1]")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    made = Attempts(folder, database)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    for path in folder.glob("began-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)
    for name in ("zombie.py", "zombie_jobs.py"):
        (database / name).unlink()


def staged(repo):
    """What is registered, by write key."""
    found = [u for u in repo.ops_log() if u.kind == UpdateKind.NEW_DETACHED_SNAPSHOT]
    snapshots = [repo.lookup_snapshot(str(update.new_snap_id)) for update in found]
    return [(snapshot.metadata["icefloe.write_key"], snapshot.id) for snapshot in snapshots]


def written(repo, snapshot_id):
    store = repo.readonly_session(snapshot_id=snapshot_id).store
    return zarr.open_array(store, path="t2m", mode="r")[0].tolist()


def test_what_a_zombie_stages_after_its_task_was_killed_is_what_the_retry_returns(attempts, repo):
    first = attempts.start()
    driver = attempts.driver(1, first)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert staged(repo) == []
    # The driver does not know that its task is dead, and stages what it wrote.
    attempts.release(1)
    await_end(driver)
    ((_, snapshot_id),) = staged(repo)
    # There is nothing to submit, so Spark need not be there.
    assert attempts.result(attempts.start(with_spark=False)) == snapshot_id
    assert len(staged(repo)) == 1


@pytest.mark.parametrize(
    "winner", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["zombie first", "retry first"]
)
def test_a_zombie_and_the_retry_that_stage_both_end_in_one_snapshot(attempts, repo, winner):
    first = attempts.start()
    zombie = attempts.driver(1, first)
    first.kill()
    first.wait()
    # Nothing is staged yet: the retry submits, and now two drivers have written.
    second = attempts.start()
    drivers = {1: zombie, 2: attempts.driver(2, second)}
    attempts.release(winner)
    await_end(drivers[winner])
    ((key, snapshot_id),) = staged(repo)
    attempts.release(3 - winner)
    await_end(drivers[3 - winner])
    assert attempts.result(second) == snapshot_id
    assert staged(repo) == [(key, snapshot_id)]
    assert written(repo, snapshot_id) == [winner, winner]
