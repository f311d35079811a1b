"""Sets of object ids in 12 bytes each, sorted: ten million take 120 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.ids import ObjectId, as_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.ragged import Bytes

_BATCH = 2**16
_PEAK = 4
"""Growing takes this many times the bytes of the ids, for a moment."""


class IdSet:
    """Grows by whole columns of ids, or of longer keys; never shrinks."""

    def __init__(self, ids: Bytes | None = None, *, width: int = ObjectId.SIZE) -> None:
        self._width = width
        self._keys = as_keys(np.zeros((0, width), np.uint8))
        self._new: list[Bytes] = []
        self._new_count = 0
        if ids is not None:
            self.add(ids)

    def add(self, ids: Bytes) -> None:
        self._new.append(ids)
        self._new_count += len(ids)
        # Sorting as much as is sorted already keeps the work per id constant.
        if self._new_count > max(_BATCH, len(self._keys)):
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return len(self._keys)

    @property
    def peak_bytes(self) -> int:
        """What this may take while it grows."""
        return _PEAK * self._width * (len(self._keys) + self._new_count)

    def ids(self) -> Bytes:
        """All of them, sorted, each once."""
        self._merge()
        return self._keys.view(np.uint8).reshape(-1, self._width)

    def contains(self, ids: Bytes) -> NDArray[np.bool_]:
        self._merge()
        if not len(self._keys) or not len(ids):
            return np.zeros(len(ids), np.bool_)
        wanted = as_keys(ids)
        place = np.searchsorted(self._keys, wanted)
        found: NDArray[np.bool_] = self._keys[np.minimum(place, len(self._keys) - 1)] == wanted
        return found

    def _merge(self) -> None:
        if self._new:
            old = self._keys.view(np.uint8).reshape(-1, self._width)
            self._keys = _distinct(np.concatenate([old, *self._new]))
            self._new, self._new_count = [], 0


def _distinct(ids: Bytes) -> NDArray[np.bytes_]:
    """The ids as keys, sorted, each once."""
    # Integers sort many times faster than strings, and the first eight bytes nearly always differ.
    first = np.ascontiguousarray(ids[:, :8]).view(">u8").ravel()
    keys = as_keys(ids[np.argsort(first.astype(np.uint64))])
    if not bool((keys[:-1] <= keys[1:]).all()):
        keys = np.sort(keys)
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = keys[1:] != keys[:-1]
    return keys[fresh]
