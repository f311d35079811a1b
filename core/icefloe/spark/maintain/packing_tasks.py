"""What repacking runs on executors: finding small objects, and copying their chunks into packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes import grid
from icefloe.format.chunk_refs import ChunkRefs, RefKind
from icefloe.format.ids import ChunkId, ManifestId, NodeId, as_keys
from icefloe.maintenance.id_sets import IdSet
from icefloe.rewriting import Copier, in_small_objects, native
from icefloe.spark.maintain.jobs import ROWS_PER_TASK
from icefloe.spark.regions import write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.nodes import Node
    from icefloe.format.ragged import Bytes
    from icefloe.session import Session
    from icefloe.spark.maintain.staging import Run, Staging
    from icefloe.spark.regions import WrittenManifest
    from icefloe.spark.source import Source

_REF = np.dtype([("id", "V12"), ("length", "<u8"), ("pair", "<u4")])
_USE = np.dtype([("pair", "<u4"), ("id", "V12")])


@dataclass(frozen=True, slots=True)
class Pair:
    """An array and one of its manifests, as long as its grid stays."""

    path: str
    node: bytes
    manifest: bytes
    limits: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, manifest: Bytes) -> Pair:
        limits = () if node.array is None else tuple(grid(node.array).tolist())
        return cls(node.path, node.id.raw, manifest.tobytes(), limits)


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a repacking share."""

    source: Source
    staging: Staging
    pairs: tuple[Pair, ...]
    small: int
    """Objects of fewer bytes in use are small."""

    def refs(self, session: Session, numbers: Sequence[int]) -> Iterator[tuple[int, ChunkRefs]]:
        """The references of pairs, as far as the arrays have them."""
        ids = [ManifestId(self.pairs[number].manifest) for number in numbers]
        manifests = session.context.assets.manifests(ids)
        for number, manifest in zip(numbers, manifests, strict=True):
            pair = self.pairs[number]
            refs = manifest.array(NodeId(pair.node)) or ChunkRefs.empty(len(pair.limits))
            yield number, refs.take((refs.index < np.array(pair.limits, np.uint32)).all(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Small:
    """The small objects in one part of the ids, and who refers to them."""

    objects: int
    used: int
    """Objects, counted for each array that uses them."""
    pair: NDArray[np.int64]
    size: NDArray[np.int64]
    count: NDArray[np.int64]
    run: Run
    """A part for each pair."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The new manifests of pairs, by their numbers, and how many packs there are."""

    written: list[tuple[int, WrittenManifest]]
    packs: int


def stage_refs(work: Work, numbers: range) -> list[Run]:
    """Leave all references to native chunks in storage, for a part of the pairs."""
    session = work.source.open()
    waiting: list[NDArray[np.void]] = []
    runs: list[Run] = []
    for number, found in work.refs(session, numbers):
        refs = native(found)
        rows = np.empty(len(refs), _REF)
        rows["id"] = _void(refs.chunk_id)
        rows["length"], rows["pair"] = refs.length, number
        waiting.append(rows)
        if sum(map(len, waiting)) >= ROWS_PER_TASK:
            runs.append(_stage(work, waiting))
            waiting = []
    if waiting:
        runs.append(_stage(work, waiting))
    return runs


def _stage(work: Work, waiting: list[NDArray[np.void]]) -> Run:
    rows = np.concatenate(waiting)
    rows = rows[np.argsort(as_keys(_ids(rows)), kind="stable")]
    return work.staging.put_sorted(_bytes(rows))


def find_small(work: Work, runs: Sequence[Run], span: range) -> Small:
    """Add up what is in use of each object in a part of the ids."""
    rows = work.staging.rows(runs, span, _REF.itemsize).copy().view(_REF).ravel()
    rows = rows[in_small_objects(_ids(rows), rows["length"], work.small)]
    rows = rows[np.argsort(rows["pair"], kind="stable")]
    uses = np.empty(len(rows), _USE)
    uses["pair"], uses["id"] = rows["pair"], rows["id"]
    pair, first, count = np.unique(rows["pair"], return_index=True, return_counts=True)
    size = np.add.reduceat(rows["length"].astype(np.int64), first) if len(first) else count
    cuts = np.searchsorted(rows["pair"], np.arange(len(work.pairs) + 1))
    # One number for each array, so that an object counts once for it.
    nodes = np.frombuffer(b"".join(pair.node for pair in work.pairs), f"S{NodeId.SIZE}")
    arrays = np.unique(nodes, return_inverse=True)[1]
    owned = np.empty(len(rows), _USE)
    owned["pair"], owned["id"] = arrays[rows["pair"]], rows["id"]
    return Small(
        len(np.unique(as_keys(_ids(rows)))),
        len(np.unique(as_keys(_bytes(owned)))),
        pair.astype(np.int64),
        size,
        count,
        work.staging.put(_bytes(uses), cuts),
    )


def pack(work: Work, small: Sequence[Run], target: int, numbers: list[int]) -> Packed:
    """Copy the small chunks of some pairs, and write their manifests anew.

    The references are read twice, so that only those to small objects are held meanwhile.
    """
    session = work.source.open()
    wanted = _small_ids(work, small, numbers)
    copier = Copier(session.context.assets, target, work.small)
    moved = copier.move([*_chosen(work, session, numbers, wanted)])
    written = []
    for (number, refs), mine in zip(work.refs(session, numbers), moved, strict=True):
        rows = _in_small(refs, wanted)
        joined = ChunkRefs.concat([refs.take(~rows), mine]).sorted()
        manifest = write_manifest(session, work.pairs[number].path, joined)
        if manifest is not None:
            written.append((number, manifest))
    return Packed(written, copier.packs)


def _small_ids(work: Work, small: Sequence[Run], numbers: list[int]) -> IdSet:
    parts = range(min(numbers), max(numbers) + 1)
    rows = work.staging.rows(small, parts, _USE.itemsize).copy().view(_USE).ravel()
    return IdSet(_ids(rows))


def _chosen(work: Work, session: Session, numbers: list[int], wanted: IdSet) -> Iterator[ChunkRefs]:
    for _, refs in work.refs(session, numbers):
        yield native(refs.take(_in_small(refs, wanted)))


def _in_small(refs: ChunkRefs, wanted: IdSet) -> NDArray[np.bool_]:
    is_native: NDArray[np.bool_] = refs.kind == RefKind.NATIVE
    return is_native & wanted.contains(refs.chunk_id)


def _void(ids: Bytes) -> NDArray[np.void]:
    return np.ascontiguousarray(ids).view(f"V{ChunkId.SIZE}").ravel()


def _ids(rows: NDArray[np.void]) -> Bytes:
    return np.ascontiguousarray(rows["id"]).view(np.uint8).reshape(-1, ChunkId.SIZE)


def _bytes(rows: NDArray[np.void]) -> Bytes:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(-1, rows.dtype.itemsize)
