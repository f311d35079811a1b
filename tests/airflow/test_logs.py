"""What the logs of tasks say: every operator tells what it did, and to which repository."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import zarr
from airflow.sdk import DAG

import icefloe
from airflow_icechunk.decorators.icechunk import IcechunkDecoratedOperator, icechunk_task
from airflow_icechunk.operators import branches, maintenance, repositories, tags, transactions
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.spark_maintenance import IcechunkSparkMaintenanceOperator
from airflow_icechunk.sensors import icechunk as sensors
from provider_classes import TASKS

SECRET = "hush-hush-hush"

# In place of spark-submit: it stages what the operator looks for, or leaves a report.
SPARK_SUBMIT = """#!{python}
import json, sys
sys.path[:0] = {path}
import icefloe
from icefloe.job_reports import store_report
words = dict(zip(sys.argv[:-1], sys.argv[1:]))
repo = icefloe.Repository.open(words["--url"])
if "--report-key" in words:
    report = {{"result": {{"findings": []}}}}
    store_report(repo.storage, words["--report-key"], report)
else:
    session = repo.writable_session("main")
    session.flush(words["--message"], write_key=words["--write-key"])
"""


class World:
    """A repository on which every operator has something to do."""

    def __init__(self, repo, stage, commit):
        self.repo, self.stage, self.commit = repo, stage, commit
        self.first = repo.lookup_branch("main")

    @property
    def tip(self):
        return self.repo.lookup_branch("main")

    def named(self):
        self.repo.create_branch("dev", self.first)
        self.repo.create_tag("v1", self.first)


def create_branch(world):
    yield branches.IcechunkCreateBranchOperator(task_id="t", branch="dev")
    yield "created the branch dev at", world.tip


def reset_branch(world):
    newer = world.commit(0)
    arguments = {"branch": "main", "snapshot_id": world.first, "from_snapshot_id": newer}
    yield branches.IcechunkResetBranchOperator(task_id="t", **arguments)
    yield "moved the branch main from", newer, world.first


def delete_branch(world):
    world.named()
    yield branches.IcechunkDeleteBranchOperator(task_id="t", branch="dev")
    yield ("deleted the branch dev",)


def create_tag(world):
    yield tags.IcechunkCreateTagOperator(task_id="t", tag="v1")
    yield "tagged", world.tip, "as v1"


def delete_tag(world):
    world.named()
    yield tags.IcechunkDeleteTagOperator(task_id="t", tag="v1")
    yield ("deleted the tag v1",)


def create_repository(world):
    yield repositories.IcechunkCreateRepositoryOperator(task_id="t")
    yield "is there already", world.tip


def set_status(world):
    yield repositories.IcechunkSetStatusOperator(task_id="t", status="read_only")
    yield ("was online, and is read_only now",)


def begin(world):
    yield transactions.IcechunkBeginOperator(task_id="t")
    yield world.tip, "the tip of main"


def commit(world):
    staged = [world.stage(0), world.stage(1)]
    yield transactions.IcechunkCommitOperator(task_id="t", snapshot_ids=staged)
    yield "merged 2 staged snapshots", *staged, world.tip, "on main"


def publish(world):
    staged = world.stage(0)
    yield transactions.IcechunkPublishOperator(task_id="t", snapshot_id=staged)
    yield "published", staged, f"main is at {world.tip}"


def expire(world):
    world.commit(0)
    yield maintenance.IcechunkExpireSnapshotsOperator(task_id="t", older_than=timedelta(0))
    yield "expired what is older than 20", "released snapshots 1"


def collect(world):
    world.stage(0)
    arguments = {"grace": timedelta(0), "force": True}
    yield maintenance.IcechunkGarbageCollectOperator(task_id="t", **arguments)
    yield "collected garbage older than 20", "bytes deleted", "snapshots deleted 1"


def verify(world):
    yield maintenance.IcechunkVerifyOperator(task_id="t")
    yield "verified", "level metadata", "error 0"


def rewrite(world):
    yield maintenance.IcechunkRewriteManifestsOperator(task_id="t")
    yield "cut the manifests of main", world.tip


def repack(world):
    yield maintenance.IcechunkRepackOperator(task_id="t")
    yield ("repacked main: ",)


def trim(world):
    yield maintenance.IcechunkTrimOpsLogOperator(task_id="t")
    yield "keeping 1000", "backups deleted 0"


def spark_submit(world):
    yield IcechunkSparkSubmitOperator(task_id="t", job="jobs:write")
    yield "the job jobs:write staged", "under the key airflow-"


def spark_maintenance(world):
    yield IcechunkSparkMaintenanceOperator(task_id="t", maintenance="verify")
    yield "verified", "error 0"


def branch_sensor(world):
    yield sensors.IcechunkBranchSensor(task_id="t", contains=world.first)
    yield "found", world.first, "branch main"


def tag_sensor(world):
    world.named()
    yield sensors.IcechunkTagSensor(task_id="t", tag="v1")
    yield "found", world.first, "tag v1"


def array_sensor(world):
    yield sensors.IcechunkArraySensor(task_id="t", path="t2m")
    yield "found", world.first, "shape [4, 2]"


def decorated(world):
    def write(store):
        zarr.open_array(store, path="t2m")[0] = 1

    with DAG("dag"):
        yield icechunk_task(write)().operator
    yield "committed", world.tip, "to main"


SCENES = {
    branches.IcechunkCreateBranchOperator: create_branch,
    branches.IcechunkResetBranchOperator: reset_branch,
    branches.IcechunkDeleteBranchOperator: delete_branch,
    tags.IcechunkCreateTagOperator: create_tag,
    tags.IcechunkDeleteTagOperator: delete_tag,
    repositories.IcechunkCreateRepositoryOperator: create_repository,
    repositories.IcechunkSetStatusOperator: set_status,
    transactions.IcechunkBeginOperator: begin,
    transactions.IcechunkCommitOperator: commit,
    transactions.IcechunkPublishOperator: publish,
    maintenance.IcechunkExpireSnapshotsOperator: expire,
    maintenance.IcechunkGarbageCollectOperator: collect,
    maintenance.IcechunkVerifyOperator: verify,
    maintenance.IcechunkRewriteManifestsOperator: rewrite,
    maintenance.IcechunkRepackOperator: repack,
    maintenance.IcechunkTrimOpsLogOperator: trim,
    IcechunkSparkSubmitOperator: spark_submit,
    IcechunkSparkMaintenanceOperator: spark_maintenance,
    sensors.IcechunkBranchSensor: branch_sensor,
    sensors.IcechunkTagSensor: tag_sensor,
    sensors.IcechunkArraySensor: array_sensor,
    IcechunkDecoratedOperator: decorated,
}
KINDS = [*(kind for kind in TASKS if kind is not sensors.IcechunkSensor), IcechunkDecoratedOperator]


@pytest.fixture
def world(repo, stage, commit, connect, tmp_path, monkeypatch):
    connect(host=str(tmp_path / "repo"), login="AKIASOMEBODY", password=SECRET)
    connect("spark_default", "spark", host="local[1]")
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    core = str(Path(icefloe.__file__).parents[1])
    program.write_text(SPARK_SUBMIT.format(python=sys.executable, path=[core]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return World(repo, stage, commit)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_task_says_what_it_did_and_to_what(world, run, said, kind):
    """A new kind of task needs a scene here, and fails without one."""
    steps = SCENES[kind](world)
    operator = next(steps)
    assert isinstance(operator, kind)
    run(operator)
    lines = [line for line in said().splitlines() if world.repo.storage.url in line]
    assert 1 <= len(lines) <= 2, said()
    assert "(icechunk_default)" in lines[-1]
    for text in next(steps):
        assert text in lines[-1]
    assert SECRET not in said()
    assert "AKIASOMEBODY" not in said()


def test_a_task_says_why_it_did_nothing(world, run, said):
    for _ in range(2):
        arguments = {"grace": timedelta(0), "force": True}
        run(maintenance.IcechunkGarbageCollectOperator(task_id="t", **arguments))
    assert "no garbage to collect: nothing has left any since" in said()
    run(tags.IcechunkDeleteTagOperator(task_id="t", tag="v9"))
    assert "there is no tag v9: nothing to delete" in said()
    run(repositories.IcechunkSetStatusOperator(task_id="t", status="online"))
    assert "the status is online already" in said()
    run(branches.IcechunkResetBranchOperator(task_id="t", branch="main", snapshot_id=world.first))
    assert f"the branch main is at {world.first} already" in said()


def test_a_task_that_writes_nothing_and_one_that_stages_say_so(world, run, said, instance):
    with DAG("dag"):
        nothing = icechunk_task(lambda store: None, task_id="nothing")().operator
        staged = icechunk_task(lambda store: None, task_id="staged", stage=True)().operator
    run(nothing)
    assert f"nothing to commit: main stays at {world.first}" in said()
    ti = instance("staged")
    made = run(staged, ti)
    assert f"staged {made}, on no branch" in said()
    ti.retry()
    with DAG("dag2"):
        again = icechunk_task(lambda store: None, task_id="staged", stage=True)().operator
    run(again, ti)
    assert f"an earlier attempt has written {made}: nothing is done again" in said()


def test_a_log_line_is_no_place_for_urls_with_secrets(connect, run, said):
    connect(host=f"s3://user:{SECRET}@bucket/x")
    with pytest.raises((icefloe.IcefloeError, ValueError)) as caught:
        run(transactions.IcechunkBeginOperator(task_id="t"))
    assert SECRET not in said() + str(caught.value)
