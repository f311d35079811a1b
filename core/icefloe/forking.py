"""Merging what a fork of a session changed into the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.changes import grid, without_manifests
from icefloe.chunk_edits import common_rows
from icefloe.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.changes import ChangeSet, View
    from icefloe.format.ids import NodeId
    from icefloe.format.nodes import Node

type Coordinates = Mapping[NodeId, NDArray[np.uint32]]
"""The chunks that one merge brought in, by array."""


def merge_changes(mine: View, theirs: View, rivals: Sequence[Coordinates]) -> Coordinates:
    """Add a fork's changes to the session's; the chunks that came in.

    Args:
        mine: the session.
        theirs: the fork.
        rivals: chunks that other forks brought in since this one began: none of them may be among
            this fork's.

    Raises:
        ConflictError: both changed one thing (kind `merge-failed`). Then nothing was merged.
    """
    incoming = theirs.changes
    if incoming.moves or mine.changes.moves:
        raise _failed("sessions that move nodes cannot be merged")
    if incoming.adopted:
        raise _failed("a fork that adopted manifests cannot be merged: flush them in sessions")
    _check_nodes(mine, theirs, rivals)
    chunks = {node_id: edits.index for node_id, edits in incoming.edit_columns().items()}
    _check_chunks(mine, theirs, chunks, rivals)
    _apply(mine, incoming)
    return chunks


def _check_nodes(mine: View, theirs: View, rivals: Sequence[Coordinates]) -> None:
    incoming = theirs.changes
    for node in incoming.live():
        here = mine.node(node.path)
        if node.id in incoming.created:
            if here is not None and not _may_replace(here, node, incoming):
                raise _failed(f"{node.path} was created twice")
        elif here is None or here.id != node.id:
            raise _failed(f"{node.path} was deleted in one session and updated in another")
        elif here.user_data not in (_base_document(theirs, node.path), node.user_data):
            raise _failed(f"the metadata of {node.path} was changed twice")
    _check_deleted(mine, theirs, rivals)


def _check_deleted(mine: View, theirs: View, rivals: Sequence[Coordinates]) -> None:
    for node_id, gone in theirs.changes.deleted.items():
        here = mine.node(gone.path)
        if here is None or here.id != node_id:
            continue
        written = any(node_id in rival for rival in rivals)
        if written or here.user_data != _base_document(theirs, gone.path):
            raise _failed(f"{gone.path} was deleted in one session and changed in another")


def _may_replace(here: Node, node: Node, incoming: ChangeSet) -> bool:
    """Whether a created node may meet what stands at its path.

    It may if the fork deleted that first, or if both are the same group.
    """
    same_group = node.array is None and here.array is None and here.user_data == node.user_data
    return here.id in incoming.deleted or same_group


def _base_document(view: View, path: str) -> bytes | None:
    row = view.base.nodes.row(path)
    return None if row is None else view.base.nodes[row].user_data


def _check_chunks(
    mine: View, theirs: View, chunks: Coordinates, rivals: Sequence[Coordinates]
) -> None:
    for node_id, index in chunks.items():
        if node_id not in theirs.changes.created:
            path = theirs.path_of(node_id) or ""
            here = mine.node(path)
            if here is None or here.id != node_id:
                raise _failed(f"{path} was deleted in one session and written in another")
        for rival in rivals:
            both = common_rows(index, rival[node_id]) if node_id in rival else index[:0]
            if len(both):
                told = ", ".join(str(tuple(coords)) for coords in both[:5].tolist())
                raise _failed(
                    f"{len(both)} chunks of {theirs.path_of(node_id)} were written by two forks "
                    f"({told}{', ...' if len(both) > 5 else ''}); "
                    "pass on_conflict='last-wins' if that is meant"
                )


def _apply(mine: View, incoming: ChangeSet) -> None:
    changes = mine.changes
    changes.borrowed |= incoming.borrowed
    for node_id, gone in incoming.deleted.items():
        here = mine.node(gone.path)
        if here is not None and here.id == node_id:
            changes.delete_node(here, in_base=mine.base.nodes.row(gone.path) is not None)
    for node in incoming.live():
        if node.id in incoming.created:
            if mine.node(node.path) is None:
                changes.set_node(node, is_new=True)
        else:
            changes.set_node(without_manifests(node), is_new=node.id in changes.created)
    for node_id, edits in incoming.edit_columns().items():
        here = mine.node(mine.path_of(node_id) or "")
        if here is not None and here.array is not None:
            own = changes.edits(here)
            own.extend(edits)
            own.clip(grid(here.array))


def _failed(reason: str) -> ConflictError:
    return ConflictError(f"cannot merge: {reason}", kind="merge-failed")
