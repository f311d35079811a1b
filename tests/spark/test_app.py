"""The driver program: one write key, one snapshot, and an exit code that tells the truth."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import Repository, RepositoryConfig
from icefloe.spark import app
from icefloe.splitting import with_rule
from spark.jobs import expected

APP = Path(app.__file__)
LOCAL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
}


@pytest.fixture
def repo(tmp_path):
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    return Repository.create(str(tmp_path / "repo"), config=config)


def environment(**more):
    path = os.pathsep.join(filter(None, sys.path))
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **loopback, "PYTHONPATH": path, **more}


def arguments(repo, job="spark.jobs:write_all", key="day 1", **more):
    given = {"job": job, "url": repo.storage.url, "write-key": key, "message": "staged", **more}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def submit(given, conf=LOCAL, **environ):
    """Let spark-submit run the program."""
    flags = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
    spark_submit = Path(sys.executable).with_name("spark-submit")
    command = [str(spark_submit), *flags, str(APP), *given]
    return subprocess.run(
        command, env=environment(**environ), capture_output=True, text=True, timeout=300
    )


def values(repo, snapshot_id):
    store = repo.readonly_session(snapshot_id=snapshot_id).store
    return zarr.open_array(store, path="a", mode="r")[...]


def test_a_job_is_staged_under_its_write_key(repo):
    base = repo.lookup_branch("main")
    done = submit(arguments(repo, base=base, metadata='{"by": "test"}'))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == {"snapshot_id": repo.find_write("day 1"), "write_key": "day 1"}
    assert repo.lookup_branch("main") == base, "staged, not published"
    np.testing.assert_array_equal(values(repo, answer["snapshot_id"]), expected((17, 23)))
    assert repo.lookup_snapshot(answer["snapshot_id"]).metadata["by"] == "test"
    repo.publish("main", answer["snapshot_id"])


def test_a_key_that_is_registered_needs_no_spark(repo, capsys):
    found = repo.writable_session("main").flush("staged", write_key="day 1")
    assert app.main(arguments(repo, job="spark.jobs:fail_before_flush")) == 0
    assert json.loads(capsys.readouterr().out)["snapshot_id"] == found


def test_secrets_are_refused_by_name_only(repo, capsys):
    options = json.dumps({"endpoint_url": "http://127.0.0.1", "secret": "hunter2"})
    with pytest.raises(SystemExit) as caught:
        app.main(arguments(repo, **{"storage-options": options}))
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "secret may be secret" in told
    assert "hunter2" not in told


@pytest.mark.slow
def test_a_driver_killed_before_the_flush_is_run_again(repo, tmp_path):
    given = arguments(
        repo,
        job="spark.jobs:fail_before_flush",
        params=json.dumps({"marker": str(tmp_path / "died")}),
    )
    assert submit(given).returncode != 0
    assert repo.find_write("day 1") is None
    done = submit(given)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(values(repo, repo.find_write("day 1")), expected((17, 23)))


@pytest.mark.slow
def test_two_drivers_at_once_stage_one_snapshot(repo):
    command = [sys.executable, "-m", "icefloe.spark.app", *arguments(repo)]
    flags = " ".join(f"--conf {name}={value}" for name, value in LOCAL.items())
    env = environment(PYSPARK_SUBMIT_ARGS=f"{flags} pyspark-shell")
    drivers = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    answers = [json.loads(driver.communicate()[0].splitlines()[-1]) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0]
    assert answers[0] == answers[1]
    assert len(list(repo.ops_log())) == 2, "the repository was created, and one snapshot staged"
