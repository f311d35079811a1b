"""A tree of nodes: the groups and arrays of a snapshot, with uncommitted changes over them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from icefloe.changes import ChangeSet, View
from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format import paths
from icefloe.format.ids import NodeId
from icefloe.format.nodes import Node
from icefloe.zarr_metadata import array_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.nodes import ArrayData
    from icefloe.format.snapshot import Snapshot

_KNOWN_NODES = 1000
"""Nodes of the base that are kept decoded."""


class SessionMode(Enum):
    """What may be changed."""

    READONLY = "readonly"
    WRITABLE = "writable"
    REARRANGE = "rearrange"


class NodeTree:
    """Nodes, read and changed. Changes are private to this object.

    Threads may share it: what reads or changes `_view` holds `_lock`, but for what `_alone` lets
    have the changes to itself.
    """

    def __init__(self, snapshot: Snapshot, mode: SessionMode) -> None:
        self._mode = mode
        self._view = View(snapshot, ChangeSet())
        self._known: tuple[Snapshot, dict[str, Node | None]] = snapshot, {}
        self._lock = threading.RLock()
        self._busy: str | None = None
        """What one thread is doing with the changes; the others must not change them."""
        self._ended: str | None = None
        """How the session came to be read-only, if it once was not."""

    @property
    def read_only(self) -> bool:
        return self._mode is SessionMode.READONLY

    @property
    def mode(self) -> SessionMode:
        return self._mode

    @property
    def snapshot_id(self) -> str:
        """The snapshot that is read, before the changes."""
        return str(self._view.base.id)

    @property
    def has_uncommitted_changes(self) -> bool:
        with self._lock:
            return bool(self._view.changes)

    def discard_changes(self) -> None:
        """Forget all changes."""
        with self._lock:
            self._require_writable()
            self._start_over(self._view.base)

    def node(self, path: str) -> Node | None:
        """The group or array at a path, with this session's changes."""
        with self._lock:
            view = self._view
            if path in view.changes.nodes or view.changes.adopted:
                return view.node(path)
            # Every chunk that is read asks for its array.
            base, known = self._known
            if base is not view.base or len(known) >= _KNOWN_NODES:
                known = {}
                self._known = view.base, known
            if path not in known:
                paths.check_text(path)
                known[path] = view.node(path)
            return known[path]

    def paths(self, below: str = "/") -> list[str]:
        """Paths of all nodes under `below`, itself left out, in byte order."""
        paths.check_text(below)
        with self._lock:
            return self._view.paths(below)

    def get_node_id(self, path: str) -> str:
        """Raises NotFoundError if there is no node at the path."""
        return str(self._existing(path).id)

    def set_node(self, path: str, zarr_json: bytes) -> None:
        """Create or update the node at a path from the bytes of its zarr.json.

        Raises:
            InvalidInputError: a bad path, bad metadata, or an array above the path.
        """
        paths.validate(path)
        array = array_data(zarr_json, path)
        with self._lock:
            self._require_writes()
            for ancestor in paths.ancestors(path):
                above = self.node(ancestor)
                if above is not None and above.array is not None:
                    raise InvalidInputError(f"{path} cannot lie below the array {ancestor}")
            old = self.node(path)
            if old is not None and rank_of(old.array) != rank_of(array):
                self.delete_node(path)
                old = None
            if old is None:
                node = Node(NodeId.random(), path, zarr_json, array)
            elif old.user_data == zarr_json:
                return
            else:
                node = replace(old, user_data=zarr_json, array=array)
            self._view.changes.set_node(node, is_new=old is None)

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it; nothing happens if there is none."""
        with self._lock:
            self._require_writes()
            for below in [*self.paths(path), path]:
                node = self.node(below)
                if node is not None:
                    in_base = self._view.base.nodes.row(below) is not None
                    self._view.changes.delete_node(node, in_base=in_base)

    def move(self, from_path: str, to_path: str) -> None:
        """Give a node, and all below it, another path. Nothing is copied.

        Raises:
            SessionStateError: this is no rearrange session.
            NotFoundError: there is no node at `from_path`, or no group above `to_path`.
            InvalidInputError: `to_path` lies below `from_path`, or one of them is the root.
            ConflictError: there is a node at `to_path`.
        """
        with self._lock:
            if self._mode is not SessionMode.REARRANGE and self._ended is None:
                raise SessionStateError(
                    "nodes move only in a session of Repository.rearrange_session",
                    kind="rearrange-session-only",
                )
            self._require_writable()
            self._check_movable(from_path, to_path)
            changes, base = self._view.changes, self._view.base
            for path in [from_path, *self.paths(from_path)]:
                moving = self._existing(path)
                target = to_path + path.removeprefix(from_path)
                changes.move_node(moving, target, in_base=base.nodes.row(path) is not None)

    def _check_movable(self, source: str, target: str) -> None:
        paths.validate(source)
        paths.validate(target)
        self._existing(source)
        if "/" in (source, target) or target == source or paths.is_descendant(target, source):
            raise InvalidInputError(
                f"{source} cannot move to {target}: the root stays, and nothing moves into itself",
                kind="move-wont-overwrite" if target == source else "invalid-move",
            )
        if self.node(target) is not None:
            raise ConflictError(f"there is a node at {target}", kind="move-wont-overwrite")
        above = self.node(paths.parent(target))
        if above is None or above.array is not None:
            raise NotFoundError(
                f"there is no group at {paths.parent(target)} to move {source} to",
                kind="node-not-found",
            )

    def _existing(self, path: str) -> Node:
        node = self.node(path)
        if node is None:
            raise NotFoundError(f"there is no node at {path}", kind="node-not-found")
        return node

    @contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        """Let one thread have the changes to itself; what others write meanwhile is refused.

        So every write that returned before is among the changes, and one that comes too late
        raises.
        """
        with self._lock:
            self._require_writable()
            self._view.changes.settle()
            self._busy = doing
        try:
            yield
        finally:
            self._busy = None

    def _require_writable(self) -> None:
        if self.read_only:
            ended = "is read-only" if self._ended is None else f"was {self._ended} and is read-only"
            raise ReadOnlyError(
                f"this session {ended} at {self.snapshot_id}: open another with writable_session",
                kind="read-only-session",
            )
        if self._busy is not None:
            raise ReadOnlyError(
                f"this session is being {self._busy} by another thread, so it takes no changes "
                "now: let all writers end first",
                kind="session-busy",
            )

    def _require_writes(self) -> None:
        self._require_writable()
        if self._mode is SessionMode.REARRANGE:
            raise SessionStateError(
                "a rearrange session only moves nodes: write in a session of writable_session",
                kind="rearrange-session-only",
            )

    def _start_over(self, base: Snapshot) -> None:
        self._view = View(base, ChangeSet())


def rank_of(array: ArrayData | None) -> int | None:
    return None if array is None else len(array.shape)
