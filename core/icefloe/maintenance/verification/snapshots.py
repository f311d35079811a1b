"""Checks of snapshot files: nodes in order, and in agreement with their zarr.json."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import header, paths, snapshot, wire
from icefloe.format.ids import as_keys
from icefloe.format.ragged import starts
from icefloe.format.reading import Buffer, ids_ascend
from icefloe.maintenance.verification.findings import (
    RESTORE,
    REWRITE_MANIFESTS,
    Finding,
    Severity,
    unreadable,
    wrong_id,
)
from icefloe.zarr_metadata import array_data

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.ids import SnapshotId
    from icefloe.format.nodes import ArrayData, Node, Nodes
    from icefloe.format.ragged import Ints
    from icefloe.format.snapshot import Snapshot
    from icefloe.maintenance.verification.catalogue import Catalogue
    from icefloe.maintenance.verification.findings import Sourced

_BLOCK = 256
_REWRITE_NODES = "commit any change with icefloe: it writes all nodes in order"


class SnapshotChecks:
    """Remembers which nodes it has seen, because most snapshots share most of them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._seen: set[Hashable] = set()

    def check(
        self, snapshot_id: SnapshotId, flushed_at: int, key: str, data: bytes
    ) -> Iterator[Sourced]:
        """Check a file, of which the repo object tells the id and the time."""
        try:
            value = snapshot.decode(data, name=key)
        except FormatError as error:
            yield unreadable(key, error), None
            return
        for finding in _check_file(key, data, value, snapshot_id, flushed_at):
            yield finding, None
        self._catalogue.add_files(value.manifest_files, key)
        yield from self._check_nodes(key, value.nodes)

    def _check_nodes(self, key: str, nodes: Nodes) -> Iterator[Sourced]:
        for row, identity in enumerate(_identities(nodes)):
            if identity in self._seen:
                continue
            self._seen.add(identity)
            node = nodes[row]
            self._catalogue.add_node(node, key)
            for check in (_check_path, _check_zarr_json, _check_extents):
                for finding in check(key, node):
                    yield finding, blake2b(repr(identity).encode(), digest_size=16).hexdigest()


def _check_file(
    key: str, data: bytes, value: Snapshot, snapshot_id: SnapshotId, flushed_at: int
) -> Iterator[Finding]:
    if value.id != snapshot_id:
        yield wrong_id(key, value.id)
    if value.flushed_at != flushed_at:
        message = "it was written at another time than the repo object says"
        yield _finding("warning", "time-mismatch", key, message, "trust the repo object")
    yield from _check_order(key, data)
    yield from _check_manifest_list(key, value)
    yield from _check_tree(key, value.nodes)


def _identities(nodes: Nodes) -> Iterator[Hashable]:
    """For each node, something that is equal only if everything about it is."""
    manifests = [*zip(map(bytes, nodes.manifest_id), nodes.extents.tolist(), strict=True)]
    shapes = [*zip(nodes.array_length.tolist(), nodes.num_chunks.tolist(), strict=True)]
    return zip(
        map(bytes, nodes.id),
        nodes.path.tolist(),
        nodes.user_data.tolist(),
        _lists(manifests, nodes.manifest_count),
        _lists(shapes, nodes.rank),
        _lists(nodes.dimension_name.tolist(), nodes.name_count),
        strict=True,
    )


def _lists[T](items: Sequence[T], count: Ints) -> Iterator[tuple[T, ...] | None]:
    """Items laid end to end, as many for each node as `count` says; None for -1."""
    first = starts(np.maximum(count, 0)).tolist()
    for start, own in zip(first, count.tolist(), strict=True):
        yield None if own < 0 else tuple(items[start : start + own])


def _check_order(key: str, data: bytes) -> Iterator[Finding]:
    """Reading sorts what the file has in another order, so look at the file."""
    _, payload = header.unpack(data, header.FileType.SNAPSHOT, name=key)
    root = Buffer(payload, key).root(wire.SNAPSHOT)
    names = [name or b"" for name in root.tables("nodes")[1].text("path").tolist()]
    if names != sorted(names):
        message = "the nodes do not ascend by the bytes of their path: other clients miss some"
        yield _finding("error", "unsorted-nodes", key, message, _REWRITE_NODES)
    if not ids_ascend(root.tables("manifest_files_v2")[1].struct("id")):
        message = "the manifests do not ascend by id: other clients may miss some"
        yield _finding("warning", "unsorted-manifests", key, message, _REWRITE_NODES)


