"""Commits that change how a snapshot is stored, and none of its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np

from icefloe import config as configuration
from icefloe.changes import ChangeSet, View
from icefloe.chunk_edits import EditColumns
from icefloe.clock import next_time
from icefloe.descriptions import WRITE_KEY, check_message, check_metadata
from icefloe.errors import ConflictError, NotFoundError
from icefloe.format.chunk_refs import ChunkRefs, RefKind
from icefloe.format.ids import ChunkId, SnapshotId, as_keys
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.publication import Publication, Registration, write_snapshot
from icefloe.refs import branch_row
from icefloe.repo_update import Attempts, require_online

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.config import RepositoryConfig
    from icefloe.format.ids import NodeId
    from icefloe.format.metadata import Json
    from icefloe.format.nodes import ManifestRefs, Node, Nodes
    from icefloe.format.ragged import Bytes
    from icefloe.format.snapshot import ManifestFiles
    from icefloe.manifest_writing import ManifestWriter
    from icefloe.publication import Publisher

type Content = tuple[Nodes, ManifestFiles]

_ATTEMPTS = 100


class Rewriter(Protocol):
    """Makes the content of the next snapshot from that of the tip."""

    def __call__(self, snapshot: Snapshot) -> Content: ...


def commit(
    assets: Assets,
    publisher: Publisher,
    branch: str,
    message: str,
    metadata: Mapping[str, Json],
    *,
    rewriter: Rewriter,
    writer: ManifestWriter,
    amend: bool = False,
    write_key: str | None = None,
) -> str:
    """Publish a rewritten tip; if the branch moves meanwhile, rewrite again.

    The transaction log is empty, because no value changed: writers that rebase over the commit meet
    no conflict. A write key makes it happen once, as for `Session.commit`.
    """
    check_message(message)
    metadata = check_metadata(metadata)
    if write_key is not None:
        metadata[WRITE_KEY] = write_key
    for failed in range(1, _ATTEMPTS + 1):
        if write_key is not None and (found := publisher.find_write(write_key, branch)):
            return found
        info, _ = assets.repo()
        require_online(info)
        tip = assets.snapshot(info.snapshots.id_at(branch_row(info, branch)))
        nodes, manifest_files = rewriter(tip)
        snapshot = Snapshot(
            id=SnapshotId.random(),
            nodes=nodes,
            manifest_files=manifest_files,
            flushed_at=next_time(tip.flushed_at),
            message=message,
            metadata=metadata,
        )
        log = TransactionLog(id=snapshot.id)
        if amend:
            log = replace(assets.transaction_log(tip.id), id=snapshot.id)
        write_snapshot(assets, snapshot, log)
        publication = Publication(
            snapshot=snapshot,
            base=tip.id,
            registration=Registration.AMENDMENT if amend else Registration.COMMIT,
            branch=branch,
            write_key=write_key,
            split_rules=writer.rules,
        )
        try:
            return str(publisher.register(publication))
        except ConflictError as error:
            if error.kind != "branch-moved" or failed == _ATTEMPTS:
                raise
        Attempts().wait(failed)
    raise AssertionError("the last attempt returns or raises")


def resplit(snapshot: Snapshot, writer: ManifestWriter) -> Content:
    """The snapshot's content with its manifests cut as the configuration says."""
    found: dict[NodeId, ManifestRefs] = {}
    for node in arrays(snapshot):
        if node.array is not None:
            nothing = EditColumns.of({}, len(node.array.shape))
            manifests = writer.rewrite(node, node.array.manifests, nothing, 0, tidy=True)
            if manifests is not node.array.manifests:
                found[node.id] = manifests
    return with_manifests(snapshot, writer, found)


