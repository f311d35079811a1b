"""What snapshots expect of manifests: collected while snapshots are read, checked afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.ids import ManifestId

if TYPE_CHECKING:
    from icefloe.format.ids import NodeId
    from icefloe.format.nodes import Node
    from icefloe.format.ragged import Bytes
    from icefloe.format.snapshot import ManifestFiles

type Box = tuple[tuple[int, int], ...]
"""From inclusive, to exclusive, for each dimension."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where an array looks for some of its chunks; no extents: for all of them."""

    path: str
    node_id: NodeId
    extents: Box
    rank: int


@dataclass(slots=True)
class Use:
    """What is true of one place in all snapshots."""

    num_chunks: tuple[int, ...]
    """The smallest grid."""
    zarr_json: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Expectation:
    """What all snapshots say of one manifest."""

    needed_by: str
    """The first file that mentions it, by name."""
    sizes: set[tuple[int, int]] = field(default_factory=set)
    """(bytes of the file, number of references)"""
    uses: dict[Place, Use] = field(default_factory=dict)

    def add_use(self, place: Place, num_chunks: tuple[int, ...], zarr_json: set[bytes]) -> None:
        use = self.uses.setdefault(place, Use(num_chunks))
        use.num_chunks = tuple(map(min, use.num_chunks, num_chunks))
        use.zarr_json |= zarr_json

    def merge(self, other: Expectation) -> None:
        self.needed_by = min(self.needed_by, other.needed_by)
        self.sizes |= other.sizes
        for place, use in other.uses.items():
            self.add_use(place, use.num_chunks, use.zarr_json)


class Catalogue:
    def __init__(self) -> None:
        self._manifests: dict[bytes, Expectation] = {}

    def add_files(self, files: ManifestFiles, needed_by: str) -> None:
        rows = zip(files.id, files.size_bytes.tolist(), files.num_chunk_refs.tolist(), strict=True)
        for raw, size, count in rows:
            self._of(raw, needed_by).sizes.add((size, count))

    def add_node(self, node: Node, needed_by: str) -> None:
        if node.array is None:
            return
        num_chunks = tuple(dimension.num_chunks for dimension in node.array.shape)
        refs = node.array.manifests
        for raw, box in zip(refs.object_id, refs.extents.tolist(), strict=True):
            extents = tuple((low, high) for low, high in box)
            place = Place(node.path, node.id, extents, len(num_chunks))
            self._of(raw, needed_by).add_use(place, num_chunks, {node.user_data})

    def _of(self, raw: Bytes, needed_by: str) -> Expectation:
        return self._manifests.setdefault(raw.tobytes(), Expectation(needed_by))

    def merge(self, other: Catalogue) -> Catalogue:
        """With all that the other one says, too."""
        for raw, theirs in other._manifests.items():
            ours = self._manifests.setdefault(raw, theirs)
            if ours is not theirs:
                ours.merge(theirs)
        return self

    def ids(self) -> Bytes:
        raw = b"".join(sorted(self._manifests))
        return np.frombuffer(raw, np.uint8).reshape(-1, ManifestId.SIZE)

    def __len__(self) -> int:
        return len(self._manifests)

    def __getitem__(self, manifest_id: bytes) -> Expectation:
        return self._manifests[manifest_id]
