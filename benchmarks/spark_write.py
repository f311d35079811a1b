"""Many small chunks: Spark tasks that write manifests, beside official forks in a process pool.

Run it with `python -m benchmarks.spark_write [--chunks N] [--regions N] [--no-official]`. Both
sides write the same values to local disk with as many processes. The start of Spark is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import psutil
import zarr

from icefloe import Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.spark.writing import BLOCK_BYTES
from icefloe.splitting import with_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ELEMENTS = 256
"""Of one chunk: about 600 bytes when compressed, too much for a manifest."""
BLOCK = BLOCK_BYTES // (ELEMENTS * 4) * ELEMENTS
"""Elements that a task computes at a time."""
WORKERS = 2
BAR = 0.5
MAX_GROWTH_MB = 100
MAX_COMMIT_SECONDS = 2.0


def values(row: int, first: int, last: int) -> np.ndarray[Any, Any]:
    """Some elements of a region."""
    return np.random.default_rng([row, first]).integers(0, 2**16, last - first, dtype=np.int32)


def blocks(length: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, BLOCK):
        yield first, min(first + BLOCK, length)


def compute(block: ice.Block) -> np.ndarray[Any, Any]:
    rows, columns = block.slices
    parts = [values(row, columns.start, columns.stop) for row in range(rows.start, rows.stop)]
    return np.stack(parts)


@dataclass(slots=True)
class Watch:
    """How far this process grew while it was watched, and what it and all below it computed."""

    start: int
    peak: int
    cpu: dict[tuple[int, float], tuple[float, float]] = field(default_factory=dict)
    """By process and its time of birth: CPU seconds when it was first and when it was last seen."""

    @property
    def growth_mb(self) -> float:
        return (self.peak - self.start) / 2**20

    @property
    def cpu_s(self) -> float:
        """Hardly depends, unlike wall time, on who else uses the machine."""
        return sum(last - first for first, last in self.cpu.values())

    def look(self, process: psutil.Process, since: float) -> None:
        with suppress(psutil.NoSuchProcess):
            times, born = process.cpu_times(), process.create_time()
            used = times.user + times.system
            # One that was born meanwhile began with nothing.
            first, _ = self.cpu.get((process.pid, born), (0.0 if born >= since else used, used))
            self.cpu[process.pid, born] = first, used


_MEMORY_EVERY = 0.05
_CPU_EVERY = 10
"""Looking at all processes is dear: once in so many looks at the memory."""


@contextmanager
def watched() -> Iterator[Watch]:
    me, since = psutil.Process(), time.time()
    memory = me.memory_info().rss
    watch, done = Watch(memory, memory), threading.Event()

    def look() -> None:
        for process in [me, *me.children(recursive=True)]:
            watch.look(process, since)

    def sample() -> None:
        for turn in count(1):
            if done.wait(_MEMORY_EVERY):
                return
            watch.peak = max(watch.peak, me.memory_info().rss)
            if turn % _CPU_EVERY == 0:
                look()

    look()
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()
        look()


def start_spark() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    path = os.pathsep.join(filter(None, [str(Path.cwd()), str(Path.cwd() / "core"), *sys.path]))
    session = (
        SparkSession.builder.master(f"local[{WORKERS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.executorEnv.PYTHONPATH", path)
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.sparkContext.parallelize([0], 1).map(lambda _: 0).collect()
    return session


def create(store: Any, chunks: int, regions: int) -> None:
    shape = (regions, chunks // regions * ELEMENTS)
    zarr.create_array(store, name="a", shape=shape, chunks=(1, ELEMENTS), dtype="i4")


def ours(spark: SparkSession, folder: str, chunks: int, regions: int) -> dict[str, float]:
    config = with_rule(RepositoryConfig(), "/a", (1, chunks // regions))
    repo = Repository.create(folder, config=config)
    started = time.perf_counter()
    session = repo.writable_session("main")
    create(session.store, chunks, regions)
    with watched() as watch:
        staged = ice.write(spark, ice.plan(session, "a"), compute)
        written = time.perf_counter()
        session.commit("all")
        committed = time.perf_counter()
    if staged.chunks != chunks:
        raise AssertionError(f"{staged.chunks} chunks were written, not {chunks}")
    return {
        "write_s": written - started,
        "commit_s": committed - written,
        "write_cpu": watch.cpu_s,
        "growth_mb": watch.growth_mb,
        "objects": float(len(os.listdir(Path(folder) / "chunks"))),
    }


def write_fork(fork: Any, row: int) -> Any:
    """What one official worker does: a region, in blocks of the same size as ours."""
    array = zarr.open_array(fork.store, path="a")
    for first, last in blocks(array.shape[1]):
        array[row, first:last] = values(row, first, last)
    return fork


def official(folder: str, chunks: int, regions: int) -> dict[str, float]:
    config = icechunk.RepositoryConfig.default()
    split = {
        icechunk.ManifestSplitCondition.AnyArray(): {
            icechunk.ManifestSplitDimCondition.Axis(0): 1,
            icechunk.ManifestSplitDimCondition.Any(): chunks // regions,
        }
    }
    config.manifest = icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict(split)
    )
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(folder), config)
    started = time.perf_counter()
    session = repo.writable_session("main")
    create(session.store, chunks, regions)
    session.commit("empty")
    session = repo.writable_session("main")
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool, watched() as watch:
        forks = [pool.submit(write_fork, session.fork(), row) for row in range(regions)]
        session.merge(*(fork.result() for fork in forks))
        written = time.perf_counter()
        session.commit("all")
        committed = time.perf_counter()
    return {
        "write_s": written - started,
        "commit_s": committed - written,
        "write_cpu": watch.cpu_s,
        "growth_mb": watch.growth_mb,
        "objects": float(len(os.listdir(Path(folder) / "chunks"))),
    }


def check(folder: str, regions: int) -> None:
    """Raises AssertionError unless the official library reads a region of ours as it was meant."""
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    last = min(BLOCK, array.shape[1])
    found = array[regions - 1, : 10 * ELEMENTS]
    np.testing.assert_array_equal(found, values(regions - 1, 0, last)[: 10 * ELEMENTS])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10**6)
    parser.add_argument("--regions", type=int, default=10)
    parser.add_argument("--no-official", action="store_true", help="measure our side only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-write-") as folder:
        spark = start_spark()
        mine = ours(spark, f"{folder}/ours", given.chunks, given.regions)
        spark.stop()
        check(f"{folder}/ours", given.regions)
        print(json.dumps({"side": "icefloe on Spark", "chunks": given.chunks} | mine))
        holds = mine["growth_mb"] < MAX_GROWTH_MB and mine["commit_s"] < MAX_COMMIT_SECONDS
        if not given.no_official:
            theirs = official(f"{folder}/official", given.chunks, given.regions)
            print(json.dumps({"side": "official forks", "chunks": given.chunks} | theirs))
            ratio = (mine["write_s"] + mine["commit_s"]) / (theirs["write_s"] + theirs["commit_s"])
            print(json.dumps({"ratio": ratio, "bar": BAR}))
            holds &= ratio <= BAR
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
