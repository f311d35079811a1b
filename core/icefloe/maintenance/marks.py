"""What a garbage collection must leave alone: grows while writers go on, never shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.format.ids import ObjectId
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import LETTERS
from icefloe.maintenance.marking import chunk_ids, manifest_ids, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.ragged import Bytes, Ragged
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.progress import Meter
    from icefloe.storage import Storage


class Marks:
    """Ids of what stays, by kind; those of chunks are worked out in as many parts as fit."""

    def __init__(self, storage: Storage, meter: Meter, *, max_memory_bytes: int) -> None:
        self._storage = storage
        self._meter = meter
        self._max_memory_bytes = max_memory_bytes
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
        for key, data in read_all(self._storage, "snapshots/", snapshots):
            self.manifests.add(manifest_ids(data, key))
            self._meter.read_snapshot()

    def keep_logs(self, ids: Ragged) -> None:
        """Rows hold 12-byte ids, end to end."""
        self.logs.add(ids.packed().data.reshape(-1, ObjectId.SIZE))

    def adopt(self, info: RepoInfo, snapshots: Bytes) -> None:
        """Mark snapshots that came in later, with their chunks: they may refer to old ones."""
        before = IdSet(self.manifests.ids())
        self.keep(info, snapshots)
        manifests = self.manifests.ids()
        for ids in self._chunks_of(manifests[~before.contains(manifests)]):
            self.late_chunks.add(ids)

    def chunks(self, low: int) -> tuple[IdSet, range]:
        """Live chunks whose ids begin with the letter `low` or later, and how far memory reached.

        Meeting more than fit, it forgets the upper half of the letters: they are for another call.
        """
        live, letters = IdSet(), range(low, LETTERS)
        for ids in self._chunks_of(self.manifests.ids()):
            live.add(_within(ids, letters))
            while live.peak_bytes > self._max_memory_bytes and len(letters) > 1:
                letters = letters[: -(-len(letters) // 2)]
                live = IdSet(_within(live.ids(), letters))
        return live, letters

    def _chunks_of(self, manifests: Bytes) -> Iterator[Bytes]:
        for key, data in read_all(self._storage, "manifests/", manifests):
            yield chunk_ids(data, key)
            self._meter.read_manifest()


def _within(ids: Bytes, letters: range) -> Bytes:
    if len(letters) == LETTERS:
        return ids
    first = ids[:, 0] >> 3
    return ids[(first >= letters.start) & (first < letters.stop)]
