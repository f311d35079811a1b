"""Maintenance on a standalone cluster whose executors die: what is counted is what is gone."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from maintenance.histories import assets, contents, copy, files
from maintenance.messy import Messy
from spark.cluster import standalone
from spark.test_app import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("dying_collection.py")


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.conf()


@pytest.mark.parametrize("folder", ["manifests/", "chunks/"])
def test_an_executor_killed_amid_its_deletions_costs_nothing(conf, folder, tmp_path):
    messy = Messy(tmp_path / "messy")
    ours, theirs = copy(messy.path, tmp_path / "ours"), copy(messy.path, tmp_path / "theirs")
    expected = garbage_collect(assets(theirs), messy.end, force=True)
    flags = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
    spark_submit = Path(sys.executable).with_name("spark-submit")
    given = [str(ours), messy.end.isoformat(), folder, str(tmp_path / "answer")]
    done = subprocess.run(
        [str(spark_submit), *flags, str(PROGRAM), *given],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "ours.delete").exists(), "an executor was killed"
    assert "ExecutorLostFailure" in done.stderr or "Lost executor" in done.stderr
    assert json.loads((tmp_path / "answer").read_text()) == json.loads(json.dumps(asdict(expected)))
    assert files(ours) == files(theirs)
    assert contents(ours) == contents(theirs)
    assert [*verify(assets(ours), "objects")] == []
