"""What can be large is read and written without a Python loop over its records.

Counted, not timed: ten times the records must not execute more lines of icefloe.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fuzz_format import CORPUS
from icefloe.format import manifest, repo_info, snapshot, transaction_log
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId, random_ids
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ArrayData, DimensionShape, ManifestRefs, Node, Nodes
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import SnapshotInfo, Snapshots
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import Update, UpdateKind, Updates

FEW, MANY = 2000, 20_000
# Ancestors 1, 2, 4... steps away, and runs of each distinct length, take a loop of their own.
SLACK = 60


def index_of(count):
    return np.stack(np.unravel_index(np.arange(count), (count, 1, 1)), 1).astype(np.uint32)


def manifest_of(refs):
    return Manifest(ManifestId(bytes(12)), (ArrayManifest(NodeId(bytes(8)), refs),))


def native(count):
    ones = np.ones(count, np.uint64)
    return manifest, manifest_of(ChunkRefs.native(index_of(count), random_ids(count), ones, ones))


def virtual(count):
    urls = Ragged.of_text(f"s3://bucket/some/prefix/{n:06}.nc" for n in range(count))
    ones = np.ones(count, np.uint64)
    refs = ChunkRefs.virtual(index_of(count), urls, ones, ones, checksum_etag=urls)
    return manifest, manifest_of(refs)


def inline(count):
    data = Ragged.of(b"%03d" % (n % 1000) for n in range(count))
    return manifest, manifest_of(ChunkRefs.of_inline(index_of(count), data))


def log(count):
    chunks = {NodeId(bytes(8)): index_of(count)}
    return transaction_log, TransactionLog(id=INITIAL_SNAPSHOT_ID, updated_chunks=chunks)


def nodes(count):
    ids = [ManifestId(row.tobytes()) for row in random_ids(count)]
    tree = [
        Node(
            NodeId(n.to_bytes(8)),
            f"/group/{n:06}",
            b"{}",
            ArrayData(
                (DimensionShape(9, 3), DimensionShape(8, 2)),
                ("x", None),
                ManifestRefs.of([(ids[n], [(0, 3), (0, 2)])], 2),
            ),
        )
        for n in range(count)
    ]
    value = Snapshot(
        id=INITIAL_SNAPSHOT_ID,
        nodes=Nodes.of(tree),
        manifest_files=ManifestFiles.of([(manifest_id, 100, 7) for manifest_id in ids]),
        flushed_at=1,
        message="",
    )
    return snapshot, value


def repo(count):
    names = [SnapshotId(n.to_bytes(12)) for n in range(count)]
    infos = [
        SnapshotInfo(name, names[n - 1] if n else None, n, f"Commit {n:06}", {"run": f"{n:06}"})
        for n, name in enumerate(names)
    ]
    commits = [
        Update(kind=UpdateKind.NEW_COMMIT, updated_at=n, name="main", new_snap_id=name)
        for n, name in enumerate(names)
    ]
    value = repo_info.decode((CORPUS / "repo_info-small").read_bytes())
    return repo_info, replace(value, snapshots=Snapshots.of(infos), updates=Updates.of(commits))


def lines_executed(work):
    """How many lines of icefloe the work executes, each turn of a loop counted."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "icefloe" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("make", [native, virtual, inline, log, nodes, repo])
def test_ten_times_the_records_take_no_more_lines(make):
    counts = {}
    for size in (FEW, MANY):
        module, value = make(size)
        data = module.encode(value)
        assert module.decode(data).equals(value)
        counts[size] = [
            lines_executed(partial(module.decode, data)),
            lines_executed(partial(module.encode, value)),
        ]
    for few, many in zip(counts[FEW], counts[MANY], strict=True):
        assert few > 50
        assert abs(many - few) <= SLACK


def test_one_snapshot_more_takes_no_loop_over_the_others():
    new = SnapshotInfo(SnapshotId(b"\xff" * 12), None, 1, "One more", {"run": "x"})
    few, many = (lines_executed(partial(repo(size)[1].with_snapshot, new)) for size in (FEW, MANY))
    assert abs(many - few) <= SLACK
