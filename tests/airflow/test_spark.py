"""SparkSubmit: the repository says what was written, whatever became of the driver.

A program in place of spark-submit keeps the contract of the driver, or breaks it as it is told.
"""

import json
import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
)

import icefloe
from airflow_icechunk.failures import SparkJobError
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.spark_jobs import driver_program

SPARK_SUBMIT = """#!{python}
import argparse, json, os, subprocess, sys, time
sys.path[:0] = {path}
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
mode = os.environ["SPARK_MODE"]
if mode == "hang":
    # A child as the Python driver below the JVM: it must not outlive its task.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open({log!r} + ".pids", "w").write(f"{{os.getpid()}} {{child.pid}}")
    print("submitted", flush=True)
    time.sleep(600)
if mode.startswith("fail"):
    sys.path[:0] = {path}
    from icefloe import open_storage
    from icefloe.job_reports import JobFailure, store_failure
    failure = JobFailure(**json.loads(os.environ["FAILURE"]))
    words = dict(zip(sys.argv[:-1], sys.argv[1:]))
    if mode == "fail-and-store":
        # As on a cluster, whose output nobody sees; what is seen is torn by another process.
        store_failure(open_storage(words["--url"]), words["--write-key"], failure)
        print(failure.as_line()[:40] + " INFO SparkContext")
    else:
        print("26/01/01 INFO Utils: " + failure.as_line())
    sys.exit(1)
if mode == "die-before":
    sys.exit(1)
if mode == "write":
    import icefloe, zarr
    at = next(i for i, word in enumerate(sys.argv) if word.endswith("app.py"))
    parser = argparse.ArgumentParser()
    names = "job url base branch write-key message metadata params app-name"
    for name in names.split():
        parser.add_argument("--" + name)
    parser.add_argument("--allow-empty", action="store_true")
    parser.add_argument("--virtual-chunks", action="append")
    given = parser.parse_args(sys.argv[at + 1:])
    repo = icefloe.Repository.open(given.url)
    start = {{"snapshot_id": given.base}} if given.base else {{"branch": given.branch}}
    session = repo.writable_session(**start)
    params = json.loads(given.params)
    zarr.open_array(session.store, path="t2m")[params["row"]] = params["value"]
    session.flush(given.message, metadata=json.loads(given.metadata), write_key=given.write_key)
if os.environ.get("SPARK_EXIT"):
    sys.exit(int(os.environ["SPARK_EXIT"]))
"""


