"""The driver program for maintenance: a report for each key, or a failure that is told."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
import zarr

from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe.errors import InvalidInputError
from icefloe.job_reports import delete_report, find_report, store_report
from icefloe.spark import maintenance_app as app
from spark.test_app import LOCAL, environment

KEY = "weekly 2026-11-18"


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    repo = Repository.create(tmp_path / "repo", config=config)
    for value in (1, 2):
        with repo.transaction("main", message=f"{value}") as store:
            array = zarr.create_array(
                store, name="a", shape=(20,), chunks=(5,), dtype="f8", overwrite=True
            )
            array[:] = value
    return repo


def arguments(repo, task, params, key=KEY, **more):
    given = {"task": task, "url": repo.storage.url, "report-key": key, "params": json.dumps(params)}
    return [text for name, value in (given | more).items() for text in (f"--{name}", str(value))]


@pytest.mark.parametrize(
    "deployed",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=["main", "spark-submit"],
)
def test_every_task_is_reported(repo, deployed, spark, monkeypatch):
    """On one session, which the program would stop; and each in a program of its own."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    collect = {"delete_object_older_than": soon, "force": True}
    tasks = {
        "stats": ({"by": "array"}, lambda it: it["stats"][0]["native_bytes"] > 0),
        "repack": ({"branch": "main"}, lambda it: it["chunks"] == 4),
        "rewrite_manifests": (
            {"message": "cut", "branch": "main"},
            lambda it: it["snapshot_id"] == repo.lookup_branch("main"),
        ),
        "garbage_collect": (collect, lambda it: it["objects_listed"] > 0 and not it["dry_run"]),
        "verify": ({"level": "objects"}, lambda it: it == {"errors": 0, "findings": []}),
    }
    for task, (params, expected) in tasks.items():
        given = arguments(repo, task, params, key=task)
        if deployed:
            done = submit(given)
            assert done.returncode == 0, done.stderr[-4000:]
        else:
            assert app.main(given) == 0
        report = find_report(repo.storage, task)
        assert report["task"] == report["report_key"] == task
        assert report["started_at"] < report["finished_at"]
        assert expected(report["result"]), report
    official = icechunk.Repository.open(
        icechunk.local_filesystem_storage(repo.storage.url.removeprefix("file://"))
    )
    store = official.readonly_session("main").store
    assert (zarr.open_array(store, path="a", mode="r")[:] == 2).all()


def submit(given):
    flags = [text for name, value in LOCAL.items() for text in ("--conf", f"{name}={value}")]
    spark_submit = Path(sys.executable).with_name("spark-submit")
    command = [str(spark_submit), *flags, app.__file__, *given]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=150)


def test_a_key_that_has_a_report_is_not_run_again(repo, capsys, monkeypatch):
    monkeypatch.setattr(app, "TASKS", dict.fromkeys(app.TASKS))
    store_report(repo.storage, KEY, {"task": "verify", "result": {}})
    assert app.main(arguments(repo, "verify", {})) == 0
    assert json.loads(capsys.readouterr().out) == {"task": "verify", "result": {}}


def test_a_task_that_fails_reports_nothing(repo, spark, monkeypatch):
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    young = datetime.now(UTC).isoformat()
    wrong = {
        "force=True": ("garbage_collect", {"delete_object_older_than": young}),
        "offset": ("garbage_collect", {"delete_object_older_than": "2026-11-18T00:00:00"}),
        "not a time": ("garbage_collect", {"delete_object_older_than": "yesterday"}),
        "needs the parameter": ("garbage_collect", {}),
        "colour": ("verify", {"level": "colour"}),
        "parameter 'colour'": ("repack", {"branch": "main", "colour": 1}),
    }
    for message, (task, params) in wrong.items():
        with pytest.raises(InvalidInputError, match=message):
            app.main(arguments(repo, task, params))
    assert find_report(repo.storage, KEY) is None


def test_a_commit_whose_report_was_lost_is_not_made_again(repo, spark, monkeypatch):
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    params = {"repack": {"branch": "main"}, "rewrite_manifests": {"message": "x", "branch": "main"}}
    for task, given in params.items():
        found = []
        for _ in range(2):
            assert app.main(arguments(repo, task, given)) == 0
            found.append(find_report(repo.storage, KEY)["result"]["snapshot_id"])
            delete_report(repo.storage, KEY)
        assert found == [repo.lookup_branch("main")] * 2
        repo.reset_branch("main", repo.lookup_snapshot(found[0]).parent_id)


def test_secrets_are_refused_by_name_only(repo, capsys):
    options = json.dumps({"secret": "hunter2"})
    with pytest.raises(SystemExit):
        app.main(arguments(repo, "verify", {}, **{"storage-options": options}))
    told = capsys.readouterr().err
    assert "secret may be secret" in told
    assert "hunter2" not in told
