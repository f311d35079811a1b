"""Garbage collection and verification on Spark among a million objects on local disk.

800,000 chunks that one array refers to, and 200,000 that nothing does; some of the former are
missing or short. What is found must be exactly what was planted, and the driver must not grow with
the number of chunks: its memory is compared with that of a run over a hundredth of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.garbage_collection import build
from icefloe import Repository
from icefloe import spark as ice
from icefloe.format.ids import encode_ids

GRIDS = {10_000: (80, 10, 10), 1_000_000: (80, 100, 100)}
MISSING_EVERY, SHORT_EVERY = 10_000, 25_000
MAX_GROWTH_MIB = 100.0


def run() -> None:
    """Both sizes, and what they took."""
    peaks = {}
    for objects, grid in GRIDS.items():
        with tempfile.TemporaryDirectory(prefix="icefloe-bench-") as name:
            folder = Path(name, "repo")
            ids = build(folder, objects, grid)
            live = [item.decode() for item in encode_ids(ids[: int(np.prod(grid))]).tolist()]
            _damage(folder, live)
            found = _measure(folder)
            _check(found, folder, live, objects)
            _show(objects, found)
            peaks[objects] = found["peak"]
    small, large = peaks.values()
    growth = large - small
    print(f"the driver grew by {growth:.0f} MiB (at most {MAX_GROWTH_MIB:.0f})")
    if growth > MAX_GROWTH_MIB:
        raise AssertionError("the driver's memory grows with the number of chunks")


def _damage(folder: Path, live: list[str]) -> None:
    for name in live[::MISSING_EVERY]:
        (folder / "chunks" / name).unlink()
    for name in live[1::SHORT_EVERY]:
        (folder / "chunks" / name).write_bytes(b"")


def _measure(folder: Path) -> dict[str, float]:
    """Everything in a process of its own, to know the memory of its Python driver."""
    flags = "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell"
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": flags, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "benchmarks.spark_maintenance", str(folder)]
    answer = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=env | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    measured: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def _maintain(folder: str) -> dict[str, float]:
    spark = SparkSession.builder.getOrCreate()
    repo = Repository.open(folder)
    # The first job pays for the start of workers.
    ice.maintain.stats(spark, Repository.create(f"{folder}-warm"))
    times = [time.perf_counter()]
    findings = ice.maintain.verify(spark, repo, "objects")
    times.append(time.perf_counter())
    future = datetime.now(UTC) + timedelta(days=1)
    dry = ice.maintain.garbage_collect(spark, repo, future, dry_run=True)
    times.append(time.perf_counter())
    summary = ice.maintain.garbage_collect(spark, repo, future, force=True)
    times.append(time.perf_counter())
    kinds = [item.kind for item in findings]
    verify, rehearse, collect = np.diff(times).tolist()
    return {
        "verify": verify,
        "rehearse": rehearse,
        "collect": collect,
        "missing": kinds.count("missing-chunk"),
        "short": kinds.count("short-chunk"),
        "findings": len(kinds),
        "would_delete": dry.chunks_deleted,
        "deleted": summary.chunks_deleted,
        "peak": _peak(),
    }


def _check(found: dict[str, float], folder: Path, live: list[str], objects: int) -> None:
    missing, short = live[::MISSING_EVERY], live[1::SHORT_EVERY]
    if (found["missing"], found["short"]) != (len(missing), len(short)):
        raise AssertionError(f"other damage was found than was planted: {found}")
    if found["findings"] != len(missing) + len(short):
        raise AssertionError(f"more was found than was planted: {found}")
    orphans = objects - len(live)
    if (found["would_delete"], found["deleted"]) != (orphans, orphans):
        raise AssertionError(f"other garbage was found than was planted: {found}")
    left = {item.name for item in os.scandir(folder / "chunks")}
    if left != set(live) - set(missing):
        raise AssertionError("what is left is not what is live")


def _show(objects: int, found: dict[str, float]) -> None:
    print(
        f"{objects:>9,} objects: verify {found['verify']:.1f} s, "
        f"dry run {found['rehearse']:.1f} s, collect {found['collect']:.1f} s, "
        f"driver {found['peak']:.0f} MiB; "
        f"{found['deleted']:,.0f} orphans, {found['findings']:.0f} faults"
    )


def _peak() -> float:
    """MiB that this process has ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not tell")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_maintain(sys.argv[1])))
    else:
        run()
