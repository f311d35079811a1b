"""Reading and writing metadata files of a million references or 10^5 snapshots.

The yardstick is what the official library takes to commit the same references, or to create one
tag in the same repository. It has no call that takes native references, so it gets them by shifting
an array that holds them: the references enter its session and its commit writes them all.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import icechunk
import numpy as np
import zarr

import icefloe
from benchmarks.report import Result, best
from icefloe.assets import Assets
from icefloe.format import manifest, repo_info, snapshot
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId, random_ids
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ManifestRefs, Nodes
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import SnapshotInfo, Snapshots
from icefloe.format.snapshot import ManifestFiles
from icefloe.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

GRID = (100, 100, 100)
URLS = 10_000
SNAPSHOTS = 100_000
PEAK_BAR_MIB = 250.0


def run() -> Iterator[Result]:
    """All results, each as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="icefloe-bench-") as folder:
        yield from _references("native", native_refs(), Path(folder, "native"))
        yield from _references("virtual", virtual_refs(), Path(folder, "virtual"))
        yield _repo_object(Path(folder, "repo"))
    for kind in ("native", "virtual"):
        name = f"peak memory of encoding 10^6 {kind} refs"
        yield Result(name, _peak(kind), PEAK_BAR_MIB, 1.0, "M")


def _grid() -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    index = np.indices(GRID, np.uint32).reshape(len(GRID), -1).T
    return np.ascontiguousarray(index)


def native_refs() -> ChunkRefs:
    index = _grid()
    lengths = np.random.default_rng(0).integers(90_000, 110_000, len(index), np.uint64)
    return ChunkRefs.native(index, random_ids(len(index)), np.zeros(len(index), np.uint64), lengths)


def _urls() -> list[str]:
    return [f"s3://archive/era5/2020/{number:05}/t2m.nc" for number in range(URLS)]


def virtual_refs() -> ChunkRefs:
    index = _grid()
    which = np.arange(len(index), dtype=np.int64) // (len(index) // URLS)
    offsets = (np.arange(len(index), dtype=np.uint64) % 100) * 100_000 + 4096
    location = Ragged.of_text(_urls()).take(which)
    return ChunkRefs.virtual(index, location, offsets, np.full(len(index), 100_000, np.uint64))


def _references(kind: str, refs: ChunkRefs, folder: Path) -> Iterator[Result]:
    value = Manifest(ManifestId.random(), (ArrayManifest(NodeId.random(), refs),))
    data = manifest.encode(value)
    encoding = best(lambda: manifest.encode(value))
    decoding = best(lambda: manifest.decode(data))
    if not manifest.decode(data).equals(value):
        raise AssertionError("what was decoded is not what was encoded")
    official = _native_commit(refs, folder) if kind == "native" else _virtual_commit(folder)
    yield Result(f"encode 10^6 {kind} refs, against an official commit", encoding, official, 0.35)
    yield Result(f"decode 10^6 {kind} refs, against an official commit", decoding, official, 0.35)


def _native_commit(refs: ChunkRefs, folder: Path) -> float:
    """Seconds that the official library takes to commit these references, best of two."""
    repo = icefloe.Repository.create(folder)
    with repo.transaction("main", message="An array") as store:
        zarr.create_array(store, name="a", shape=GRID, chunks=(1, 1, 1), dtype="u1", filters=None)
    _plant(folder, repo.lookup_branch("main"), refs)
    official = _official(folder)
    times = []
    for _ in range(2):
        session = official.writable_session("main")
        session.shift_array("/a", (1, 0, 0))
        started = time.perf_counter()
        session.commit("Shifted", allow_empty=True)
        times.append(time.perf_counter() - started)
    return min(times)


