"""Joining staged snapshots by manifest: whole manifests where one wrote, references where several.

The driver reads transaction logs and snapshots. It reads a manifest only where two writers met in
one cell of the split, or where the branch changed that cell meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.adoption import joined_manifests, manifest_cells
from icefloe.changes import View, grid, rows_with_ids
from icefloe.chunk_edits import EditColumns, rows_in
from icefloe.conflicts import RebaseFailedError, detect
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRefs
from icefloe.history import steps_between
from icefloe.rebasing import fast_forward, read_logs
from icefloe.splitting import cells
from icefloe.staging import Staged, check_disjoint, combined, written_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.changes import ChangeSet
    from icefloe.format.ids import NodeId, SnapshotId
    from icefloe.format.nodes import Node, Nodes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.snapshot import ManifestFiles, Snapshot
    from icefloe.manifest_writing import ManifestWriter, Sizes
    from icefloe.rebasing import Step

type Cell = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The nodes of the merged snapshot, the manifests they use, and the changes, for the log."""

    nodes: Nodes
    manifest_files: ManifestFiles
    view: View


def merge(
    assets: Assets,
    info: RepoInfo,
    staged: Sequence[Staged],
    target: SnapshotId,
    writer: ManifestWriter,
    checked: dict[SnapshotId, SnapshotId],
) -> Merged:
    """Staged writes on top of `target`.

    Args:
        assets: the files of the repository.
        info: the repo object.
        staged: the staged snapshots, each after those below it.
        target: where they go.
        writer: of the manifests.
        checked: how far the history after each base was found without conflict, by earlier
            attempts at this merge; this one adds to it.

    Raises:
        ConflictError: two of them changed one thing, or one stands on a snapshot that is not in
            the history of `target`.
        RebaseFailedError: one conflicts with a commit that `target` has and its base has not.
    """
    check_disjoint(staged)
    _check_against_history(assets, info, staged, target, checked)
    view = combined(staged, assets.snapshot(target))
    join = _Join(assets, staged, view, writer)
    ready = {node_id: join.array(node_id) for node_id in view.changes.edit_columns()}
    known = [item.snapshot.manifest_files for item in staged]
    nodes, files = writer.apply(view, known, ready)
    return Merged(nodes, files, view)


def _check_against_history(
    assets: Assets,
    info: RepoInfo,
    staged: Sequence[Staged],
    target: SnapshotId,
    checked: dict[SnapshotId, SnapshotId],
) -> None:
    row = info.snapshots.row(target)
    tip = -1 if row is None else row
    for base in {item.base for item in staged}:
        steps = steps_between(info, base, tip)
        ids = [step.id for step in steps]
        done = ids.index(checked[base]) + 1 if checked.get(base) in ids else 0
        if done < len(steps):
            mine = combined([item for item in staged if item.base == base], assets.snapshot(base))
            before = steps[done - 1].id if done else base
            _check_steps(assets, mine.changes, before, steps[done:])
            checked[base] = target


def _check_steps(
    assets: Assets, changes: ChangeSet, base: SnapshotId, steps: Sequence[Step]
) -> None:
    """Raises RebaseFailedError if a commit after `base` conflicts with the changes."""
    if fast_forward(changes, steps, assets) is not None:
        return
    before = assets.snapshot(base)
    for step in steps:
        after = assets.snapshot(step.id)
        for log in read_logs(assets, step):
            conflicts = detect(changes, log, before, after)
            if conflicts:
                raise RebaseFailedError(str(step.id), conflicts)
        before = after


