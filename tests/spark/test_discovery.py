"""Spark finds the data sources by itself, and is not harmed where it cannot."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr

from icefloe import Repository

CORE = Path(__file__).parents[2] / "core"


def test_the_data_sources_need_no_registration(spark, tmp_path):
    repo = Repository.create(tmp_path / "repo")
    with repo.transaction("main", message="numbers") as store:
        zarr.create_array(store, name="a", data=np.arange(6.0), dimension_names=["x"])
    options = {"url": str(tmp_path / "repo"), "array": "/a"}
    # A new session has none of the registrations that other tests made.
    fresh = spark.newSession()
    table = fresh.read.format("icechunk").options(**options).load()
    assert {(row.x, row.value) for row in table.collect()} == {(n, float(n)) for n in range(6)}
    stream = fresh.readStream.format("icechunk-snapshots").option("url", options["url"]).load()
    assert stream.isStreaming


def test_without_the_extra_the_modules_offer_no_data_source():
    script = (
        "import sys; sys.modules['zarr'] = None\n"
        "import pyspark_icechunk, pyspark_icechunk_snapshots\n"
        "assert not hasattr(pyspark_icechunk, 'DefaultSource')\n"
        "assert not hasattr(pyspark_icechunk_snapshots, 'DefaultSource')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(CORE)})
