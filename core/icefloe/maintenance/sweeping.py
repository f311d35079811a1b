"""Deleting listed objects that are old and not marked, in batches, and counting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import NotFoundError, StorageError
from icefloe.format.ragged import Bytes
from icefloe.maintenance.cutoff import is_before
from icefloe.maintenance.listing import IdPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.maintenance.progress import Meter
    from icefloe.storage import ObjectInfo, Storage

_BATCH = 10_000
_REPORTED_ERRORS = 10

type IsKept = Callable[[Bytes], NDArray[np.bool_]]


class Sweeper:
    """Deletes by phases; after one with failures, the later ones are skipped.

    Each kind of object may be needed by those of the phases before it, so what is left of an
    earlier phase must find all that it needs.
    """

    def __init__(
        self,
        storage: Storage,
        cutoff: datetime,
        meter: Meter,
        *,
        dry_run: bool,
        look_again: Callable[[], None],
    ) -> None:
        """Ready to delete.

        Args:
            storage: where.
            cutoff: what was written at this time or later stays.
            meter: is told.
            dry_run: delete nothing, but count.
            look_again: is called right before each batch goes; what it marks meanwhile stays.
        """
        self._storage = storage
        self._cutoff = cutoff
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

    def is_old(self, found: ObjectInfo) -> bool:
        try:
            return is_before(found.modified, self._cutoff)
        except NotFoundError:
            # A local file is looked at only when asked for its time: this one is gone.
            return False

    def sweep(self, phase: str, pages: Iterable[IdPage], is_kept: IsKept) -> None:
        if self.failed:
            self.skipped.append(phase)
            return
        self._meter.enter(phase)
        batch: list[IdPage] = []
        count = 0
        for page in pages:
            rows = [
                row
                for row in np.flatnonzero(~is_kept(page.id)).tolist()
                if self.is_old(page.objects[row])
            ]
            batch.append(IdPage(page.id[rows], [page.objects[row] for row in rows]))
            count += len(rows)
            if count >= _BATCH:
                if not self._delete(phase, batch, is_kept):
                    return
                batch, count = [], 0
        if count:
            self._delete(phase, batch, is_kept)

    def _delete(self, phase: str, batch: list[IdPage], is_kept: IsKept) -> bool:
        """Whether it makes sense to go on: False if nothing could be deleted."""
        objects = [found for page in batch for found in page.objects]
        if not self._dry_run:
            self._look_again()
            kept = is_kept(np.concatenate([page.id for page in batch])).tolist()
            objects = [found for found, stays in zip(objects, kept, strict=True) if not stays]
        sizes = {found.key: found.size for found in objects}
        failures = {} if self._dry_run or not sizes else self._failures([*sizes])
        for reason in failures.values():
            if len(self._errors) < _REPORTED_ERRORS:
                self._errors[reason] = None
        deleted = len(sizes) - len(failures)
        self.failed += len(failures)
        self.count[phase] += deleted
        self.bytes += sum(sizes.values()) - sum(sizes[key] for key in failures)
        self._meter.deleted(deleted)
        return deleted > 0 or not failures

    def _failures(self, keys: list[str]) -> Mapping[str, str]:
        try:
            return self._storage.delete(keys).failures
        except StorageError as error:
            return dict.fromkeys(keys, str(error))