class _Join:
    """The manifests of arrays whose chunks were staged."""

    def __init__(
        self, assets: Assets, staged: Sequence[Staged], view: View, writer: ManifestWriter
    ) -> None:
        self._assets = assets
        self._staged = staged
        self._view = view
        self._writer = writer
        self._revision = frozenset(item.id for item in staged)
        self._known: dict[tuple[SnapshotId, NodeId], _Cells | None] = {}

    def array(self, node_id: NodeId) -> Node:
        """The array with the manifests it shall have."""
        node = self._view.node(self._view.path_of(node_id) or "")
        if node is None or node.array is None:
            raise AssertionError(f"{node_id} has chunk edits, so it is an array")
        sizes, limits = self._writer.sizes(node), grid(node.array)
        writers = written_chunks(self._staged, node_id)
        current = _Cells.of(node.array.manifests, sizes, limits)
        adopted: list[ManifestRefs] = []
        settled: list[Cell] = []
        for cell, owners in _owners(writers, sizes).items():
            last = self._staged_last(owners)
            found = None if last is None else self._adoptable(node_id, last, cell, current, sizes)
            if found is not None:
                settled.append(cell)
                adopted.append(found)
        left = self._edits(node, writers, sizes, settled)
        rest = current.without(settled, len(limits))
        if len(left) or current.leaves_grid:
            rest = self._writer.rewrite(node, rest, left, self._revision)
        manifests = joined_manifests([rest, *adopted])
        return replace(node, array=replace(node.array, manifests=manifests))

    def _staged_last(self, owners: Sequence[Staged]) -> Staged | None:
        """The one that contains all others, if there is one."""
        last = owners[-1]
        return last if all(item is last or last.contains(item) for item in owners) else None

    def _adoptable(
        self, node_id: NodeId, item: Staged, cell: Cell, current: _Cells, sizes: Sizes
    ) -> ManifestRefs | None:
        """The manifests that a staged snapshot has in a cell, if they can stand as they are.

        They can where the target has in that cell just what the staged snapshot started from.
        """
        theirs = self._cells(item.snapshot, node_id, sizes, current.limits)
        before = self._cells(self._assets.snapshot(item.base), node_id, sizes, current.limits)
        if theirs is None or theirs.leaves_grid or theirs.spread_into(cell):
            return None
        now = current.ids(cell)
        then = set() if before is None else before.ids(cell)
        return theirs.manifests(cell) if now == then and now is not None else None

    def _cells(
        self, snapshot: Snapshot, node_id: NodeId, sizes: Sizes, limits: NDArray[np.uint32]
    ) -> _Cells | None:
        key = snapshot.id, node_id
        if key not in self._known:
            manifests = _manifests(snapshot, node_id)
            self._known[key] = None if manifests is None else _Cells.of(manifests, sizes, limits)
        return self._known[key]

    def _edits(
        self,
        node: Node,
        writers: Sequence[tuple[Staged, NDArray[np.uint32]]],
        sizes: Sizes,
        settled: Sequence[Cell],
    ) -> EditColumns:
        """What became of the chunks in cells that could not be taken over whole."""
        limits = np.zeros(0) if node.array is None else grid(node.array)
        done = np.array(settled, np.int64).reshape(len(settled), len(sizes))
        edits = EditColumns.of({}, len(sizes))
        for item, index in writers:
            index = index[(index < limits).all(axis=1)]
            index = index[~rows_in(cells(index, sizes), done)]
            if len(index):
                edits = edits.then(self._final(item, node.id, index))
        return edits

    def _final(self, item: Staged, node_id: NodeId, index: NDArray[np.uint32]) -> EditColumns:
        """The references that a staged snapshot has for these chunks; without one: deleted."""
        manifests = _manifests(item.snapshot, node_id) or ManifestRefs.none(index.shape[1])
        rows = [row for row in range(len(manifests)) if _meets(manifests, row, index)]
        ids = [ManifestId(manifests.object_id[row].tobytes()) for row in rows]
        parts = [ChunkRefs.empty(index.shape[1])]
        for manifest in self._assets.manifests(ids):
            refs = manifest.array(node_id)
            if refs is not None:
                parts.append(refs.take(rows_in(refs.index, index)))
        return EditColumns.deletions(index).then(EditColumns.written(ChunkRefs.concat(parts)))


def _meets(manifests: ManifestRefs, row: int, index: NDArray[np.uint32]) -> bool:
    """Whether a manifest may hold one of the chunks."""
    if manifests.extents.shape[1] != index.shape[1]:
        return True
    low, high = manifests.extents[row, :, 0], manifests.extents[row, :, 1]
    return bool(((index >= low) & (index < high)).all(axis=1).any())


def _manifests(snapshot: Snapshot, node_id: NodeId) -> ManifestRefs | None:
    rows = rows_with_ids(snapshot.nodes, [node_id])
    return snapshot.nodes.manifests(int(rows[0])) if len(rows) else None


def _owners(
    writers: Sequence[tuple[Staged, NDArray[np.uint32]]], sizes: Sizes
) -> dict[Cell, list[Staged]]:
    """Who wrote into each cell, in order."""
    owners: dict[Cell, list[Staged]] = {}
    for item, index in writers:
        # An array without dimensions has one cell, which numpy cannot sort.
        for cell in np.unique(cells(index, sizes), axis=0).tolist() if sizes else [()]:
            owners.setdefault(tuple(cell), []).append(item)
    return owners


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """The manifests of an array by cell; those that lie in several cells are `spread`."""

    all: ManifestRefs
    by_cell: dict[Cell, list[int]]
    spread: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    limits: NDArray[np.uint32]

    @classmethod
    def of(cls, refs: ManifestRefs, sizes: Sizes, limits: NDArray[np.uint32]) -> _Cells:
        low, high = manifest_cells(refs, sizes)
        alone = (low == high).all(axis=1)
        by_cell: dict[Cell, list[int]] = {}
        for row in np.flatnonzero(alone).tolist():
            by_cell.setdefault(tuple(low[row].tolist()), []).append(row)
        return cls(refs, by_cell, np.flatnonzero(~alone), low, high, limits)

    @property
    def leaves_grid(self) -> bool:
        extents = self.all.extents
        return extents.shape[1] != len(self.limits) or bool((extents[:, :, 1] > self.limits).any())

    def spread_into(self, cell: Cell) -> bool:
        at = np.array(cell, np.int64)
        low, high = self.low[self.spread], self.high[self.spread]
        return bool(((low <= at) & (at <= high)).all(axis=1).any())

    def ids(self, cell: Cell) -> set[bytes] | None:
        """The manifests in a cell; None if one of them lies in other cells, too."""
        if self.spread_into(cell):
            return None
        return {self.all.object_id[row].tobytes() for row in self.by_cell.get(cell, ())}

    def manifests(self, cell: Cell) -> ManifestRefs:
        rows = self.by_cell.get(cell, [])
        return ManifestRefs(self.all.object_id[rows], self.all.extents[rows])

    def without(self, settled: Sequence[Cell], rank: int) -> ManifestRefs:
        gone = [row for cell in settled for row in self.by_cell.get(cell, ())]
        keep = np.ones(len(self.all), np.bool_)
        keep[gone] = False
        extents = self.all.extents[keep]
        if not len(extents):
            extents = np.zeros((0, rank, 2), np.uint32)
        return ManifestRefs(self.all.object_id[keep], extents)
