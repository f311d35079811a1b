"""Keys of chunk data: equal for references to the same bytes of the same object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.format.ragged import Bytes

WIDTH = 28
"""Bytes of a key: what holds the data (12), offset (8), length (8)."""
LENGTH = slice(20, 28)


def keys(refs: ChunkRefs, holder: Bytes) -> Bytes:
    """One row for each reference; `holder` says in 12 bytes what it refers to."""
    return np.concatenate(
        [
            holder,
            np.ascontiguousarray(refs.offset, "<u8").view(np.uint8).reshape(-1, 8),
            np.ascontiguousarray(refs.length, "<u8").view(np.uint8).reshape(-1, 8),
        ],
        axis=1,
    )
