"""What a garbage collection must leave alone: grows while writers go on, never shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.format.ids import ObjectId
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import PER_LETTER, WHOLE, within
from icefloe.maintenance.marking import chunk_ids, manifest_ids, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.ragged import Bytes, Ragged
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.progress import Meter
    from icefloe.storage import Storage


MAX_MEMORY_BYTES = 2**30


class Marks:
    """Ids of what stays, by kind; those of chunks are worked out in as many parts as fit."""

    def __init__(
        self,
        storage: Storage,
        meter: Meter,
        *,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        span: range = WHOLE,
    ) -> None:
        """Nothing is marked yet.

        Args:
            storage: of the repository.
            meter: is told.
            max_memory_bytes: about how much the ids of chunks may take.
            span: the chunks that matter.
        """
        self._storage = storage
        self._meter = meter
        self._max_memory_bytes = max_memory_bytes
        self._span = span
        self.snapshots = IdSet()
        self.logs = IdSet()
        self.manifests = IdSet()
        self.late_chunks = IdSet()
        """Of snapshots that came in after the run had begun."""

    def keep(self, info: RepoInfo, snapshots: Bytes) -> None:
        """Mark these snapshots, their manifests, and all logs that the repo object mentions."""
        self.snapshots.add(snapshots)
        self.logs.add(snapshots)
        self.keep_logs(info.snapshots.pruned)
        for ids in self._manifests_of(snapshots):
            self.manifests.add(ids)

    def keep_logs(self, ids: Ragged) -> None:
        """Rows hold 12-byte ids, end to end."""
        self.logs.add(ids.packed().data.reshape(-1, ObjectId.SIZE))

    def adopt(self, info: RepoInfo, snapshots: Bytes) -> None:
        """Mark snapshots that came in later, with their chunks: they may refer to old ones."""
        before = IdSet(self.manifests.ids())
        self.keep(info, snapshots)
        manifests = self.manifests.ids()
        self._adopt_chunks(manifests[~before.contains(manifests)])

    def chunks(self, low: int) -> tuple[IdSet, range]:
        """Live chunks from the prefix `low` on, and how far memory reached.

        Meeting more than fit, it forgets the upper half: that is for another call.
        """
        live, span = IdSet(), range(low, WHOLE.stop)
        for ids in self._chunks_of(self.manifests.ids()):
            live.add(_within(ids, span))
            while live.peak_bytes > self._max_memory_bytes and len(span) > PER_LETTER:
                letters = len(span) // PER_LETTER
                span = span[: -(-letters // 2) * PER_LETTER]
                live = IdSet(_within(live.ids(), span))
        return live, span

    def _manifests_of(self, snapshots: Bytes) -> Iterator[Bytes]:
        for key, data in read_all(self._storage, "snapshots/", snapshots):
            yield manifest_ids(data, key)
            self._meter.read_snapshot()

    def _adopt_chunks(self, manifests: Bytes) -> None:
        for ids in self._chunks_of(manifests):
            self.late_chunks.add(_within(ids, self._span))

    def _chunks_of(self, manifests: Bytes) -> Iterator[Bytes]:
        for key, data in read_all(self._storage, "manifests/", manifests):
            yield chunk_ids(data, key)
            self._meter.read_manifest()


def _within(ids: Bytes, span: range) -> Bytes:
    return ids if span == WHOLE else ids[within(ids, span)]
