"""Checks of the data itself: every chunk decodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ChunkId
from icefloe.maintenance.chunk_keys import WIDTH, keys
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.format.ragged import Ints
    from icefloe.maintenance.verification.findings import Sourced
    from icefloe.maintenance.verification.objects import BrokenObjects
    from icefloe.storage import ObjectRange, Storage

type DecodeChunk = Callable[[bytes, tuple[int, ...], bytes], object]
"""Decodes a chunk of an array, given its zarr.json, its coordinates and its bytes, or raises."""

_BATCH_BYTES = 2**26
# What may change without a change to the chunks.
_OUTER = frozenset({"attributes", "shape", "dimension_names"})


@dataclass(frozen=True, slots=True)
class Array:
    """One state of an array, and a manifest of it."""

    path: str
    zarr_json: bytes
    manifest: str


class DataChecks:
    """Decodes each chunk once, however many manifests mention it. Virtual chunks are not read."""

    def __init__(self, storage: Storage, decode: DecodeChunk) -> None:
        self._storage = storage
        self._decode = decode
        self._done: dict[str, IdSet] = {}

    def check(self, array: Array, refs: ChunkRefs, broken: BrokenObjects) -> Iterator[Sourced]:
        """Chunks in `broken` objects are left out: they were found wanting before."""
        for row in np.flatnonzero(refs.kind == RefKind.INLINE).tolist():
            data = (refs.inline[row] if refs.inline is not None else None) or b""
            for finding in self._check_one(array, array.manifest, refs, row, data):
                yield finding, None
        is_native = (refs.kind == RefKind.NATIVE) & (refs.length > 0)
        intact = broken.sizes(refs.chunk_id) == broken.INTACT
        encoding = _encoding(array.zarr_json)
        rows = self._fresh(encoding, refs, np.flatnonzero(is_native & intact))
        for batch in _batches(refs, rows):
            ranges = _ranges(refs, batch)
            found = self._storage.get_ranges(ranges)
            for wanted, row, data in zip(ranges, batch.tolist(), found, strict=True):
                for finding in self._check_one(array, wanted[0], refs, row, data):
                    text = repr((encoding, wanted)).encode()
                    yield finding, blake2b(text, digest_size=16).hexdigest()

    def _fresh(self, encoding: str, refs: ChunkRefs, rows: Ints) -> Ints:
        """Those that were not decoded with the same metadata before."""
        done = self._done.setdefault(encoding, IdSet(width=WIDTH))
        part = refs.take(rows)
        found = keys(part, part.chunk_id)
        is_fresh = ~done.contains(found)
        done.add(found[is_fresh])
        return rows[is_fresh]

    def _check_one(
        self, array: Array, file: str, refs: ChunkRefs, row: int, data: bytes
    ) -> Iterator[Finding]:
        coords = tuple(refs.index[row].tolist())
        try:
            self._decode(array.zarr_json, coords, data)
        except Exception as error:  # whatever a codec may raise
            yield Finding(
                severity="error",
                kind="undecodable-chunk",
                file=file,
                array=array.path,
                chunk=coords,
                message=f"its {len(data)} bytes do not decode: {error!r}",
                what_to_do="write the chunk again, or reset the branch to a snapshot without it",
            )


def _encoding(zarr_json: bytes) -> str:
    """Equal for all states of an array whose chunks are encoded alike."""
    try:
        document = json.loads(zarr_json)
        return json.dumps({name: document[name] for name in sorted({*document} - _OUTER)})
    except (ValueError, TypeError):
        return repr(zarr_json)


def _ranges(refs: ChunkRefs, rows: Ints) -> list[ObjectRange]:
    columns = zip(
        refs.chunk_id[rows], refs.offset[rows].tolist(), refs.length[rows].tolist(), strict=True
    )
    return [(f"chunks/{ChunkId(raw.tobytes())}", start, length) for raw, start, length in columns]


def _batches(refs: ChunkRefs, rows: Ints) -> Sequence[Ints]:
    if not len(rows):
        return []
    total = np.cumsum(refs.length[rows])
    return np.split(rows, np.flatnonzero(np.diff(total // np.uint64(_BATCH_BYTES))) + 1)