def with_manifests(
    snapshot: Snapshot,
    writer: ManifestWriter,
    manifests: Mapping[NodeId, ManifestRefs],
    known: Sequence[ManifestFiles] = (),
) -> Content:
    """The snapshot's content with other manifests for some arrays.

    Args:
        snapshot: the tip.
        writer: wrote them, or chose how others were to cut them.
        manifests: by the array's id.
        known: the files of those that the writer did not write itself.
    """
    ready = {
        node.id: replace(node, array=replace(node.array, manifests=manifests[node.id]))
        for node in arrays(snapshot)
        if node.array is not None and node.id in manifests
    }
    rules = writer.rules
    content = writer.apply(View(snapshot, ChangeSet()), known, ready)
    # The splits that were chosen are those of the new manifests.
    writer.rules = rules
    return content


def split_metadata(config: RepositoryConfig) -> dict[str, Json]:
    """What a commit that cuts manifests anew says of how, as the official library does."""
    rules = configuration.splitting_rules(config)
    return {"__icechunk": {"splitting_config": {"split_sizes": rules}}}


def arrays(snapshot: Snapshot, paths: Collection[str] | None = None) -> Iterator[Node]:
    """The arrays of a snapshot, or those at these paths.

    Raises:
        NotFoundError: there is no array at one of the paths.
    """
    if paths is None:
        for row in np.flatnonzero(snapshot.nodes.rank >= 0).tolist():
            yield snapshot.nodes[row]
        return
    for path in paths:
        found = snapshot.nodes.row(path)
        if found is None or snapshot.nodes.rank[found] < 0:
            raise NotFoundError(f"there is no array at {path}", kind="node-not-found")
        yield snapshot.nodes[found]


@dataclass(frozen=True, slots=True)
class RepackSummary:
    """What a repacking did; `snapshot_id` is None if there was nothing to do."""

    snapshot_id: str | None
    chunks: int
    bytes: int
    objects_before: int
    objects_after: int


class Repacker:
    """Moves chunks from small objects into packs.

    It remembers what it moved, so that a second attempt, on a branch that moved, copies only what
    is new.
    """

    def __init__(self, assets: Assets, *, max_chunk_bytes: int, target_bytes: int) -> None:
        self._assets = assets
        self._small = small_object(max_chunk_bytes, target_bytes)
        self._copier = Copier(assets, target_bytes, self._small)
        self.summary = RepackSummary(None, 0, 0, 0, 0)

    def view(self, snapshot: Snapshot, paths: Collection[str] | None) -> View:
        """The snapshot with the references that repacking changes."""
        view = View(snapshot, ChangeSet())
        nodes = [*arrays(snapshot, paths)]
        found = [self._native(node) for node in nodes]
        small = self._in_small_objects(found)
        chosen = [refs.take(rows) for refs, rows in zip(found, small, strict=True)]
        moved = self._copier.move(chosen)
        for node, refs in zip(nodes, moved, strict=True):
            if len(refs):
                view.changes.edits(node).extend(EditColumns.written(refs))
        self.summary = RepackSummary(
            None,
            sum(map(len, moved)),
            sum(int(refs.length.sum()) for refs in moved),
            _objects(chosen),
            _objects(moved),
        )
        return view

    def _native(self, node: Node) -> ChunkRefs:
        """The references of an array to native chunks."""
        rank = 0 if node.array is None else len(node.array.shape)
        parts = [ChunkRefs.empty(rank)]
        ids = [] if node.array is None else node.array.manifests.ids()
        for manifest in self._assets.manifests(ids):
            refs = manifest.array(node.id)
            if refs is not None:
                parts.append(native(refs))
        return ChunkRefs.concat(parts)

    def _in_small_objects(self, found: list[ChunkRefs]) -> list[NDArray[np.bool_]]:
        """For each array, the references whose whole object is small; none if it is only one."""
        ids = np.concatenate(
            [np.zeros((0, ChunkId.SIZE), np.uint8), *(it.chunk_id for it in found)]
        )
        lengths = np.concatenate([np.zeros(0, np.uint64), *(refs.length for refs in found)])
        small = in_small_objects(ids, lengths, self._small)
        if len(np.unique(as_keys(ids[small]))) < MIN_OBJECTS:
            small[:] = False
        cuts = np.cumsum([len(refs) for refs in found])[:-1]
        return list(np.split(small, cuts))


