"""What a task is told of a repository: where it is and which snapshot to read, never a secret."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from icefloe.format.ids import SnapshotId
from icefloe.session import Session

if TYPE_CHECKING:
    from icefloe.working_tree import Context


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot of a repository, to be opened on executors.

    The pickle holds the URL, public storage options and, by its import path, the function that
    gives credentials.
    """

    pickled: bytes

    @classmethod
    def of(cls, context: Context, snapshot_id: str) -> Source:
        return cls(pickle.dumps((context, SnapshotId.parse(snapshot_id))))

    def open(self) -> Session:
        """A read-only session. Tasks of one process share it, with its connections and caches."""
        return _open(self.pickled)


@lru_cache(maxsize=2)
def _open(pickled: bytes) -> Session:
    context, snapshot_id = pickle.loads(pickled)
    return Session(context, context.assets.snapshot(snapshot_id))
