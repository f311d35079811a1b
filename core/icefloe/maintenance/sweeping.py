"""Deleting listed objects that are old and not marked, in batches, and counting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import NotFoundError, StorageError
from icefloe.format.ids import encode_ids
from icefloe.format.ragged import Bytes
from icefloe.maintenance.cutoff import is_before

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.maintenance.listing import IdPage
    from icefloe.maintenance.progress import Meter
    from icefloe.storage import ObjectInfo, Storage

PHASES = {
    "snapshots": "snapshots/",
    "transaction_logs": "transactions/",
    "manifests": "manifests/",
    "chunks": "chunks/",
}
"""What is deleted in which order, and the folder of each."""
_BATCH = 10_000
_REPORTED_ERRORS = 10

type IsKept = Callable[[Bytes], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class Garbage:
    """Objects that may go."""

    id: Bytes
    size: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.id)

    @classmethod
    def concat(cls, parts: list[Garbage]) -> Garbage:
        return cls(
            np.concatenate([part.id for part in parts]),
            np.concatenate([part.size for part in parts]),
        )

    def take(self, rows: NDArray[np.bool_]) -> Garbage:
        return Garbage(self.id[rows], self.size[rows])


def is_old(found: ObjectInfo, cutoff: datetime) -> bool:
    try:
        return is_before(found.modified, cutoff)
    except NotFoundError:
        # A local file is looked at only when asked for its time: this one is gone.
        return False


def find_garbage(pages: Iterable[IdPage], is_kept: IsKept, cutoff: datetime) -> Iterator[Garbage]:
    """What is not kept and was written before the cutoff."""
    for page in pages:
        rows = [
            row
            for row in np.flatnonzero(~is_kept(page.id)).tolist()
            if is_old(page.objects[row], cutoff)
        ]
        if rows:
            sizes = [page.objects[row].size for row in rows]
            yield Garbage(page.id[rows], np.array(sizes, np.uint64))


class Sweeper:
    """Deletes by phases; after one with failures, the later ones are skipped.

    Each kind of object may be needed by those of the phases before it, so what is left of an
    earlier phase must find all that it needs.
    """

    def __init__(
        self, storage: Storage, meter: Meter, *, dry_run: bool, look_again: Callable[[], None]
    ) -> None:
        """Ready to delete.

        Args:
            storage: where.
            meter: is told.
            dry_run: delete nothing, but count.
            look_again: is called right before each batch goes; what it marks meanwhile stays.
        """
        self._storage = storage
        self._meter = meter
        self._dry_run = dry_run
        self._look_again = look_again
        self.count: Counter[str] = Counter()
        self.bytes = 0
        self.failed = 0
        self.skipped: list[str] = []
        self._errors: dict[str, None] = {}

    @property
    def errors(self) -> tuple[str, ...]:
        """The first few different ones."""
        return tuple(self._errors)

    def enter(self, phase: str) -> bool:
        """Whether to go on with this phase."""
        if self.failed:
            self.skipped.append(phase)
            return False
        self._meter.enter(phase)
        return True

    def sweep(self, phase: str, garbage: Iterable[Garbage], is_kept: IsKept) -> None:
        """Delete what is not kept after all."""
        batch: list[Garbage] = []
        for part in garbage:
            batch.append(part)
            if sum(map(len, batch)) >= _BATCH:
                if not self._delete(phase, Garbage.concat(batch), is_kept):
                    return
                batch = []
        if batch:
            self._delete(phase, Garbage.concat(batch), is_kept)

    def add(
        self, phase: str, deleted: int, size: int, failed: int = 0, errors: Iterable[str] = ()
    ) -> None:
        """Count what went, its bytes, and what did not go."""
        for reason in errors:
            if len(self._errors) < _REPORTED_ERRORS:
                self._errors[reason] = None
        self.count[phase] += deleted
        self.bytes += size
        self.failed += failed
        self._meter.deleted(deleted)

    def _delete(self, phase: str, garbage: Garbage, is_kept: IsKept) -> bool:
        """Whether it makes sense to go on: False if nothing could be deleted."""
        if self._dry_run:
            self.add(phase, len(garbage), int(garbage.size.sum()))
            return True
        self._look_again()
        garbage = garbage.take(~is_kept(garbage.id))
        names = encode_ids(garbage.id).tolist()
        keys = [f"{PHASES[phase]}{name.decode()}" for name in names]
        failures = self._failures(keys) if keys else {}
        is_gone = np.array([key not in failures for key in keys], np.bool_)
        deleted = int(is_gone.sum())
        size = int(garbage.size[is_gone].sum())
        self.add(phase, deleted, size, len(failures), failures.values())
        return deleted > 0 or not failures

    def _failures(self, keys: list[str]) -> Mapping[str, str]:
        try:
            return self._storage.delete(keys).failures
        except StorageError as error:
            return dict.fromkeys(keys, str(error))
