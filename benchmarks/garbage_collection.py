"""Finding the garbage among a million objects on local disk.

A dry run, so that both libraries can look at the same objects: 800,000 chunks that one array refers
to, and 200,000 that nothing does. Each library runs in a process of its own, to know its memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import icechunk
import numpy as np
import zarr

from benchmarks.report import Result, table
from icefloe.assets import Assets
from icefloe.format import snapshot
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId, SnapshotId, encode_ids, random_ids
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ManifestRefs, Nodes
from icefloe.format.snapshot import ManifestFiles
from icefloe.maintenance.gc import garbage_collect
from icefloe.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

OBJECTS = 1_000_000
GRID = (80, 100, 100)
MANIFESTS = 8
TIME_BAR = 0.7
PEAK_BAR_MIB = 300.0
REPEATS = 5
SETTLING_SECONDS = 5


def run(repeats: int = REPEATS) -> Iterator[Result]:
    """Both libraries on one repository, taking turns."""
    with tempfile.TemporaryDirectory(prefix="icefloe-bench-") as name:
        folder = Path(name, "repo")
        build(folder)
        # Writing a million files back must not slow down whoever comes first.
        os.sync()
        time.sleep(SETTLING_SECONDS)
        turns = [(_measure("ours", folder), _measure("official", folder)) for _ in range(repeats)]
    ours, official = zip(*turns, strict=True)
    if {item["chunks"] for item in (*ours, *official)} != {OBJECTS - int(np.prod(GRID))}:
        raise AssertionError("the libraries do not agree on what is garbage")
    yield Result(
        "garbage among 10^6 local objects, dry run",
        min(item["seconds"] for item in ours),
        min(item["seconds"] for item in official),
        TIME_BAR,
    )
    peak = max(item["peak"] for item in ours)
    yield Result("peak memory of that", peak, PEAK_BAR_MIB, 1.0, "M")


def build(folder: Path, objects: int = OBJECTS, grid: tuple[int, ...] = GRID) -> NDArray[np.uint8]:
    """A repository with a million chunk objects of one byte, made in half a minute.

    Their ids: first those that an array of such a grid refers to, then those that nothing does.
    """
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=grid, chunks=(1, 1, 1), dtype="u1", filters=None
    )
    ids = random_ids(objects)
    _plant(folder, session.commit("An array"), ids[: int(np.prod(grid))], grid)
    chunks = folder / "chunks"
    chunks.mkdir(exist_ok=True)
    place = os.open(chunks, os.O_RDONLY)
    try:
        for name in encode_ids(ids).tolist():
            file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=place)
            os.write(file, b"x")
            os.close(file)
    finally:
        os.close(place)
    return ids


def _plant(folder: Path, snapshot_id: str, ids: NDArray[np.uint8], grid: tuple[int, ...]) -> None:
    """Give the array of a snapshot references to these chunks, in a few manifests."""
    assets = Assets(open_storage(folder))
    base = assets.snapshot(SnapshotId.parse(snapshot_id))
    row = base.nodes.row("/a") or 0
    node = base.nodes[row]
    if node.array is None:
        raise AssertionError("/a is an array")
    index = np.ascontiguousarray(np.indices(grid, np.uint32).reshape(len(grid), -1).T)
    boxes, files = [], []
    for number in range(MANIFESTS):
        rows = slice(number * len(ids) // MANIFESTS, (number + 1) * len(ids) // MANIFESTS)
        count = len(ids[rows])
        refs = ChunkRefs.native(
            index[rows], ids[rows], np.zeros(count, np.uint64), np.ones(count, np.uint64)
        )
        value = Manifest(ManifestId.random(), (ArrayManifest(node.id, refs),))
        edges = grid[0] * number // MANIFESTS, grid[0] * (number + 1) // MANIFESTS
        boxes.append((value.id, [edges, *((0, length) for length in grid[1:])]))
        files.append((value.id, assets.put_manifest(value), count))
    array = replace(node.array, manifests=ManifestRefs.of(boxes, len(grid)))
    others = [base.nodes[other] for other in range(len(base.nodes)) if other != row]
    changed = replace(
        base,
        nodes=Nodes.of([*others, replace(node, array=array)]),
        manifest_files=ManifestFiles.of(files),
    )
    Path(folder, "snapshots", snapshot_id).write_bytes(snapshot.encode(changed))


def _measure(library: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.garbage_collection", library, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(answer.stdout)
    return measured


def _collect(library: str, folder: str) -> dict[str, float]:
    """Seconds, peak memory in MiB, and the number of chunks found to be garbage."""
    cutoff = datetime.now(UTC) + timedelta(days=1)
    if library == "ours":
        assets = Assets(open_storage(folder))
        started = time.perf_counter()
        chunks = garbage_collect(assets, cutoff, dry_run=True).chunks_deleted
    else:
        icechunk.set_logs_filter("error")
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
        started = time.perf_counter()
        chunks = repo.garbage_collect(cutoff, dry_run=True).chunks_deleted
    return {"seconds": time.perf_counter() - started, "peak": _peak(), "chunks": chunks}


def _peak() -> float:
    """MiB that this process has ever held; getrusage would count the parent's before the exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not tell")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(_collect(*sys.argv[1:3])))
    else:
        print(table([*run()]))
