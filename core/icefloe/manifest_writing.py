"""From a base snapshot and changes to the nodes of the next one, with the manifests they need.

An array's chunk grid is cut into cells by the split configuration, and a manifest lies in one cell.
Only cells with a change are written; all other manifests are taken over as they are. What was
written is remembered, so that a commit that is tried again on another base writes nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.adoption import joined_files, joined_manifests, manifest_cells
from icefloe.changes import grid, rows_with_ids
from icefloe.chunk_edits import EditColumns, rows_in
from icefloe.config import effective
from icefloe.format import manifest as manifest_file
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId, as_keys
from icefloe.format.manifest import ArrayManifest, LocationCompression, Manifest
from icefloe.format.nodes import ManifestRefs, Node, Nodes
from icefloe.format.snapshot import ManifestFiles
from icefloe.splitting import automatic_split, cells, split_sizes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets, File
    from icefloe.changes import View
    from icefloe.config import RepositoryConfig
    from icefloe.format.ids import NodeId

type Sizes = tuple[int, ...]

_BATCH_BYTES = 32 * 2**20
"""Manifests are sent to the store when this much is waiting."""
_WHOLE = 2**32
"""One cell along an axis, however long it grows."""


@dataclass(frozen=True, slots=True)
class _Written:
    id: ManifestId
    size: int
    count: int
    box: tuple[tuple[int, int], ...]


type _Waiting = tuple[tuple[object, ...], _Written, bytes]
"""What a manifest was made from, what became of it, and its file."""


class ManifestWriter:
    """Writes manifests for one session."""

    def __init__(self, assets: Assets, config: RepositoryConfig, *, hold: bool = False) -> None:
        """Begin.

        Args:
            assets: the files of the repository.
            config: says how to cut manifests.
            hold: keep what fits in a batch until `held_files` asks for it, so that it can be sent
                together with other files; `confirm` says that it was.
        """
        self._assets = assets
        self._config = config
        self._hold = hold
        self._held: list[_Waiting] = []
        settings = effective(config)
        self._compression = LocationCompression(
            min_refs=settings.location_compression_min_num_chunks,
            level=settings.location_compression_level,
            max_samples=settings.location_compression_max_training_samples,
            max_dictionary_bytes=settings.location_compression_max_size_bytes,
        )
        self._written: dict[tuple[object, ...], _Written] = {}
        self.rules: dict[str, Sizes] = {}
        """Splits chosen for arrays that no rule of the configuration matches, by path."""

    def apply(
        self, view: View, known: Iterable[ManifestFiles] = (), ready: Mapping[NodeId, Node] = {}
    ) -> tuple[Nodes, ManifestFiles]:
        """The nodes after the changes, and the manifest files they use.

        Args:
            view: the base and the changes.
            known: lists of manifest files that `ready` nodes use.
            ready: arrays whose manifests are already what they shall be, by id.
        """
        base, changes = view.base, view.changes
        self.rules = {}
        edits = changes.edit_columns()
        touched = dict.fromkeys(changes.nodes)
        rows = rows_with_ids(base.nodes, [*edits.keys(), *ready.keys(), *changes.adopted.keys()])
        moved = {node.id for node in changes.live()}
        for row in rows.tolist():
            node = base.nodes[row]
            if node.id not in moved:
                touched[node.path] = None
        kept = np.ones(len(base.nodes), np.bool_)
        nodes: list[Node] = []
        for path in touched:
            at = base.nodes.row(path)
            if at is not None:
                kept[at] = False
            node_now = view.node(path)
            if node_now is not None:
                done = ready.get(node_now.id)
                nodes.append(done or self._with_manifests(node_now, edits.get(node_now.id), view))
        joined = Nodes.concat([base.nodes.take(np.flatnonzero(kept)), Nodes.of(nodes)])
        written = [*self._written.values(), *(item for _, item, _ in self._held)]
        new = ManifestFiles.of((item.id, item.size, item.count) for item in written)
        adopted = [item.files for item in changes.adopted.values()]
        return joined, used_files(joined, [base.manifest_files, *known, *adopted, new])

    def _with_manifests(self, node: Node, edits: EditColumns | None, view: View) -> Node:
        if node.array is None:
            return node
        revision = view.changes.chunks[node.id].revision if edits is not None else 0
        edits = EditColumns.of({}, len(node.array.shape)) if edits is None else edits
        manifests = self.rewrite(node, node.array.manifests, edits, revision)
        return replace(node, array=replace(node.array, manifests=manifests))

    def sizes(self, node: Node) -> Sizes:
        """Chunks per manifest along each axis of an array."""
        if node.array is None:
            return ()
        counts = [dimension.num_chunks for dimension in node.array.shape]
        names = node.array.dimension_names
        found = split_sizes(self._config, node.path, names, counts)
        if found is None and (limit := self._config.automatic_split):
            found = automatic_split(counts, limit)
            if found is not None:
                self.rules[node.path] = found
        return found or (_WHOLE,) * len(counts)

    def rewrite(
        self,
        node: Node,
        old: ManifestRefs,
        edits: EditColumns,
        revision: Hashable,
        *,
        tidy: bool = False,
    ) -> ManifestRefs:
        """The manifests of an array after its edits, and without what lies outside its grid.

        Args:
            node: the array.
            old: the manifests it has.
            edits: what was written and deleted.
            revision: names this state of the edits, and no other one.
            tidy: cut manifests that lie in several cells, and join those that share one, even where
                nothing was edited.
        """
        if node.array is None:
            return old
        limits, sizes = grid(node.array), self.sizes(node)
        stays, cell_of = untouched(old, limits, sizes, edits)
        if tidy:
            stays &= alone_in_cell(cell_of)
        elif not len(edits) and _inside(old, limits):
            return old
        if bool(stays.all()) and not len(edits):
            return old
        refs, source = self._read(node.id, old, ~stays, len(limits))
        # What is spread over its cells may meet manifests that would have stayed there.
        met = stays & rows_in(cell_of, cells(refs.index, sizes))
        if bool(met.any()):
            more, more_source = self._read(node.id, old, met, len(limits))
            refs = ChunkRefs.concat([refs, more])
            source = np.concatenate([source, more_source])
            stays &= ~met
        keep = (refs.index < limits).all(axis=1) & ~rows_in(refs.index, edits.index)
        live = edits.live()
        joined = ChunkRefs.concat([refs.take(keep), live])
        source = np.concatenate([source[keep], np.full(len(live), -1, np.int64)])
        written = self._write_cells(node, joined, source, old, sizes, (revision, *limits.tolist()))
        rows = np.flatnonzero(stays)
        new = ManifestRefs.of([(item.id, item.box) for item in written], len(limits))
        return joined_manifests([new, ManifestRefs(old.object_id[rows], old.extents[rows])])

    def _read(
        self, node_id: NodeId, old: ManifestRefs, chosen: NDArray[np.bool_], rank: int
    ) -> tuple[ChunkRefs, NDArray[np.int64]]:
        """References of an array in the chosen manifests, and the row of each one's manifest."""
        rows = np.flatnonzero(chosen).tolist()
        ids = [ManifestId(old.object_id[row].tobytes()) for row in rows]
        parts = [ChunkRefs.empty(rank)]
        sources = [np.zeros(0, np.int64)]
        for row, manifest in zip(rows, self._assets.manifests(ids), strict=True):
            part = manifest.array(node_id)
            if part is not None and len(part):
                parts.append(part)
                sources.append(np.full(len(part), row, np.int64))
        return ChunkRefs.concat(parts), np.concatenate(sources)

    def _write_cells(
        self,
        node: Node,
        refs: ChunkRefs,
        source: NDArray[np.int64],
        old: ManifestRefs,
        sizes: Sizes,
        state: Hashable,
    ) -> list[_Written]:
        """One manifest for each cell that has references."""
        written: list[_Written] = []
        waiting: list[_Waiting] = []
        for cell, rows in groups_by_cell(refs.index, sizes):
            part, origin = refs.take(rows).sorted(), np.unique(source[rows])
            ids = tuple(old.object_id[row].tobytes() for row in origin[origin >= 0].tolist())
            key = (node.id, cell, sizes, state, ids)
            found = self._written.get(key)
            if found is None:
                found, data = self._encode(node.id, part)
                waiting.append((key, found, data))
                if sum(len(item[2]) for item in waiting) >= _BATCH_BYTES:
                    self._send(waiting)
            written.append(found)
        self._held += waiting
        if not self._hold or sum(len(data) for _, _, data in self._held) >= _BATCH_BYTES:
            self._send(self._held)
        return written

    def drop_held(self) -> None:
        """Forget what an attempt that came to nothing was to write."""
        self._held = []

    def held_files(self) -> list[File]:
        """What is still to be written."""
        return [(f"manifests/{item.id}", data) for _, item, data in self._held]

    def confirm(self) -> None:
        """What was held has been written: another attempt need not do it again."""
        self._written |= {key: item for key, item, _ in self._held}
        self._held = []

    def _encode(self, node_id: NodeId, refs: ChunkRefs) -> tuple[_Written, bytes]:
        manifest = Manifest(ManifestId.random(), (ArrayManifest(node_id, refs),))
        data = manifest_file.encode(
            manifest, compression=self._compression, level=self._assets.level
        )
        low, high = refs.index.min(axis=0).tolist(), refs.index.max(axis=0).tolist()
        box = tuple((a, b + 1) for a, b in zip(low, high, strict=True))
        return _Written(manifest.id, len(data), len(refs), box), data

    def _send(self, waiting: list[_Waiting]) -> None:
        self._assets.put_manifests([(item.id, data) for _, item, data in waiting])
        for key, item, _ in waiting:
            self._written[key] = item
        waiting.clear()


