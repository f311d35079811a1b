"""The errors of real jobs on a real Spark, as their tasks have them."""

import os
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

import icefloe
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator

pytestmark = pytest.mark.timeout(300)

JOBS = """
from icefloe.spark import plan, write


def write_nowhere(spark, session):
    write(spark, plan(session, "nope"), lambda block: 1)


def write_outside(spark, session):
    write(spark, plan(session, "t2m", (slice(0, 99), slice(None))), lambda block: 1)


def write_nothing(spark, session):
    print("the name is", spark.sparkContext.appName)
"""


@pytest.fixture
def job(repo, tmp_path, connect, monkeypatch):
    (tmp_path / "wrong_jobs.py").write_text(JOBS)
    connect("spark_default", "spark", host="local[1]")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return lambda function, **arguments: IcechunkSparkSubmitOperator(
        task_id="write",
        job=f"wrong_jobs:{function}",
        py_files=str(tmp_path / "wrong_jobs.py"),
        conf={"spark.ui.enabled": "false"},
        **arguments,
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("not_there", "wrong_jobs has no function 'not_there'"),
        ("write_nowhere", "nope"),
        pytest.param("write_outside", "99", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_in_a_job_fails_its_task_at_once(run, job, function, message):
    with pytest.raises(AirflowFailException, match=message) as caught:
        run(job(function))
    assert str(caught.value).startswith("the Spark job failed: ")


def test_a_job_that_wrote_nothing_fails_unless_it_may(repo, run, job, instance, said):
    with pytest.raises(icefloe.SessionStateError, match=r"changed nothing.*allow_empty=True"):
        run(job("write_nothing"))
    staged = run(job("write_nothing", allow_empty=True), instance("write", map_index=3))
    assert repo.lookup_snapshot(staged).parent_id == repo.lookup_branch("main")
    assert "the name is dag.write[3].manual__2026-01-01T00:00:00+00:00" in said()
