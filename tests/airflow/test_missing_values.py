"""What was given, and is made of nothing when the task runs, is not what was never given."""

from datetime import timedelta

import pytest
import zarr
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from airflow_icechunk.arguments import WrongArgumentError, texts
from airflow_icechunk.decorators.icechunk import icechunk_task
from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkRepackOperator,
)
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.spark_maintenance import IcechunkSparkMaintenanceOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator, IcechunkPublishOperator
from airflow_icechunk.sensors.icechunk import IcechunkArraySensor, IcechunkBranchSensor


class Output(ResolveMixin):
    """The output of a task, as an argument of another."""

    def __init__(self, value):
        self.value = value

    def iter_references(self):
        return iter(())

    def resolve(self, context):
        return self.value


def write(store):
    zarr.open_array(store, path="t2m")[0] = 1


def expire(**given):
    return IcechunkExpireSnapshotsOperator(task_id="t", older_than=timedelta(0), **given)


def on_spark(maintenance, options):
    return IcechunkSparkMaintenanceOperator(task_id="t", maintenance=maintenance, options=options)


CASES = {
    "allowed_arrays": lambda staged, value: IcechunkPublishOperator(
        task_id="t", snapshot_id=staged, allowed_arrays=value
    ),
    "required_metadata": lambda staged, value: IcechunkPublishOperator(
        task_id="t", snapshot_id=staged, required_metadata=value
    ),
    "forbid_shrink": lambda staged, value: IcechunkPublishOperator(
        task_id="t", snapshot_id=staged, forbid_shrink=value
    ),
    "branches": lambda staged, value: expire(branches=value),
    "keep_last": lambda staged, value: expire(keep_last=value),
    "delete_expired_tags": lambda staged, value: expire(delete_expired_tags=value),
    "arrays": lambda staged, value: IcechunkRepackOperator(task_id="t", arrays=value),
    "arrays on Spark": lambda staged, value: on_spark("repack", {"arrays": value}),
    "options": lambda staged, value: on_spark("repack", value),
    "base": lambda staged, value: icechunk_task(write, stage=True, base=value)().operator,
    "key": lambda staged, value: icechunk_task(write, key=value)().operator,
    "base on Spark": lambda staged, value: IcechunkSparkSubmitOperator(
        task_id="t", job="m:f", base=value
    ),
    "key on Spark": lambda staged, value: IcechunkSparkSubmitOperator(
        task_id="t", job="m:f", key=value
    ),
    "min_shape": lambda staged, value: IcechunkArraySensor(
        task_id="t", path="/t2m", min_shape=value
    ),
    "max_age": lambda staged, value: IcechunkArraySensor(task_id="t", path="/t2m", max_age=value),
    "after": lambda staged, value: IcechunkBranchSensor(task_id="t", after=value),
    "contains": lambda staged, value: IcechunkBranchSensor(task_id="t", contains=value),
}


@pytest.fixture
def spark(monkeypatch):
    """A submission would come as far as to the driver."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("a job was submitted")

    monkeypatch.setattr(
        "airflow_icechunk.spark_jobs.IcechunkSparkOperator._check_connection", refuse
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("nothing", [None, ""])
def test_an_output_of_nothing_is_refused(name, nothing, repo, commit, stage, run, spark):
    commit(0)
    staged = stage(1)
    before = [item.id for item in repo.ancestry(branch="main")]
    with pytest.raises(WrongArgumentError, match=name.split()[0]):
        run(CASES[name](staged, Output(nothing)))
    assert [item.id for item in repo.ancestry(branch="main")] == before


@pytest.mark.parametrize("name", ["allowed_arrays", "required_metadata", "branches", "arrays"])
def test_an_empty_list_is_refused(name, repo, stage, run):
    before = repo.lookup_branch("main")
    for empty in ([], Output([])):
        with pytest.raises(WrongArgumentError, match=f"{name} is empty"):
            run(CASES[name](stage(1), empty))
    assert repo.lookup_branch("main") == before


def test_job_params_of_nothing_are_refused(repo, run, spark):
    job = IcechunkSparkSubmitOperator(task_id="t", job="m:f", job_params=Output(None))
    with pytest.raises(WrongArgumentError, match="job_params is None"):
        run(job)


def test_none_that_is_given_means_what_it_says(repo, commit, stage, run, read):
    commit(0)
    staged = stage(1, 5.0)
    publish = IcechunkPublishOperator(
        task_id="t", snapshot_id=staged, allowed_arrays=None, required_metadata=None
    )
    run(publish)
    assert read()[1] == [5.0, 5.0]
    assert run(expire(branches=None, keep_last=None))["released_snapshots"] > 0
    assert "snapshot_id" in run(IcechunkRepackOperator(task_id="t", arrays=None))


@pytest.mark.parametrize("made", ["['{}']", '["{}"]', "('{}',)", "[]"])
def test_the_text_of_a_list_is_told_from_a_list(repo, stage, run, made):
    staged = stage(0)
    before = repo.lookup_branch("main")
    commit = IcechunkCommitOperator(
        task_id="t", snapshot_ids="{{ given }}".replace("given", repr(made.format(staged)))
    )
    with pytest.raises(WrongArgumentError, match=r"\.output.*render_template_as_native_obj"):
        run(commit)
    with pytest.raises(WrongArgumentError, match=r"allowed_arrays.*render_template_as_native_obj"):
        texts("allowed_arrays", made)
    assert repo.lookup_branch("main") == before
    assert texts("allowed_arrays", "[ab]*") == ["[ab]*"]