@pytest.fixture
def spark(repo, tmp_path, monkeypatch, connect):
    """The arguments of each submission, in order."""
    log = tmp_path / "submissions"
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    core = str(Path(driver_program()).parents[2])
    program.write_text(SPARK_SUBMIT.format(python=sys.executable, path=[core], log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_MODE", "write")
    connect("spark_default", "spark", host="local[2]")

    def submissions():
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]

    submissions.log = log
    return submissions


def job(**arguments):
    given = {"job": "jobs:write", "job_params": {"row": 1, "value": 3}, **arguments}
    return IcechunkSparkSubmitOperator(task_id="write", **given)


def options_of(submission):
    at = next(index for index, word in enumerate(submission) if word.endswith("app.py"))
    words = submission[at + 1 :]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_job_stages_a_snapshot_and_the_task_returns_it(repo, run, spark, instance):
    before = repo.lookup_branch("main")
    staged = run(job(), instance("write"))
    assert repo.lookup_branch("main") == before
    snapshot = repo.lookup_snapshot(staged)
    assert snapshot.parent_id == before
    assert snapshot.metadata["airflow.task_id"] == "write"
    (submission,) = spark()
    given = options_of(submission)
    assert given["--job"] == "jobs:write"
    assert given["--branch"] == "main"
    assert given["--url"] == repo.storage.url.removeprefix("file://")
    assert json.loads(given["--params"]) == {"row": 1, "value": 3}
    assert given["--write-key"] == snapshot.metadata["icefloe.write_key"]
    assert submission[submission.index("--master") + 1] == "local[2]"


def test_a_retry_of_a_job_that_wrote_does_not_submit_again(run, spark, instance):
    ti = instance("write")
    first = run(job(), ti)
    ti.retry()
    assert run(job(), ti) == first
    assert len(spark()) == 1


def test_a_task_that_is_cleared_submits_again(run, spark, instance):
    ti = instance("write")
    first = run(job(), ti)
    ti.clear()
    assert run(job(), ti) != first
    assert len(spark()) == 2


def test_the_key_of_a_region_tells_writes_apart(run, spark, instance):
    assert run(job(key="europe"), instance("write")) != run(job(key="asia"), instance("write"))


def test_a_driver_that_dies_before_it_wrote_fails_the_task(repo, run, spark, monkeypatch):
    monkeypatch.setenv("SPARK_MODE", "die-before")
    with pytest.raises(AirflowException, match="Error code is: 1"):
        run(job())


@pytest.fixture
def fail(monkeypatch):
    """What the next driver tells of its failure, and how."""

    def tell(kind, name="a-kind", *, retryable, mode="fail"):
        failure = {"type": kind, "kind": name, "message": "no /nope here", "retryable": retryable}
        monkeypatch.setenv("SPARK_MODE", mode)
        monkeypatch.setenv("FAILURE", json.dumps(failure))

    return tell


@pytest.mark.parametrize("mode", ["fail", "fail-and-store"])
def test_the_error_of_a_job_is_the_error_of_its_task(repo, run, spark, fail, mode):
    fail("NotFoundError", retryable=False, mode=mode)
    with pytest.raises(AirflowFailException) as caught:
        run(job())
    assert str(caught.value) == "the Spark job failed: NotFoundError: no /nope here"
    # Not of spark-submit, and nothing of its command line.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_error_of_a_job_that_a_retry_may_mend_is_itself(repo, run, spark, fail):
    fail("ThrottledError", "throttled", retryable=True)
    with pytest.raises(icefloe.ThrottledError, match="no /nope here") as caught:
        run(job())
    assert caught.value.kind == "throttled"
    fail("ZeroDivisionError", "job-error", retryable=True)
    with pytest.raises(SparkJobError, match="ZeroDivisionError: no /nope here"):
        run(job())


def test_an_older_failure_is_not_told_of_a_driver_that_died_in_silence(
    repo, run, spark, fail, monkeypatch, instance
):
    ti = instance("write")
    fail("NotFoundError", retryable=False, mode="fail-and-store")
    with pytest.raises(AirflowFailException):
        run(job(), ti)
    ti.retry()
    monkeypatch.setenv("SPARK_MODE", "die-before")
    with pytest.raises(AirflowException, match="Error code is: 1"):
        run(job(), ti)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"icechunk_conn_id": "nowhere"}, "nowhere"),
        ({"icechunk_conn_id": "spark_default"}, "must be of the type 'icechunk'"),
        ({"conn_id": "icechunk_default"}, "must be one to Spark"),
        ({"base": "{{ none }}"}, "base is None"),
        ({"job": "{{ 'a.b' }}"}, "must be 'module:function'"),
        ({"message": "{{ none }}"}, "message is"),
        ({"branch": "{{ '' }}"}, "branch is empty"),
        ({"job_params": "{{ 'text' }}"}, "job_params"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_a_retry_cannot_mend_fails_at_once_and_submits_nothing(
    repo, run, spark, wrong, message
):
    with pytest.raises(AirflowFailException, match=message):
        run(job(**wrong))
    assert spark() == []


def test_a_repository_that_is_not_there_fails_a_job_at_once(tmp_path, run, spark, connect):
    connect(host=str(tmp_path / "nothing"))
    with pytest.raises(AirflowFailException, match="NotFoundError"):
        run(job())
    assert spark() == []


@pytest.mark.parametrize("path", ["a.b", "a:", ":b", "a b:c", "a/b.py:c", 7])
def test_a_job_that_is_no_import_path_is_refused_when_the_dag_is_parsed(path):
    with pytest.raises(ValueError, match=r"job is .* must be 'module:function'"):
        job(job=path)
    with pytest.raises(ValueError, match=r"job is .* must be 'module:function'"):
        IcechunkSparkSubmitOperator.partial(task_id="mapped", job=path)
    with pytest.raises(ValueError, match=r"credentials is .* must be 'module:function'"):
        job(credentials=path)


def test_a_job_may_be_allowed_to_write_nothing(repo, run, spark):
    run(job())
    run(job(allow_empty=True, key="other"))
    assert ["--allow-empty" in submission for submission in spark()] == [False, True]


@pytest.mark.parametrize("map_index", [-1, 0, 12])
def test_a_spark_application_is_named_after_its_task(repo, run, spark, instance, map_index):
    run(job(), instance("write", dag_id="d" * 200, map_index=map_index))
    (submission,) = spark()
    index = "" if map_index < 0 else f"[{map_index}]"
    expected = f"{'d' * 60}.write{index}.manual__2026-01-01T00:00:00+00:00"
    assert submission[submission.index("--name") + 1] == expected
    assert options_of(submission)["--app-name"] == expected


def test_a_driver_that_dies_after_it_wrote_has_written(repo, run, spark, monkeypatch, instance):
    monkeypatch.setenv("SPARK_EXIT", "137")
    ti = instance("write")
    first = run(job(), ti)
    ti.retry()
    assert run(job(), ti) == first
    assert len(spark()) == 1


def test_a_job_that_ends_well_but_wrote_nothing_fails_the_task(repo, run, spark, monkeypatch):
    monkeypatch.setenv("SPARK_MODE", "nothing")
    with pytest.raises(RuntimeError, match="wrote nothing under the key airflow-"):
        run(job())


def test_a_job_stands_on_the_prepared_snapshot(repo, run, spark, stage):
    prepared = stage(3)
    staged = run(job(base=prepared))
    assert repo.lookup_snapshot(staged).parent_id == prepared
    assert "--branch" not in options_of(spark()[0])


def test_a_base_that_is_no_snapshot_is_refused_before_submitting(repo, run, spark):
    with pytest.raises(ValueError, match="base is None"):
        run(job(base="None"))
    assert spark() == []


def test_a_spark_connection_that_is_not_there_is_no_reason_to_use_yarn(repo, run, spark):
    with pytest.raises(AirflowNotFoundException):
        run(job(conn_id="spark_nowhere"))
    assert spark() == []


def test_no_credentials_reach_the_command_line(tmp_path, run, spark, connect, monkeypatch, repo):
    secret = "do-not-show-this"
    connect(
        "s3",
        host="s3://bucket/p",
        login="key-id",
        password=secret,
        extra={"endpoint_url": "http://127.0.0.1:9", "session_token": secret},
    )
    operator = job(icechunk_conn_id="s3", credentials="my.secrets:options")
    # Only the target is of that connection; the repository that answers is a local one.
    operator.hook.__dict__["repository"] = repo
    monkeypatch.setenv("SPARK_MODE", "nothing")
    with pytest.raises(RuntimeError, match="wrote nothing"):
        run(operator)
    (submission,) = spark()
    assert secret not in json.dumps(submission)
    assert "key-id" not in json.dumps(submission)
    given = options_of(submission)
    assert json.loads(given["--storage-options"]) == {"endpoint_url": "http://127.0.0.1:9"}
    assert given["--credentials"] == "my.secrets:options"


def test_killing_a_task_ends_the_driver_below_the_submission(repo, run, spark, monkeypatch):
    monkeypatch.setenv("SPARK_MODE", "hang")
    operator = job()
    failures = []

    def attempt():
        try:
            run(operator)
        except AirflowException as error:
            failures.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    pids = Path(f"{spark.log}.pids")
    deadline = time.monotonic() + 20
    while not (pids.exists() and pids.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent, child = map(int, pids.read_text().split())
    try:
        operator.on_kill()
        thread.join(20)
        assert failures
        for pid in (parent, child):
            assert _is_gone(pid)
    finally:
        for pid in (parent, child):
            if not _is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def _is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_job_is_told_which_virtual_chunks_it_may_read(repo, run, spark):
    run(job(virtual_chunks=["s3://bucket/a/", "s3://bucket/b/"]))
    (submission,) = spark()
    told = [submission[at + 1] for at, word in enumerate(submission) if word == "--virtual-chunks"]
    assert told == ["s3://bucket/a/", "s3://bucket/b/"]