def untouched(
    old: ManifestRefs, limits: NDArray[np.uint32], sizes: Sizes, edits: EditColumns
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which manifests lie in one cell, inside the grid, with no edit in that cell; and their cell.

    Other writers may leave extents empty: those do not say where they lie.
    """
    if old.extents.shape[1] != len(limits):
        return np.zeros(len(old), np.bool_), np.zeros((len(old), len(limits)), np.int64)
    low, high = manifest_cells(old, sizes)
    inside = (old.extents[:, :, 1] <= limits).all(axis=1)
    alone = (low == high).all(axis=1) & inside
    return alone & ~rows_in(low, cells(edits.index, sizes)), low


def _inside(old: ManifestRefs, limits: NDArray[np.uint32]) -> bool:
    """Whether no manifest reaches past the grid, as far as they tell."""
    known = old.extents.shape[1] == len(limits)
    return known and bool((old.extents[:, :, 1] <= limits).all())


def alone_in_cell(cell: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows share their cell with no other."""
    if not len(cell) or not cell.shape[1]:
        return np.full(len(cell), len(cell) == 1)
    _, codes, counts = np.unique(cell, axis=0, return_inverse=True, return_counts=True)
    alone: NDArray[np.bool_] = counts[codes] == 1
    return alone


def groups_by_cell(
    index: NDArray[np.uint32], sizes: Sizes
) -> Iterable[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Each cell with its rows."""
    if not len(index):
        return
    cell = cells(index, sizes)
    if bool((cell == cell[0]).all()):
        yield tuple(cell[0].tolist()), np.arange(len(cell), dtype=np.int64)
        return
    order = np.lexsort(cell.T[::-1])
    ordered = cell[order]
    cuts = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
    for rows in np.split(order, cuts):
        yield tuple(cell[rows[0]].tolist()), rows


def used_files(nodes: Nodes, lists: Sequence[ManifestFiles]) -> ManifestFiles:
    """The manifest files that the nodes use, each once, from several lists."""
    joined = joined_files(lists)
    return joined.take(np.flatnonzero(np.isin(as_keys(joined.id), as_keys(nodes.manifest_id))))
