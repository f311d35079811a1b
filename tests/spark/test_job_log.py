"""Jobs log what they will do, how far they are and what they did."""

import logging
import time

import pytest

from icefloe import Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.spark import progress
from icefloe.spark.job_log import size
from icefloe.spark.writing import run
from spark.jobs import create, place
from spark.test_app import arguments, submit

# mapInArrow looks for pandas, and pyspark has not tried the version that it finds.
pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    return Repository.create(str(tmp_path / "repo"), config=config)


def test_a_write_logs_its_plan_and_its_result(spark, repo, caplog):
    caplog.set_level(logging.INFO, "icefloe")
    session = repo.writable_session("main")
    create(session)
    staged = ice.write(spark, ice.plan(session, "a"), place)
    frame = spark.createDataFrame([(0, 0, 1.0)], "y long, x long, value double")
    ice.write_rows(spark, session, frame, "a", value="value")
    plan, result, rows_plan, rows_result = [record.getMessage() for record in caplog.records]
    assert plan.startswith("write /a: 25 chunks in 1 regions by ")
    assert plan.endswith("about 3.9 KiB of values")
    assert f"wrote /a: 25 chunks of {size(staged.arrays[0].stored_bytes)}, 1 manifests" in result
    assert staged.arrays[0].stored_bytes > 25
    assert staged.base in result
    assert rows_plan.startswith("write rows to /a, to 25 chunks in 1 regions at most")
    assert "wrote /a: 1 chunks of" in rows_result


def test_a_long_job_logs_how_far_it_is(spark, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "icefloe")
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0)
    run(spark.sparkContext, lambda seconds: time.sleep(seconds), [0, 1.5], "icefloe: nap")
    told = [record.getMessage() for record in caplog.records]
    assert any("icefloe: nap: " in line and "of 2 tasks are done" in line for line in told)


def test_the_log_of_a_driver_has_it(repo):
    done = submit(arguments(repo))
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "icefloe.spark: write /a: 25 chunks" in told
    assert "icefloe.spark: wrote /a: 25 chunks of" in told
    assert f"snapshot {repo.find_write('day 1')} is staged as 'day 1'" in told


def test_sizes_are_told_in_units_for_people():
    assert [size(n) for n in (0, 1023, 1024, 3 * 2**30)] == [
        "0 bytes",
        "1,023 bytes",
        "1.0 KiB",
        "3.0 GiB",
    ]
