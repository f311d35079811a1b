"""The examples of docs/spark.md run, on a small array and a local disk."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import spark as ice

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
SMALLER = {
    "(8760, 721, 1440)": "(8760, 4, 6)",
    "(24, 721, 1440)": "(24, 4, 6)",
    "(8760, 10, 10)": "(8760, 2, 2)",
}


def gaussian(values):
    return values


def prepare_arrays(names):
    """Whatever the page takes for granted: other arrays, and a session to write them in."""
    repo = names["repo"]
    names["session"] = session = repo.writable_session("main")
    for name in ("d2m", "out", "smooth"):
        zarr.create_array(
            session.store,
            name=name,
            shape=(8760, 4, 6),
            chunks=(876, 4, 6),
            dtype="f4",
            dimension_names=["time", "lat", "lon"],
        )
    zarr.create_array(
        session.store,
        name="image",
        shape=(16, 16),
        chunks=(8, 8),
        dtype="f4",
        dimension_names=["y", "x"],
    )[:] = 1
    for name, values in {"lat": np.arange(4.0), "lon": np.arange(6.0)}.items():
        array = zarr.create_array(
            session.store, name=name, shape=values.shape, dtype="f8", dimension_names=[name]
        )
        array[:] = values
    names["gaussian"] = gaussian


def prepare_rows(names):
    names["session"].commit("arrays from arrays")
    rows = [(hour, 1.0, 2.0, 280.0 + hour) for hour in range(3)]
    names["df"] = names["spark"].createDataFrame(rows, ["hour", "lat", "lon", "kelvin"])


def prepare_files(names):
    names["session"] = names["repo"].writable_session("main")
    names["files"] = files = ["first.nc", "second.nc"]

    def open_file(name):
        at = files.index(name)
        yield "/t2m", {"time": slice(24 * at, 24 * at + 24)}, np.full((24, 4, 6), at, "f4")

    names["open_stand_in"] = open_file


def prepare_append(names):
    names["url"] = names["repo"].storage.url
    rows = [(30, lat, lon, 1.5) for lat in range(4) for lon in range(6)]
    frame = names["spark"].createDataFrame(rows, ["time", "lat", "lon", "value"])
    names["df"] = frame.withColumn("day", frame.time)


def prepare_stream(names):
    from pyspark.sql import functions

    rate = names["spark"].readStream.format("rate").option("rowsPerSecond", 1).load()
    names["rows"] = rate.select(
        functions.col("value").alias("time"),
        functions.lit(0).alias("lat"),
        functions.lit(0).alias("lon"),
        functions.lit(1.0).alias("value"),
    )


PREPARED = {
    "ice.transform(": prepare_arrays,
    "ice.write_rows(": prepare_rows,
    "ice.ingest(": prepare_files,
    'df.repartition("day")': prepare_append,
    "rows.writeStream": prepare_stream,
}


# PySpark warns of pandas 3, which it runs well enough for what is used of it here.
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.timeout(300)
def test_every_example_of_the_page_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    names: dict[str, object] = {"ice": ice}
    for block in blocks:
        for mark, prepare in PREPARED.items():
            if mark in block:
                prepare(names)
        for large, small in SMALLER.items():
            block = block.replace(large, small)
        block = block.replace("s3://bucket/era5", f"{tmp_path}/era5")
        block = block.replace("s3://bucket/checkpoint", f"{tmp_path}/checkpoint")
        block = block.replace("files, open_file,", "files, open_stand_in,")
        exec(compile(block, PAGE.name, "exec"), names)
        for query in spark.streams.active:
            query.stop()
    repo = icefloe.Repository.open(tmp_path / "era5")
    messages = [snapshot.message for snapshot in repo.ancestry(branch="main")]
    assert {"January", "arrays from arrays", "stations", "2026"} <= {*messages}
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="t2m", mode="r")[30, 0, 0] == 1.5
    assert repo.verify("objects") == []
