"""Manifests taken over whole: what they replace, and how lists of them join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.chunk_edits import rows_in
from icefloe.errors import InvalidInputError
from icefloe.format.ids import as_keys
from icefloe.format.nodes import ManifestRefs
from icefloe.format.ragged import Ragged
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.transaction_log import union_of_coordinates
from icefloe.splitting import cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Adopted:
    """Manifests that others wrote for whole cells of an array's split, to stand as they are."""

    sizes: tuple[int, ...]
    """Chunks per cell along each axis."""
    cells: NDArray[np.int64]
    """(n, dimensions): in these, nothing of the base stays."""
    manifests: ManifestRefs
    files: ManifestFiles
    index: NDArray[np.uint32]
    """(n, dimensions): the chunks that changed, sorted, each once."""

    def then(self, later: Adopted) -> Adopted:
        """Both; the later one counts in the cells that both have.

        Raises:
            InvalidInputError: they were cut differently.
        """
        if self.sizes != later.sizes:
            raise InvalidInputError(
                f"manifests of one array were cut by {self.sizes} and by {later.sizes}"
            )
        stays = ~rows_in(self.cells, later.cells)
        kept = outside_cells(self.manifests, later.sizes, later.cells)
        return Adopted(
            self.sizes,
            np.concatenate([self.cells[stays], later.cells]),
            joined_manifests([kept, later.manifests]),
            joined_files([self.files, later.files]),
            union_of_coordinates([self.index, later.index]),
        )


def outside_cells(
    manifests: ManifestRefs, sizes: tuple[int, ...], gone: NDArray[np.int64]
) -> ManifestRefs:
    """The manifests that lie in none of these cells.

    Raises:
        InvalidInputError: one lies in one of them and in another that is not among them.
    """
    if not len(manifests) or not len(gone):
        return manifests
    low, high = manifest_cells(manifests, sizes)
    met = rows_in(low, gone)
    # Few manifests, if any, lie in several cells: only those are looked at one by one.
    for row in np.flatnonzero((low != high).any(axis=1)).tolist():
        inside = ((gone >= low[row]) & (gone <= high[row])).all(axis=1).sum()
        met[row] = inside > 0
        # As floats: the cells of a manifest without extents are more than 64 bits can count.
        if 0 < inside < np.prod(high[row] - low[row] + 1.0):
            raise InvalidInputError(
                "a manifest of the base reaches into cells that were not written: write those, too"
            )
    return ManifestRefs(manifests.object_id[~met], manifests.extents[~met])


def manifest_cells(
    manifests: ManifestRefs, sizes: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last cell of each manifest; one without extents may lie anywhere."""
    rank = len(sizes)
    if manifests.extents.shape[1] != rank:
        low = np.zeros((len(manifests), rank), np.int64)
        return low, np.full_like(low, np.iinfo(np.int64).max // 2)
    last = np.maximum(manifests.extents[:, :, 1], 1) - np.uint32(1)
    return cells(manifests.extents[:, :, 0], sizes), cells(last, sizes)


def joined_manifests(parts: Sequence[ManifestRefs]) -> ManifestRefs:
    filled = [part for part in parts if len(part)] or list(parts[:1])
    return ManifestRefs(
        np.concatenate([part.object_id for part in filled]),
        np.concatenate([part.extents for part in filled]),
    )


def joined_files(parts: Sequence[ManifestFiles]) -> ManifestFiles:
    """All files of several lists, each once."""
    joined = ManifestFiles(
        np.concatenate([files.id for files in parts]),
        np.concatenate([files.size_bytes for files in parts]),
        np.concatenate([files.num_chunk_refs for files in parts]),
        Ragged.concat([files.extra for files in parts]),
    )
    _, first = np.unique(as_keys(joined.id), return_index=True)
    return joined.take(first)