def _check_manifest_list(key: str, value: Snapshot) -> Iterator[Finding]:
    used = np.unique(as_keys(value.nodes.manifest_id))
    if not np.array_equal(used, np.unique(as_keys(value.manifest_files.id))):
        message = "its list of manifests is not that of its nodes: other clients delete too much"
        yield _finding("error", "manifest-list-mismatch", key, message, _REWRITE_NODES)


def _check_tree(key: str, nodes: Nodes) -> Iterator[Finding]:
    if len(np.unique(as_keys(nodes.id))) < len(nodes):
        yield _finding("error", "duplicate-node", key, "two nodes have one id", RESTORE)
    names = nodes.path.texts()
    arrays = {name for name, rank in zip(names, nodes.rank.tolist(), strict=True) if rank >= 0}
    for name in names:
        if name != paths.ROOT and (name.rpartition("/")[0] or paths.ROOT) in arrays:
            message = "it lies in an array"
            yield _finding("error", "node-below-array", key, message, "delete the node", name)


def _check_path(key: str, node: Node) -> Iterator[Finding]:
    try:
        paths.validate(node.path)
    except InvalidInputError as error:
        yield _finding("error", "invalid-path", key, error.message, "delete the node", node.path)


@lru_cache(1024)
def _described(zarr_json: bytes, path: str) -> ArrayData | str | None:
    """What zarr.json says of an array, None for a group, and a text if it is neither."""
    try:
        return array_data(zarr_json, path)
    except InvalidInputError as error:
        return error.message


def _check_zarr_json(key: str, node: Node) -> Iterator[Finding]:
    described = _described(node.user_data, node.path)
    fix = "write zarr.json of the node again"
    if isinstance(described, str):
        yield _finding("error", "invalid-zarr-metadata", key, described, fix, node.path)
    elif described is None or node.array is None:
        if described is not node.array:
            message = "zarr.json and the snapshot disagree whether it is an array"
            yield _finding("error", "metadata-mismatch", key, message, fix, node.path)
    elif described.shape != node.array.shape:
        message = f"zarr.json has {described.shape}, the snapshot {node.array.shape}"
        yield _finding("error", "metadata-mismatch", key, message, fix, node.path)
    elif described.dimension_names != node.array.dimension_names:
        theirs, ours = described.dimension_names, node.array.dimension_names
        message = f"zarr.json names the dimensions {theirs}, the snapshot {ours}"
        yield _finding("warning", "metadata-mismatch", key, message, fix, node.path)


def _check_extents(key: str, node: Node) -> Iterator[Finding]:
    if node.array is None:
        return
    boxes = node.array.manifests.extents
    if bool((boxes[:, :, 0] >= boxes[:, :, 1]).any()):
        message = "a manifest covers no chunks"
        yield _finding("error", "empty-extents", key, message, REWRITE_MANIFESTS, node.path)
    elif _overlap(boxes):
        message = "two manifests cover the same chunks: readers take either"
        yield _finding("error", "overlapping-extents", key, message, REWRITE_MANIFESTS, node.path)


def _overlap(boxes: NDArray[np.uint32]) -> bool:
    """Whether two boxes of (n, dimensions, 2) share a point; those without dimensions all do."""
    low, high = boxes[:, :, 0], boxes[:, :, 1]
    for start in range(0, len(boxes), _BLOCK):
        rows = slice(start, start + _BLOCK)
        shared = np.ones((len(low[rows]), len(boxes) - start), np.bool_)
        for axis in range(boxes.shape[1]):
            shared &= low[rows, None, axis] < high[None, start:, axis]
            shared &= low[None, start:, axis] < high[rows, None, axis]
        if bool(np.triu(shared, 1).any()):
            return True
    return False


def _finding(
    severity: Severity,
    kind: str,
    file: str,
    message: str,
    what_to_do: str,
    array: str | None = None,
) -> Finding:
    return Finding(
        severity=severity, kind=kind, file=file, array=array, message=message, what_to_do=what_to_do
    )
