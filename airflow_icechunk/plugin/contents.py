"""What a snapshot holds, and what changed from one to another."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_icechunk.plugin import graph
from airflow_icechunk.plugin.errors import ViewError
from icefloe import NotFoundError
from icefloe.history import diff, steps_between
from icefloe.refs import snapshot_row

if TYPE_CHECKING:
    from airflow_icechunk.plugin.repositories import OpenRepository
    from icefloe.format.ids import SnapshotId
    from icefloe.format.nodes import Nodes
    from icefloe.format.repo_info import RepoInfo

MAX_ARRAYS = 300
MAX_PATHS = 300
"""Of each kind of change."""
MAX_STEPS = 100
"""Snapshots between two that are compared."""
MAX_LOG_BYTES = 32 * 2**20
"""Transaction logs above this size are not read: they would fill the memory of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    path: str
    shape: list[int]
    chunks: list[int] | None
    dtype: str
    dimensions: list[str | None] | None
    codecs: list[str]
    num_chunks: int
    """That the grid has; some may never have been written."""
    manifests: int
    size_bytes: int | None
    """Of the values, not compressed; None where the type does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    groups: int
    arrays: int
    listed: list[Array]
    """The first ones, by path."""
    manifests: int
    manifest_bytes: int
    chunk_refs: int
    """Chunks that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChanges:
    path: str
    count: int
    box: list[list[int]]
    """For each dimension of the chunk grid, the first and the last index that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Paths, the first ones of each kind; `counts` has how many there are."""

    new_groups: list[str]
    new_arrays: list[str]
    updated_groups: list[str]
    updated_arrays: list[str]
    deleted_groups: list[str]
    deleted_arrays: list[str]
    moved: list[tuple[str, str]]
    chunks: list[ChunkChanges]
    counts: dict[str, int]


def contents(opened: OpenRepository, info: RepoInfo, snapshot_id: str) -> Contents:
    """The arrays of a snapshot.

    :raises icefloe.NotFoundError: there is no such snapshot.
    """
    row = snapshot_row(info, snapshot_id)
    snapshot = opened.assets.snapshot(info.snapshots.id_at(row))
    nodes, files = snapshot.nodes, snapshot.manifest_files
    arrays = np.flatnonzero(nodes.rank >= 0)
    return Contents(
        groups=len(nodes) - len(arrays),
        arrays=len(arrays),
        listed=[_array(nodes, row) for row in arrays[:MAX_ARRAYS].tolist()],
        manifests=len(files),
        manifest_bytes=int(files.size_bytes.sum()),
        chunk_refs=int(files.num_chunk_refs.sum()),
    )


def changes(opened: OpenRepository, info: RepoInfo, old_id: str, new_id: str) -> Changes:
    """What changed from a snapshot to a later one.

    :raises icefloe.NotFoundError: one of them is not there, or a transaction log is gone.
    :raises icefloe.InvalidInputError: the first is not an ancestor of the second.
    :raises ViewError: there is too much between them.
    """
    old, new = snapshot_row(info, old_id), snapshot_row(info, new_id)
    _check_size(opened, info, old, new)
    found = diff(opened.assets, info, old, new)
    kinds = {
        name: sorted(getattr(found, name))
        for name in (
            "new_groups",
            "new_arrays",
            "updated_groups",
            "updated_arrays",
            "deleted_groups",
            "deleted_arrays",
        )
    }
    counts = {name: len(paths) for name, paths in kinds.items()}
    counts |= {"moved": len(found.moved_nodes), "chunks": len(found.chunk_index)}
    listed = sorted(found.chunk_index.items())[:MAX_PATHS]
    return Changes(
        **{name: paths[:MAX_PATHS] for name, paths in kinds.items()},
        moved=[*found.moved_nodes[:MAX_PATHS]],
        chunks=[
            ChunkChanges(path=path, count=len(index), box=_box(index)) for path, index in listed
        ],
        counts=counts,
    )


def _check_size(opened: OpenRepository, info: RepoInfo, old: int, new: int) -> None:
    parent, snapshots = info.snapshots.parent, info.snapshots
    if not graph.descendants(parent, old)[new]:
        raise ViewError(
            422, f"{snapshots.id_at(old)} is not in the history of {snapshots.id_at(new)}."
        )
    depth = graph.depths(parent)
    if depth[new] - depth[old] > MAX_STEPS:
        raise ViewError(422, f"More than {MAX_STEPS} snapshots lie between these two.")
    logs = [log for step in steps_between(info, snapshots.id_at(old), new) for log in step.logs]
    size = sum(_log_size(opened, log) for log in logs[:MAX_STEPS])
    if size > MAX_LOG_BYTES or len(logs) > MAX_STEPS:
        raise ViewError(
            422, f"Too much changed to show it here: {len(logs)} logs of {size >> 20} MiB."
        )


def _log_size(opened: OpenRepository, snapshot_id: SnapshotId) -> int:
    try:
        return opened.assets.storage.info(f"transactions/{snapshot_id}").size
    except NotFoundError:
        # Reading it will say so in better words.
        return 0


def _box(index: Any) -> list[list[int]]:
    if not len(index):
        return []
    return [
        [low, high]
        for low, high in zip(index.min(axis=0).tolist(), index.max(axis=0).tolist(), strict=True)
    ]


def _array(nodes: Nodes, row: int) -> Array:
    node = nodes[row]
    known = node.array
    shape = [] if known is None else [dimension.array_length for dimension in known.shape]
    metadata = _zarr_metadata(node.user_data)
    dtype = _type_name(metadata.get("data_type"))
    return Array(
        path=node.path,
        shape=shape,
        chunks=_chunk_shape(metadata),
        dtype=dtype,
        dimensions=None if known is None or not known.dimension_names else [*known.dimension_names],
        codecs=_codec_names(metadata),
        num_chunks=0 if known is None else math.prod(it.num_chunks for it in known.shape),
        manifests=0 if known is None else len(known.manifests),
        size_bytes=_size(shape, dtype),
    )


def _zarr_metadata(data: bytes) -> dict[str, Any]:
    """What zarr.json says; anyone may have written it, so nothing about it is sure."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _type_name(data_type: Any) -> str:
    if isinstance(data_type, dict):
        data_type = data_type.get("name")
    return data_type if isinstance(data_type, str) else "?"


def _chunk_shape(metadata: dict[str, Any]) -> list[int] | None:
    try:
        found = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    except (KeyError, TypeError):
        return None
    is_shape = isinstance(found, list) and all(isinstance(size, int) for size in found)
    return found if is_shape else None


def _codec_names(metadata: dict[str, Any]) -> list[str]:
    codecs = metadata.get("codecs")
    if not isinstance(codecs, list):
        return []
    return [str(codec.get("name", "?")) for codec in codecs if isinstance(codec, dict)]


def _size(shape: list[int], dtype: str) -> int | None:
    try:
        item = np.dtype(dtype).itemsize
    except TypeError:
        return None
    return math.prod(shape) * item if item else None
