"""Columns that tasks leave in storage for tasks of a later job, cut into parts.

This takes the place of a shuffle: what a lost executor had written is still there, and what a task
reads is the same in every attempt.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from icefloe.assets import Assets
from icefloe.errors import ReadOnlyError, StorageError
from icefloe.maintenance.listing import WHOLE, prefixes
from icefloe.maintenance.sweeping import is_old
from icefloe.spark.maintain.jobs import Place
from icefloe.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.format.ragged import Bytes
    from icefloe.storage import Storage

FOLDER = "icefloe/staging/"
"""Other clients of the repository ignore it."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows of one width, in the order of their parts: part `n` begins at row `cuts[n]`."""

    key: str
    width: int
    cuts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.cuts[-1])


@dataclass(frozen=True, slots=True)
class Staging:
    """Objects that live as long as one operation."""

    place: Place
    prefix: str
    """Of their keys. A folder of its own would stay behind on a local disk."""

    @classmethod
    def new(cls, repository: Storage, elsewhere: Storage | str | None) -> Staging:
        """In the storage of the repository, or elsewhere.

        Raises:
            ReadOnlyError: the storage takes no writes.
        """
        storage = repository if elsewhere is None else open_storage(elsewhere)
        if storage.read_only:
            raise ReadOnlyError(
                f"{storage.url} is read-only: give tasks another place for what they hand to each "
                "other, as `staging`",
                kind="read-only-staging",
            )
        return cls(Place.of(Assets(storage)), f"{FOLDER}{uuid4().hex}-")

    @property
    def storage(self) -> Storage:
        return self.place.open().storage

    def put(self, rows: Bytes, cuts: NDArray[np.int64]) -> Run:
        """Keep rows that are in the order of their parts. Each attempt of a task has its own."""
        return Run(self.put_bytes(rows.tobytes()), rows.shape[1], cuts)

    def put_bytes(self, data: bytes) -> str:
        """Keep an object; its key."""
        key = f"{self.prefix}{uuid4().hex}"
        self.storage.put(key, data)
        return key

    def put_sorted(self, rows: Bytes) -> Run:
        """Keep rows that begin with ids, sorted by them; a part for each prefix of ids."""
        return self.put(rows, np.searchsorted(prefixes(rows), np.arange(len(WHOLE) + 1)))

    def rows(self, runs: Iterable[Run], parts: range, width: int) -> Bytes:
        """The rows of some parts in several runs, end to end."""
        ranges = [
            (run.key, int(run.cuts[parts.start]) * width, size * width)
            for run in runs
            if (size := int(run.cuts[parts.stop] - run.cuts[parts.start]))
        ]
        data = b"".join(self.storage.get_ranges(ranges))
        return np.frombuffer(data, np.uint8).reshape(-1, width)

    def clear(self) -> None:
        """Delete them. What cannot be deleted is left to the next garbage collection."""
        with suppress(StorageError):
            self._delete([item.key for page in self.storage.list(self.prefix) for item in page])

    def clear_leftovers(self, cutoff: datetime) -> None:
        """Delete what operations left that were killed before a time."""
        for page in self.storage.list(FOLDER):
            self._delete([item.key for item in page if is_old(item, cutoff)])

    def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            self.storage.delete(keys)
