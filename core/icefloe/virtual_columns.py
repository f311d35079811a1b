"""References to virtual chunks as columns, from the forms in which users have them."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ragged import Ragged
from icefloe.virtual import VirtualChunkSpec
from icefloe.virtual.spec import last_modified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def virtual_spec(
    index: Sequence[int], location: str, offset: int, length: int, checksum: str | datetime | None
) -> VirtualChunkSpec:
    """One chunk, with a checksum of either kind."""
    etag = checksum if isinstance(checksum, str) else None
    changed_at = checksum if isinstance(checksum, datetime) else None
    return VirtualChunkSpec(index, location, offset, length, etag, changed_at)


def virtual_columns(specs: Sequence[VirtualChunkSpec]) -> ChunkRefs:
    """Many chunks, described one by one."""
    items = [(tuple(spec.index), spec.ref()) for spec in specs]
    ranks = {len(index) for index, _ in items}
    if len(ranks) != 1:
        raise InvalidInputError(
            f"chunks of one array have one number of coordinates, not {sorted(ranks)}",
            kind="invalid-chunk-index",
        )
    return ChunkRefs.of(items, ranks.pop())


def virtual_grid(
    shape: Sequence[int],
    locations: Sequence[str],
    offsets: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    first: Sequence[int] | None,
    checksum: datetime | str | None,
) -> ChunkRefs:
    """All chunks of a box in C order; those with an empty location are left out.

    Args:
        shape: of the box, in chunks.
        locations: one for each chunk.
        offsets: in bytes.
        lengths: in bytes.
        first: coordinates of the box's first chunk; None: the array's first.
        checksum: one for all.

    Raises:
        InvalidInputError: the columns differ in length, or do not fill the box.
    """
    count = math.prod(shape)
    if not len(locations) == len(offsets) == len(lengths) == count:
        raise InvalidInputError(
            f"a box of {tuple(shape)} chunks takes {count} locations, offsets and lengths, not "
            f"{len(locations)}, {len(offsets)} and {len(lengths)}",
            kind="invalid-virtual-refs",
        )
    origin = np.zeros(len(shape), np.int64) if first is None else np.array(first, np.int64)
    if len(origin) != len(shape) or bool((origin < 0).any()):
        raise InvalidInputError(f"{first} is no place for a box of {tuple(shape)} chunks")
    index = np.indices(tuple(shape)).reshape(len(shape), count).T + origin
    column = _shared(locations)
    rows = column.length > 0
    etag = None
    modified = None
    if isinstance(checksum, str):
        etag = _shared([checksum.strip('"')]).take(np.zeros(int(rows.sum()), np.int64))
    elif checksum is not None:
        modified = np.full(int(rows.sum()), last_modified(checksum) or 0, np.uint32)
    return ChunkRefs.virtual(
        index.astype(np.uint32)[rows],
        column.take(rows),
        np.asarray(offsets, np.uint64)[rows],
        np.asarray(lengths, np.uint64)[rows],
        checksum_etag=etag,
        checksum_last_modified=modified,
    )


def _shared(texts: Sequence[str]) -> Ragged:
    """A column in which equal texts share their bytes."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter((numbers[text] for text in texts), np.int64, len(texts))
    return Ragged.of_text(numbers).take(codes)