type _Piece = tuple[bytes, int, int]
"""A chunk in an object: its id, the first byte, the number of bytes."""

MIN_OBJECTS = 2
"""Fewer than these cannot be packed together."""


def small_object(max_chunk_bytes: int, target_bytes: int) -> int:
    """Objects of fewer bytes are packed; a full pack is none of them, however small packs are."""
    return min(max_chunk_bytes, target_bytes)


def native(refs: ChunkRefs) -> ChunkRefs:
    """The references to native chunks, without what they say of other kinds."""
    found = refs.take(refs.kind == RefKind.NATIVE)
    return ChunkRefs.native(found.index, found.chunk_id, found.offset, found.length)


def in_small_objects(ids: Bytes, lengths: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    """Which references are to objects of which less than `limit` bytes are in use."""
    if not len(ids):
        return np.zeros(0, np.bool_)
    _, codes = np.unique(as_keys(ids), return_inverse=True)
    sizes = np.bincount(codes, lengths.astype(np.float64))
    small: NDArray[np.bool_] = sizes[codes] < limit
    return small


def _objects(parts: Sequence[ChunkRefs]) -> int:
    """How many objects native chunks of arrays lie in."""
    ids = np.concatenate([np.zeros((0, ChunkId.SIZE), np.uint8), *(it.chunk_id for it in parts)])
    return len(np.unique(as_keys(ids)))


class Copier:
    """Copies chunks into packs, each chunk once.

    Packs of fewer than `small` bytes would be packed again by the next run, so the last chunks join
    the pack before; only one such pack can come of a call, where there is so little to move.
    """

    def __init__(self, assets: Assets, target_bytes: int, small: int) -> None:
        self._assets = assets
        self._target = target_bytes
        self._small = small
        self._moved: dict[_Piece, tuple[bytes, int]] = {}
        self.packs = 0
        """How many were written."""

    def move(self, parts: Sequence[ChunkRefs]) -> list[ChunkRefs]:
        """References to native chunks of arrays, to where they are now; packs hold all together."""
        keys = [_keys(refs) for refs in parts]
        fresh = [key for key in dict.fromkeys(chain(*keys)) if key not in self._moved]
        for batch in self._batches(fresh):
            self._write_pack(batch)
        return [self._moved_refs(*item) for item in zip(parts, keys, strict=True)]

    def _moved_refs(self, refs: ChunkRefs, keys: Sequence[_Piece]) -> ChunkRefs:
        places = [self._moved[key] for key in keys]
        ids = np.frombuffer(b"".join(pack for pack, _ in places), np.uint8)
        offsets = np.array([offset for _, offset in places], np.uint64)
        return ChunkRefs.native(refs.index, ids.reshape(-1, 12), offsets, refs.length)

    def _batches(self, pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
        """What goes into each pack."""
        left = sum(length for _, _, length in pieces)
        batch: list[_Piece] = []
        waiting = 0
        for piece in pieces:
            batch.append(piece)
            waiting, left = waiting + piece[2], left - piece[2]
            if waiting >= self._target and left >= self._small:
                yield batch
                batch, waiting = [], 0
        if batch:
            yield batch

    def _write_pack(self, keys: Sequence[_Piece]) -> None:
        ranges = [(f"chunks/{ChunkId(key[0])}", *key[1:]) for key in keys]
        parts = self._assets.storage.get_ranges(ranges)
        pack = ChunkId.random()
        self._assets.put_chunks([(pack, b"".join(parts))])
        self.packs += 1
        offset = 0
        for key, part in zip(keys, parts, strict=True):
            self._moved[key] = pack.raw, offset
            offset += len(part)


def _keys(refs: ChunkRefs) -> list[_Piece]:
    ids = refs.chunk_id.tobytes()
    size = ChunkId.SIZE
    return [
        (ids[row * size : (row + 1) * size], offset, length)
        for row, (offset, length) in enumerate(
            zip(refs.offset.tolist(), refs.length.tolist(), strict=True)
        )
    ]
