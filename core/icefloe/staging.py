"""Staged snapshots: which ones a merge has to publish, and what they changed together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes import ChangeSet, View
from icefloe.chunk_edits import EditColumns, sort_rows
from icefloe.descriptions import STAGED_ON
from icefloe.diffs import places_of
from icefloe.errors import ConflictError, InvalidInputError, NotFoundError
from icefloe.format.ids import SnapshotId
from icefloe.refs import snapshot_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.format.ids import NodeId
    from icefloe.format.nodes import Node
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """One staged snapshot, what it changed, and where it stands."""

    snapshot: Snapshot
    log: TransactionLog
    below: tuple[SnapshotId, ...]
    """The staged snapshots under it, which it contains."""
    base: SnapshotId
    """The published snapshot under all of those."""

    @property
    def id(self) -> SnapshotId:
        return self.snapshot.id

    def contains(self, other: Staged) -> bool:
        return other.id in self.below


def read_staged(
    assets: Assets,
    info: RepoInfo,
    ids: Sequence[str],
    published: Collection[int],
    known: dict[SnapshotId, TransactionLog],
) -> list[Staged]:
    """The staged snapshots of these ids and all they stand on, each after those below it.

    Args:
        assets: the files of the repository.
        info: the repo object.
        ids: of the snapshots.
        published: rows that need no publishing: nothing below them is staged.
        known: logs that were read before; those that are read now are added.

    Raises:
        InvalidInputError: no id is given, one is given twice, or one moved nodes.
        NotFoundError: one is not registered, or one that it stands on is not.
    """
    # A str is a sequence, too: of letters.
    if isinstance(ids, str) or not isinstance(ids, Collection):
        raise InvalidInputError(
            f"the snapshots to merge are {ascii(ids)[:80]}: pass a list of the ids that "
            "Session.flush returned"
        )
    if not ids or len({SnapshotId.parse(text) for text in ids}) < len(ids):
        raise InvalidInputError(f"name the snapshots to merge, each once, not {list(ids)}")
    chains: dict[SnapshotId, tuple[tuple[SnapshotId, ...], SnapshotId]] = {}
    for text in ids:
        chain, base = _chain(info, text, published)
        for place, snapshot_id in enumerate(chain):
            chains[snapshot_id] = chain[:place], base
    order = sorted(chains, key=lambda snapshot_id: len(chains[snapshot_id][0]))
    fresh = [snapshot_id for snapshot_id in order if snapshot_id not in known]
    known |= zip(fresh, assets.transaction_logs(fresh), strict=True)
    logs = [known[snapshot_id] for snapshot_id in order]
    for log in logs:
        if log.moves:
            raise InvalidInputError(
                f"snapshot {log.id} moves nodes: commit such a change in a session of its own",
                kind="staged-move",
            )
    return [
        Staged(assets.snapshot(snapshot_id), log, *chains[snapshot_id])
        for snapshot_id, log in zip(order, logs, strict=True)
    ]


def _chain(
    info: RepoInfo, text: str, published: Collection[int]
) -> tuple[tuple[SnapshotId, ...], SnapshotId]:
    """A staged snapshot with the staged ones below it, lowest first, and the published base."""
    chain: list[SnapshotId] = []
    row = snapshot_row(info, text)
    while True:
        item = info.snapshots[row]
        chain.insert(0, item.id)
        if item.parent_id is None:
            raise InvalidInputError(
                f"snapshot {text} stands on nothing: it is not a staged write", kind="not-staged"
            )
        # Expiration gives a snapshot another parent, and lists the logs of those in between: the
        # last of them is that of the parent which it was written on.
        base = (item.parent_id, *item.pruned_ancestor_tx_logs)[-1]
        below = item.metadata.get(STAGED_ON)
        if below is None:
            return tuple(chain), base
        if below != str(item.parent_id):
            raise NotFoundError(
                f"snapshot {item.id} stands on the staged snapshot {below}, which was expired or "
                "collected as garbage, so it cannot be published without that: write both again",
                kind="staged-base-gone",
            )
        row = snapshot_row(info, str(item.parent_id))
        if row in published:
            return tuple(chain), base


def check_disjoint(staged: Sequence[Staged]) -> None:
    """Raises ConflictError if two staged writes, neither above the other, changed one thing."""
    for node_id in {key for item in staged for key in item.log.updated_chunks}:
        _check_chunks(node_id, staged)
    touched: dict[NodeId, list[Staged]] = {}
    for item in staged:
        log = item.log
        for node_id in log.updated_arrays | log.updated_groups | log.updated_chunks.keys():
            touched.setdefault(node_id, []).append(item)
    for item in staged:
        log = item.log
        for node_id in log.deleted_arrays | log.deleted_groups:
            _require_related(item, touched.get(node_id, ()), node_id, "deleted")
        for node_id in log.updated_arrays | log.updated_groups:
            rivals = [it for it in touched[node_id] if not _same_document(it, item, node_id)]
            _require_related(item, rivals, node_id, "updated")


def _check_chunks(node_id: NodeId, staged: Sequence[Staged]) -> None:
    writers = [item for item in staged if len(item.log.updated_chunks.get(node_id, ()))]
    if len(writers) < 2:
        return
    parts = [item.log.updated_chunks[node_id] for item in writers]
    rows, owner = sort_rows(parts)
    twice = np.flatnonzero((rows[1:] == rows[:-1]).all(axis=1))
    related = np.array([[b.contains(a) for b in writers] for a in writers], np.bool_)
    clash = twice[~related[owner[twice], owner[twice + 1]]]
    if len(clash):
        first, second = (writers[owner[clash[0] + step]] for step in (0, 1))
        told = ", ".join(str(tuple(rows[at].tolist())) for at in clash[:5].tolist())
        raise ConflictError(
            f"{len(clash)} chunks of {_path(first, node_id)} were written by several staged "
            f"snapshots, for example by {first.id} and {second.id}: "
            f"{told}{', ...' if len(clash) > 5 else ''}",
            kind="merge-failed",
        )


def _same_document(first: Staged, second: Staged, node_id: NodeId) -> bool:
    """Whether both leave the node with the same zarr.json, and neither wrote its chunks alone."""
    if node_id not in first.log.updated_arrays | first.log.updated_groups:
        return False
    documents = [_node(item.snapshot, node_id) for item in (first, second)]
    return len({None if node is None else node.user_data for node in documents}) == 1


def _require_related(item: Staged, rivals: Iterable[Staged], node_id: NodeId, verb: str) -> None:
    for rival in rivals:
        if rival is not item and not (rival.contains(item) or item.contains(rival)):
            raise ConflictError(
                f"{_path(rival, node_id)} was {verb} by staged snapshot {item.id} and changed by "
                f"{rival.id}",
                kind="merge-failed",
            )


def _path(item: Staged, node_id: NodeId) -> str:
    return places_of(item.snapshot.nodes, [node_id]).get(node_id, str(node_id))


def _node(snapshot: Snapshot, node_id: NodeId) -> Node | None:
    path = places_of(snapshot.nodes, [node_id]).get(node_id)
    row = None if path is None else snapshot.nodes.row(path)
    return None if row is None else snapshot.nodes[row]


def combined(staged: Iterable[Staged], base: Snapshot) -> View:
    """What staged writes make of a base.

    The chunk edits say which chunks changed, not what they became.

    Raises:
        ConflictError: two of them created a node at one path.
    """
    view = View(base, ChangeSet())
    for item in staged:
        _delete_nodes(item, view)
        _create_nodes(item, view)
        _update_nodes(item, view)
        for node_id, index in item.log.updated_chunks.items():
            node = view.node(view.path_of(node_id) or "")
            if node is not None and node.array is not None and len(index):
                view.changes.edits(node).extend(EditColumns.deletions(index))
    return view


def _delete_nodes(item: Staged, view: View) -> None:
    for node_id in item.log.deleted_arrays | item.log.deleted_groups:
        node = view.node(view.path_of(node_id) or "")
        if node is not None:
            in_base = view.base.nodes.row(node.path) is not None
            view.changes.delete_node(node, in_base=in_base)


def _create_nodes(item: Staged, view: View) -> None:
    for node_id in _by_path(item, item.log.new_groups | item.log.new_arrays):
        node = _node(item.snapshot, node_id)
        if node is None:
            continue
        here = view.changes.nodes.get(node.path)
        if here is None:
            view.changes.set_node(node, is_new=True)
        elif node.array is not None or here.user_data != node.user_data:
            raise ConflictError(
                f"{node.path} was created by several staged snapshots, among them {item.id}",
                kind="merge-failed",
            )


def _update_nodes(item: Staged, view: View) -> None:
    log = item.log
    for node_id in _by_path(item, log.updated_groups | log.updated_arrays):
        node = _node(item.snapshot, node_id)
        if node is not None and view.path_of(node_id) is not None:
            view.changes.set_node(node, is_new=node_id in view.changes.created)


def _by_path(item: Staged, ids: frozenset[NodeId]) -> list[NodeId]:
    """Those of the nodes that are there, parents before children."""
    places = places_of(item.snapshot.nodes, ids)
    return sorted(places, key=lambda node_id: places[node_id].encode())


def written_chunks(
    staged: Iterable[Staged], node_id: NodeId
) -> list[tuple[Staged, NDArray[np.uint32]]]:
    """Who wrote chunks of an array, and which."""
    return [
        (item, item.log.updated_chunks[node_id])
        for item in staged
        if len(item.log.updated_chunks.get(node_id, ()))
    ]
