"""What the first job of `virtualize` leaves for the second: reports and staged manifests."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId, NodeId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.spark.hdf5_variable import Variable
    from icefloe.spark.source import Source
    from icefloe.storage.protocol import Storage

SMALL = 2**20
"""Bytes: values of at most so many are staged in case that references to them do not fit."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tasks share: where to stage, and what to read of the files."""

    source: Source
    storages: Mapping[str, Storage]
    group: str
    loadable: frozenset[str]
    drop: frozenset[str]
    sort_by: str | None
    checksum: bool


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What one file holds. `loaded` has, for each variable, a digest of its values if staged."""

    location: str
    variables: tuple[Variable, ...]
    groups: tuple[tuple[str, str], ...]
    loaded: tuple[bytes | None, ...]
    refs: bytes
    """Ids of the manifests with the references, and with the values; zeros where there is none."""
    values: bytes
    key: Any
    """The first value of the coordinate to sort by."""
    dropped: frozenset[str]
    """The variables that were left out."""


def loading(variable: Variable, loadable: frozenset[str]) -> tuple[bool, bool]:
    """Whether the values of a variable must be copied, and whether they may."""
    wanted = variable.name in loadable or variable.is_coordinate
    must = wanted or not variable.shape or bool(variable.obstacle)
    return must, wanted or variable.nbytes <= SMALL


def root_of(location: str) -> str:
    """The URL of the bucket or host that a location is in; `file://` for files of this host."""
    scheme, _, rest = location.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def staged_id(number: int, variable: int) -> NodeId:
    """What stands for a variable of a file in a staged manifest: it has no node yet."""
    return NodeId(struct.pack(">II", number, variable))


def staged_refs(
    assets: Assets, manifest_ids: NDArray[np.uint8], numbers: Sequence[int], places: Sequence[int]
) -> list[ChunkRefs]:
    """What tasks staged of a variable for each of these files: references, or its values inline."""
    ids = dict.fromkeys(ManifestId(row.tobytes()) for row in manifest_ids if row.any())
    wanted = list(map(staged_id, numbers, places))
    arrays = dict.fromkeys(wanted, ChunkRefs.empty(0))
    for staged in assets.manifests([*ids]):
        arrays |= {item.node_id: item.refs for item in staged.arrays if item.node_id in arrays}
    return [arrays[node_id] for node_id in wanted]
