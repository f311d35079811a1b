"""Storage statistics: how many bytes of chunks there are, and who needs them.

References to the same bytes of an object count once, packed chunks and virtual ones included. Takes
about 200 bytes of memory for each reference in the manifests that are in use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format import manifest, snapshot
from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.ragged import starts
from icefloe.maintenance.marking import read_all
from icefloe.maintenance.pruning import ancestry, reachable
from icefloe.maintenance.sharing import Shares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from icefloe.assets import Assets
    from icefloe.format.nodes import Nodes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.sharing import Share
    from icefloe.storage import Storage

type By = Literal["repository", "array", "snapshot", "branch"]
type Owners = Callable[[int], frozenset[str] | None]
"""Names of who needs the snapshot of a row; None: each of its arrays, by path."""
type Part = tuple[bytes, bytes]
"""A manifest and a node: the unit in which snapshots share references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Bytes of chunks, each counted once."""

    name: str
    """The path, snapshot or branch; empty for the repository."""
    native_bytes: int
    virtual_bytes: int
    inlined_bytes: int
    exclusive_bytes: int
    """Native and inline ones that nothing else of this kind needs: gone if this goes."""

    @property
    def shared_bytes(self) -> int:
        """Native and inline ones that something else of this kind needs too."""
        return self.non_virtual_bytes() - self.exclusive_bytes

    # Methods, as in the official library.
    def non_virtual_bytes(self) -> int:
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        return self.non_virtual_bytes() + self.virtual_bytes


def chunk_storage_stats(assets: Assets, by: By = "repository") -> tuple[StorageStats, ...]:
    """What the snapshots need that some branch or tag holds, sorted by name.

    Of a snapshot, `exclusive_bytes` is what garbage collection would free if it alone were expired;
    chunks packed into one object are freed together, when the last of them is. Names that need
    nothing are left out.

    Raises:
        InvalidInputError: there is no such breakdown.
    """
    info, _ = assets.repo()
    owners = owners_by(info, by)
    needed: dict[Part, set[str]] = {}
    for key, data in read_all(assets.storage, "snapshots/", info.snapshots.id[reachable(info)]):
        row = info.snapshots.row(SnapshotId.parse(key.rpartition("/")[2]))
        if row is not None:
            add_needs(needed, key, data, owners(row))
    return counted(_shares(assets.storage, [*needed]), [*needed.values()])


def owners_by(info: RepoInfo, by: By) -> Owners:
    """Raises InvalidInputError if there is no such breakdown."""
    match by:
        case "repository":
            return lambda row: frozenset([""])
        case "array":
            return lambda row: None
        case "snapshot":
            return lambda row: frozenset([str(info.snapshots.id_at(row))])
        case "branch":
            tips = info.branches.todict()
            held = {
                name: ancestry(info.snapshots, np.array([tip], np.uint32))
                for name, tip in tips.items()
            }
            return cache(lambda row: frozenset(name for name in held if held[name][row]))
        case _:
            raise InvalidInputError(f"by is {by!r}: repository, array, snapshot or branch")


def add_needs(
    needed: dict[Part, set[str]], key: str, data: bytes, owners: frozenset[str] | None
) -> None:
    """Add what a snapshot file needs: for each part, its owners."""
    for path, part in _parts(snapshot.decode(data, name=key).nodes):
        needed.setdefault(part, set()).update([path] if owners is None else owners)


def _parts(nodes: Nodes) -> Iterator[tuple[str, Part]]:
    count = np.maximum(nodes.manifest_count, 0)
    first = starts(count)
    paths = nodes.path.texts()
    for row in np.flatnonzero(count).tolist():
        node_id = nodes.id[row].tobytes()
        for raw in nodes.manifest_id[first[row] : first[row] + count[row]]:
            yield paths[row], (raw.tobytes(), node_id)


def _shares(storage: Storage, parts: list[Part]) -> Shares:
    """The references of these parts; places are their numbers."""
    number = {part: place for place, part in enumerate(parts)}
    names = b"".join(sorted({manifest_id for manifest_id, _ in parts}))
    ids = np.frombuffer(names, np.uint8).reshape(-1, ManifestId.SIZE)
    shares = Shares()
    for key, data in read_all(storage, "manifests/", ids):
        value = manifest.decode(data, name=key)
        for array in value.arrays:
            place = number.get((value.id.raw, array.node_id.raw))
            if place is not None:
                shares.add(place, array.refs)
    return shares


def counted(shares: Iterable[Share], owners: Sequence[Collection[str]]) -> tuple[StorageStats, ...]:
    """Totals by name, given the names of each place."""
    size: dict[RefKind, Counter[str]] = {kind: Counter() for kind in RefKind}
    exclusive: Counter[str] = Counter()
    for share in shares:
        names = set().union(*(owners[place] for place in share.places))
        for name in names:
            size[share.kind][name] += share.size
        if len(names) == 1 and share.kind != RefKind.VIRTUAL:
            exclusive[min(names)] += share.size
    return tuple(
        StorageStats(
            name=name,
            native_bytes=size[RefKind.NATIVE][name],
            virtual_bytes=size[RefKind.VIRTUAL][name],
            inlined_bytes=size[RefKind.INLINE][name],
            exclusive_bytes=exclusive[name],
        )
        for name in sorted(set().union(*owners))
    )
