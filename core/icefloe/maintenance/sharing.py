"""Which bytes of chunks are referred to from where: each counted once, by who shares them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ChunkId
from icefloe.format.ragged import Bytes, Ints, Ragged
from icefloe.maintenance.chunk_keys import LENGTH, WIDTH, keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.chunk_refs import ChunkRefs


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes that exactly these places refer to."""

    places: tuple[int, ...]
    kind: RefKind
    size: int


class Shares:
    """Collects references by place; a place is any number that the caller gives."""

    def __init__(self) -> None:
        self._keys: dict[RefKind, list[Bytes]] = {RefKind.NATIVE: [], RefKind.VIRTUAL: []}
        self._places: dict[RefKind, list[Ints]] = {RefKind.NATIVE: [], RefKind.VIRTUAL: []}
        self._inline: list[Share] = []

    def add(self, place: int, refs: ChunkRefs) -> None:
        for kind, found in stored_keys(refs).items():
            if len(found):
                self._keys[kind].append(found)
                self._places[kind].append(np.full(len(found), place, np.int64))
        if size := inline_bytes(refs):
            self._inline.append(Share((place,), RefKind.INLINE, size))

    def __iter__(self) -> Iterator[Share]:
        """Every byte in exactly one share; inline ones are never shared."""
        yield from self._inline
        for kind, parts in self._keys.items():
            if parts:
                yield from shares_of(
                    kind, np.concatenate(parts), np.concatenate(self._places[kind])
                )


def stored_keys(refs: ChunkRefs) -> dict[RefKind, Bytes]:
    """Keys of the data that native and virtual references mean, each by its kind."""
    native = refs.take(refs.kind == RefKind.NATIVE)
    virtual = refs.take(refs.kind == RefKind.VIRTUAL)
    return {
        RefKind.NATIVE: keys(native, native.chunk_id),
        RefKind.VIRTUAL: keys(virtual, _location_ids(virtual)),
    }


def inline_bytes(refs: ChunkRefs) -> int:
    return 0 if refs.inline is None else int(np.maximum(refs.inline.length, 0).sum())


def _location_ids(refs: ChunkRefs) -> Bytes:
    """Digests of the locations, as wide as ids of chunks: two never meet by chance."""
    if refs.location is None or not len(refs):
        return np.zeros((len(refs), ChunkId.SIZE), np.uint8)
    distinct, codes = refs.location.distinct()
    digests = [blake2b(text or b"", digest_size=ChunkId.SIZE) for text in distinct.tolist()]
    raw = b"".join(digest.digest() for digest in digests)
    column: Bytes = np.frombuffer(raw, np.uint8).reshape(-1, ChunkId.SIZE)[codes]
    return column


def shares_of(kind: RefKind, found: Bytes, place: Ints) -> Iterator[Share]:
    """The shares of references, given the key of each and its place."""
    distinct, code = Ragged.fixed(found).distinct()
    size = distinct.packed().data.reshape(-1, WIDTH)[:, LENGTH].copy().view("<u8").ravel()
    span = int(place.max()) + 1
    # Each pair once; sorted, so the places of one key lie together.
    pairs = np.unique(code * span + place)
    place = pairs % span
    first = np.flatnonzero(np.diff(pairs // span, prepend=-1))
    # Keys with the same set of places fall together by the sum of random numbers for its members.
    weight = np.random.default_rng(0).integers(2**64 - 1, size=span, dtype=np.uint64)
    signature = np.add.reduceat(weight[place], first)
    _, example, group = np.unique(signature, return_index=True, return_inverse=True)
    total = np.zeros(len(example), np.uint64)
    np.add.at(total, group, size)
    ends = np.append(first[1:], len(place))
    for row, size_of in zip(example.tolist(), total.tolist(), strict=True):
        yield Share(tuple(place[first[row] : ends[row]].tolist()), kind, size_of)
