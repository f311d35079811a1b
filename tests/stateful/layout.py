"""What must hold of the files of every snapshot, whoever wrote it."""

from itertools import pairwise

import numpy as np

from icefloe.assets import Assets
from icefloe.changes import grid
from icefloe.format.ids import ManifestId, SnapshotId


def check_layout(storage, snapshot_id):
    """Nodes in order, manifests as listed, references sorted and inside tight, disjoint extents."""
    assets = Assets(storage)
    snapshot = assets.snapshot(SnapshotId.parse(snapshot_id))
    nodes = [snapshot.nodes[row] for row in range(len(snapshot.nodes))]
    raw = [node.path.encode() for node in nodes]
    assert raw == sorted(set(raw)), "nodes are sorted by the bytes of their paths, each once"
    assert len({node.id for node in nodes}) == len(nodes)
    counts = {}
    for node in nodes:
        if node.array is not None:
            check_array(assets, node, counts)
    check_files(assets, snapshot.manifest_files, counts)


def check_array(assets, node, counts):
    limits = grid(node.array)
    manifests = node.array.manifests
    assert manifests.extents.shape == (len(manifests), len(limits), 2)
    seen = []
    for manifest_id, extent in zip(manifests.ids(), manifests.extents, strict=True):
        manifest = assets.manifest(manifest_id)
        counts[manifest_id] = manifest.count
        refs = manifest.array(node.id)
        assert refs is not None, "a manifest holds the array that lists it"
        assert len(refs), "a manifest without references is never listed"
        index = [tuple(row) for row in refs.index.tolist()]
        assert index == sorted(set(index)), "references are sorted, each once"
        assert (refs.index < limits).all(), "no reference lies outside the grid"
        tight = np.stack([refs.index.min(axis=0), refs.index.max(axis=0) + 1], axis=1)
        np.testing.assert_array_equal(extent, tight.reshape(extent.shape))
        seen += index
    assert len(seen) == len(set(seen)), "a chunk has one reference"
    check_disjoint(node.path, manifests.extents.astype(np.int64))


def check_disjoint(path, extents):
    for first in range(len(extents)):
        for second in range(first):
            low = np.maximum(extents[first, :, 0], extents[second, :, 0])
            high = np.minimum(extents[first, :, 1], extents[second, :, 1])
            assert not (low < high).all(), f"extents of {path} overlap"


def check_files(assets, files, counts):
    listed = [row.tobytes() for row in files.id]
    assert all(a < b for a, b in pairwise(listed)), "manifest files are sorted by id"
    assert {ManifestId(raw) for raw in listed} == counts.keys()
    for raw, size, count in zip(listed, files.size_bytes, files.num_chunk_refs, strict=True):
        manifest_id = ManifestId(raw)
        assert int(size) == assets.storage.info(f"manifests/{manifest_id}").size
        assert int(count) == counts[manifest_id]


def manifest_ids(storage, snapshot_id, path):
    """The manifests of one array, with their extents."""
    snapshot = Assets(storage).snapshot(SnapshotId.parse(snapshot_id))
    row = snapshot.nodes.row(path)
    manifests = snapshot.nodes[row].array.manifests
    return {
        str(manifest_id): [tuple(side) for side in extent.tolist()]
        for manifest_id, extent in zip(manifests.ids(), manifests.extents, strict=True)
    }
