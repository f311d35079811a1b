"""Reading many small chunks back: the data source, beside plain zarr in a process pool.

The repository is one that `benchmarks.spark_write` wrote. Spark is started and warm, and so are the
pool's processes: neither side pays for its start. Both read all of the array, and each answer is
checked.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import zarr

from benchmarks.spark_write import WORKERS, blocks, values, watched
from icefloe import Repository
from icefloe.spark import IcechunkDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    type Reading = tuple[float, float, list[int]]
    """Seconds of wall time and of computing; what was found."""

BAR = 1.5
STORES = ("official", "icefloe")
VALUES = {"columns": "value"}
"""Options that leave the columns of dimensions out."""
_WARMING_SECONDS = 1


def expected(length: int, regions: int) -> tuple[int, int, int]:
    """What reading must give: count, sum, and a sum that depends on where each value is."""
    total = weighted = 0
    for row in range(regions):
        for first, last in blocks(length):
            part = values(row, first, last)
            total += int(part.sum(dtype=np.int64))
            weighted += int(((np.arange(first, last) + row) % 1000) @ part)
    return length * regions, total, weighted


def through_spark(spark: SparkSession, folder: str, **options: str) -> Reading:
    """One aggregate over all rows: the last of `expected` only if all columns are read."""
    spark.dataSource.register(IcechunkDataSource)
    wanted = ["count(*)", "sum(value)"]
    if not options:
        wanted.append("sum((dim_0 + dim_1) % 1000 * value)")
    with watched() as watch:
        started = time.perf_counter()
        table = spark.read.format("icechunk").options(url=folder, array="a", **options).load()
        found = table.selectExpr(*wanted).first()
        seconds = time.perf_counter() - started
    return seconds, watch.cpu_s, list(found or ())


def in_pool(store: str, folder: str, regions: int) -> Reading:
    """Count and sum: each process reads whole regions with zarr, a block at a time."""
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        list(pool.map(_warm, [store] * WORKERS, [folder] * WORKERS))
        with watched() as watch:
            started = time.perf_counter()
            places = [store] * regions, [folder] * regions, range(regions)
            parts = list(pool.map(_read_region, *places))
            seconds = time.perf_counter() - started
    return seconds, watch.cpu_s, np.sum(parts, axis=0).tolist()


def _open(store: str, folder: str) -> zarr.Array[Any]:
    if store == "official":
        icechunk.set_logs_filter("error")
        repo: Any = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    else:
        repo = Repository.open(folder)
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")


def _warm(store: str, folder: str) -> None:
    _open(store, folder)[:1, :1]
    # So that each process gets one of these.
    time.sleep(_WARMING_SECONDS)


def _read_region(store: str, folder: str, row: int) -> tuple[int, int]:
    array = _open(store, folder)
    total = 0
    for first, last in blocks(array.shape[1]):
        total += int(np.asarray(array[row, first:last]).sum(dtype=np.int64))
    return array.shape[1], total
