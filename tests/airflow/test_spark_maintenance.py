"""Maintenance on Spark: what a worker would do and return, whatever became of the driver."""

import json
import os
import stat
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

from airflow_icechunk.operators.maintenance import (
    IcechunkGarbageCollectOperator,
    VerificationFailedError,
)
from airflow_icechunk.operators.spark_maintenance import IcechunkSparkMaintenanceOperator
from airflow_icechunk.spark_jobs import driver_program

# In place of spark-submit: a driver that leaves the report it is told to, and dies as it is told.
SPARK_SUBMIT = """#!{python}
import json, os, sys
sys.path[:0] = {path}
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
words = dict(zip(sys.argv[:-1], sys.argv[1:]))
if os.environ.get("REPORT"):
    from icefloe import open_storage
    from icefloe.job_reports import store_report
    report = {{"result": json.loads(os.environ["REPORT"])}}
    store_report(open_storage(words["--url"]), words["--report-key"], report)
sys.exit(int(os.environ.get("SPARK_EXIT", "0")))
"""

GARBAGE = {
    "bytes_deleted": 10,
    "chunks_deleted": 1,
    "manifests_deleted": 2,
    "snapshots_deleted": 3,
    "transaction_logs_deleted": 4,
    "attributes_deleted": 0,
    "objects_failed_to_delete": 0,
    "delete_errors": [],
    "dry_run": False,
}
ANSWER = {
    "skipped": False,
    "bytes_deleted": 10,
    "chunks_deleted": 1,
    "manifests_deleted": 2,
    "snapshots_deleted": 3,
    "transaction_logs_deleted": 4,
    "dry_run": False,
}


@pytest.fixture
def report(monkeypatch):
    """What the next driver reports."""
    return lambda result: monkeypatch.setenv("REPORT", json.dumps(result))