def _plant(folder: Path, snapshot_id: str, refs: ChunkRefs) -> None:
    """Give the array of a snapshot these references; the chunks themselves are never read."""
    assets = Assets(open_storage(folder))
    base = assets.snapshot(SnapshotId.parse(snapshot_id))
    row = base.nodes.row("/a") or 0
    node = base.nodes[row]
    value = Manifest(ManifestId.random(), (ArrayManifest(node.id, refs),))
    size = assets.put_manifest(value)
    box = [(0, length) for length in GRID]
    if node.array is None:
        raise AssertionError("/a is an array")
    array = replace(node.array, manifests=ManifestRefs.of([(value.id, box)], len(GRID)))
    others = [base.nodes[other] for other in range(len(base.nodes)) if other != row]
    changed = replace(
        base,
        nodes=Nodes.of([*others, replace(node, array=array)]),
        manifest_files=ManifestFiles.of([(value.id, size, len(refs))]),
    )
    Path(folder, "snapshots", snapshot_id).write_bytes(snapshot.encode(changed))


def _virtual_commit(folder: Path) -> float:
    """Seconds that the official library takes to commit the virtual references."""
    config = icechunk.RepositoryConfig.default()
    store_config = icechunk.s3_store(region="us-east-1")
    container = icechunk.VirtualChunkContainer("s3://archive/", store_config)
    config.set_virtual_chunk_container(container)
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)), config=config)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=GRID, chunks=(1, 1, 1), dtype="u1", filters=None
    )
    count = int(np.prod(GRID))
    urls = _urls()
    locations = [urls[number // (count // URLS)] for number in range(count)]
    offsets = (np.arange(count, dtype=np.uint64) % 100) * 100_000 + 4096
    session.store.set_virtual_refs_arr(
        "/a",
        chunk_grid_shape=GRID,
        locations=locations,
        offsets=offsets,
        lengths=np.full(count, 100_000, np.uint64),
        validate_containers=False,
    )
    started = time.perf_counter()
    session.commit("A million references")
    return time.perf_counter() - started


def _repo_object(folder: Path) -> Result:
    """One more snapshot among 10^5, against one official tag."""
    icefloe.Repository.create(folder)
    path = folder / "repo"
    path.write_bytes(repo_info.encode(_crowded(repo_info.decode(path.read_bytes()))))
    data = path.read_bytes()
    raw = SnapshotId.random()
    now = time.time_ns() // 1000

    def add() -> bytes:
        info = SnapshotInfo(raw, INITIAL_SNAPSHOT_ID, now, "One more", {"day": 1})
        return repo_info.encode(repo_info.decode(data).with_snapshot(info))

    ours = best(add, 5)
    official = _official(folder)
    tip = official.lookup_branch("main")
    numbers = iter(range(100))
    theirs = best(lambda: official.create_tag(f"tag-{next(numbers)}", tip), 5)
    return Result("repo object of 10^5 snapshots, against an official tag", ours, theirs, 0.6)


def _crowded(info: repo_info.RepoInfo) -> repo_info.RepoInfo:
    """The repo object with 10^5 snapshots in one line of history, with messages and metadata."""
    started = int(info.snapshots.flushed_at[0])
    ids = sorted(row.tobytes() for row in random_ids(SNAPSHOTS))
    order = np.random.default_rng(0).permutation(SNAPSHOTS)
    names = [SnapshotId(raw) for raw in ids]
    parents = [INITIAL_SNAPSHOT_ID, *(names[row] for row in order[:-1])]
    infos = [
        SnapshotInfo(
            names[row],
            parents[number],
            started + number + 1,
            f"Append hour {number}",
            {"hour": number, "run": f"scheduled__{number:06}"},
        )
        for number, row in enumerate(order)
    ]
    root = info.snapshots[0]
    snapshots = Snapshots.of([root, *infos])
    tip = snapshots.row(names[order[-1]]) or 0
    return replace(info, snapshots=snapshots, branches=repo_info.Refs.of({"main": tip}))


def _official(folder: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))


def _peak(kind: str) -> float:
    """MiB that encoding takes above its input, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.encode_peak", kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
