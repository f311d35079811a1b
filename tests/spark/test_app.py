"""The driver program: one write key, one snapshot, and an exit code that tells the truth."""

import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import zarr
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe.spark import app
from icefloe.splitting import with_rule
from spark.jobs import expected, name_modules

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


def test_executors_import_nothing_of_airflow(spark, repo, tmp_path):
    name_modules(spark, repo.writable_session("main"), tmp_path / "modules")
    modules = (tmp_path / "modules").read_text().split()
    assert "icefloe.spark.tasks" in modules
    assert [each for each in modules if each.partition(".")[0].startswith("airflow")] == []


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(400)
def test_a_write_needs_the_extras_spark_and_s3_and_no_more(s3_server, tmp_path):
    # The same versions as here, but only what the two extras ask for.
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    installed = needed_by("icefloe", {"spark", "s3"})
    assert not any(name.startswith("apache-airflow") for name in installed)
    for name in installed - {"icefloe"}:
        link_distribution(name, site)
    (site / "here.pth").write_text(str(APP.parents[2]))
    (site / "bare_job.py").symlink_to(Path(__file__).with_name("bare_job.py"))
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    repo = Repository.create(s3_server.root(), s3_server.options, config=config)
    options = {"endpoint_url": s3_server.endpoint}
    command = [python, "-m", "icefloe.spark.app"]
    command += arguments(repo, "bare_job:run", **{"storage-options": json.dumps(options)})
    flags = " ".join(f"--conf {name}={value}" for name, value in LOCAL.items())
    env = {
        "PATH": os.environ["PATH"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": f"{flags} pyspark-shell",
        "AWS_ACCESS_KEY_ID": s3_server.key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret,
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    np.testing.assert_array_equal(values(repo, repo.find_write("day 1")), np.ones((17, 23)))


def needed_by(name, extras):
    """The distributions that pip would install, by name."""
    found, waiting = {}, [(name, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        name = canonicalize_name(name)
        if found.get(name, frozenset()) >= wanted and name in found:
            continue
        found[name] = found.get(name, frozenset()) | wanted
        for text in metadata.distribution(name).requires or ():
            need = Requirement(text)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                waiting.append((need.name, frozenset(need.extras)))
    return set(found)


def link_distribution(name, site):
    """Make what a distribution installed importable from another folder, too."""
    there = metadata.distribution(name)
    for part in {file.parts[0] for file in there.files}:
        if part not in ("..", "__pycache__") and not (site / part).exists():
            (site / part).symlink_to(there.locate_file(part))


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


def test_a_job_that_ends_the_program_has_not_succeeded(repo):
    done = submit(arguments(repo, job="spark.jobs:leave"))
    assert done.returncode == 1
    # spark-submit passes all that a driver says to its own output.
    assert "the job called sys.exit(0)" in done.stdout
    assert repo.find_write("day 1") is None


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("spark.jobs", "not MODULE:FUNCTION"),
        ("spark.jobs:PLACE", "has no function 'PLACE'"),
        ("spark.no_jobs:run", "there is no module spark.no_jobs"),
    ],
)
def test_a_job_that_is_not_there_is_named(repo, job, told):
    with pytest.raises(InvalidInputError, match=told):
        app.main(arguments(repo, job=job))


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


def test_metadata_that_the_flush_would_refuse_cost_no_job(repo):
    metadata = {"metadata": '{"icefloe.write_key": "x"}'}
    # Were the job imported first, this would be another error.
    with pytest.raises(InvalidInputError, match=r"icefloe\.write_key"):
        app.main(arguments(repo, job="nowhere:job", **metadata))