@pytest.fixture
def spark(repo, stage, tmp_path, monkeypatch, connect):
    """The arguments of each submission, in order; the repository has garbage."""
    stage(0)
    log = tmp_path / "submissions"
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    core = str(Path(driver_program()).parents[2])
    program.write_text(SPARK_SUBMIT.format(python=sys.executable, path=[core], log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    connect("spark_default", "spark", host="local[2]")

    def submissions():
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]

    return submissions


def reports(repo):
    return [item for page in repo.storage.list("icefloe/reports/") for item in page]


def collect(**arguments):
    options = {"grace": timedelta(0), "force": True, **arguments.pop("options", {})}
    return IcechunkSparkMaintenanceOperator(
        task_id="gc", maintenance="garbage_collect", options=options, **arguments
    )


def options_of(submission):
    at = next(index for index, word in enumerate(submission) if word.endswith("_app.py"))
    words = submission[at + 1 :]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_driver_does_it_and_the_task_returns_what_the_local_one_would(repo, run, spark, report):
    report(GARBAGE)
    assert run(collect(conf={"spark.executor.memory": "1g"})) == ANSWER
    (submission,) = spark()
    given = options_of(submission)
    assert given["--task"] == "garbage_collect"
    assert given["--report-key"].startswith("airflow-")
    parameters = json.loads(given["--params"])
    assert parameters.pop("delete_object_older_than").endswith("+00:00")
    assert parameters == {"dry_run": False, "force": True}
    assert "spark.executor.memory=1g" in submission
    assert reports(repo) == [], "reports are deleted once they are read"


def test_a_retry_reads_the_report_of_a_driver_that_outlived_its_task(
    repo, run, spark, report, instance
):
    report(GARBAGE)
    ti = instance("gc")
    operator = collect()
    operator.run_driver = killed(operator.run_driver)
    with pytest.raises(KeyboardInterrupt):
        run(operator, ti)
    assert len(reports(repo)) == 1
    ti.retry()
    assert run(collect(), ti) == ANSWER
    assert len(spark()) == 1


def killed(run_driver):
    """The driver reports, but the task does not live to see it."""

    def run(*args, **kwargs):
        run_driver(*args, **kwargs)
        raise KeyboardInterrupt

    return run


def test_a_driver_that_dies_after_its_report_has_done_it(run, spark, report, monkeypatch):
    report(GARBAGE)
    monkeypatch.setenv("SPARK_EXIT", "137")
    assert run(collect()) == ANSWER


def test_a_driver_that_dies_before_its_report_fails_the_task(repo, run, spark, monkeypatch):
    monkeypatch.setenv("SPARK_EXIT", "1")
    with pytest.raises(AirflowException, match="Error code is: 1"):
        run(collect())


def test_a_job_that_ends_well_without_a_report_fails_the_task(run, spark):
    with pytest.raises(RuntimeError, match="left no report under the key airflow-"):
        run(collect())


def test_a_retry_of_a_bad_result_does_it_again(repo, run, spark, report, instance):
    ti = instance("gc")
    report({**GARBAGE, "objects_failed_to_delete": 7, "delete_errors": ["denied"]})
    with pytest.raises(RuntimeError, match="7 objects could not be deleted: denied"):
        run(collect(), ti)
    report(GARBAGE)
    ti.retry()
    assert run(collect(), ti) == ANSWER
    assert len(spark()) == 2


def test_an_unchanged_repository_is_skipped_without_a_driver(repo, run, spark):
    local = IcechunkGarbageCollectOperator(task_id="gc", grace=timedelta(seconds=-2), force=True)
    assert run(local)["snapshots_deleted"] == 1
    assert run(collect()) == {"skipped": True, "dry_run": False}
    assert spark() == []


def test_a_task_that_is_cleared_does_it_again_under_another_key(run, spark, report, instance):
    report(GARBAGE)
    ti = instance("gc")
    run(collect(options={"skip_unchanged": False}), ti)
    ti.clear()
    run(collect(options={"skip_unchanged": False}), ti)
    first, second = (options_of(submission)["--report-key"] for submission in spark())
    assert first != second


def test_findings_of_a_verification_fail_the_task_without_a_retry(run, spark, report):
    finding = {"severity": "error", "file": "f", "message": "m", "what_to_do": "w"}
    operator = IcechunkSparkMaintenanceOperator(
        task_id="v", maintenance="verify", options={"level": "{{ 'objects' }}"}
    )
    report({"errors": 1, "findings": [finding]})
    with pytest.raises(VerificationFailedError, match="1 things are wrong"):
        run(operator)
    assert json.loads(options_of(spark()[0])["--params"]) == {"level": "objects"}


def test_commits_of_maintenance_are_reported(repo, run, spark, report, commit, instance):
    tip = commit(1)
    report({"snapshot_id": tip})
    operator = IcechunkSparkMaintenanceOperator(
        task_id="r", maintenance="rewrite_manifests", options={"metadata": {"why": "test"}}
    )
    assert run(operator, instance("r")) == tip
    parameters = json.loads(options_of(spark()[0])["--params"])
    assert parameters["metadata"]["why"] == "test"
    assert parameters["metadata"]["airflow.task_id"] == "r"


def test_what_there_is_not_is_refused_by_name(repo, run, spark):
    with pytest.raises(ValueError, match="no maintenance 'dust'; there is garbage_collect"):
        IcechunkSparkMaintenanceOperator(task_id="d", maintenance="dust")
    with pytest.raises(ValueError, match="garbage_collect has no option age; it has dry_run"):
        run(collect(options={"age": 1}))
    with pytest.raises(AirflowNotFoundException):
        run(collect(conn_id="spark_nowhere"))
    assert spark() == []


@pytest.fixture
def real_spark(connect, monkeypatch):
    connect("spark_default", "spark", host="local[2]")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("maintenance", ["verify", "rewrite_manifests", "repack"])
def test_the_other_maintenance_runs_on_spark(repo, run, real_spark, commit, read, maintenance):
    for row in range(3):
        commit(row)
    before = read()
    operator = IcechunkSparkMaintenanceOperator(
        task_id="m", maintenance=maintenance, conf={"spark.ui.enabled": "false"}
    )
    done = run(operator)
    assert read() == before
    if maintenance == "verify":
        assert done == {"level": "metadata", "error": 0, "warning": 0}
    if maintenance == "rewrite_manifests":
        assert done == repo.lookup_branch("main")
        assert repo.lookup_snapshot(done).metadata["airflow.task_id"] == "m"
    if maintenance == "repack":
        assert done["snapshot_id"] in (None, repo.lookup_branch("main"))


@pytest.mark.timeout(400)
def test_garbage_is_collected_on_spark(repo, run, stage, real_spark, read):
    before = read()
    staged = stage(0)
    options = {"grace": timedelta(seconds=-2)}
    done = run(collect(options=options, conf={"spark.ui.enabled": "false"}))
    assert (done["skipped"], done["snapshots_deleted"]) == (False, 1)
    assert staged not in str([*repo.storage.list("snapshots/")])
    assert read() == before
    assert run(collect(options={"grace": "0"})) == {"skipped": True, "dry_run": False}
