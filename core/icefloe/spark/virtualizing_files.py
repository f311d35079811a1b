"""The first job of `virtualize`: what files hold, with their references and small values staged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.format import manifest as manifest_file
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.ragged import Ragged
from icefloe.spark import hdf5
from icefloe.spark.hdf5_files import open_hdf5
from icefloe.spark.hdf5_variable import values_of
from icefloe.spark.virtualizing_staging import SMALL, Reading, StagedFile, loading, staged_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.assets import Assets
    from icefloe.errors import IcefloeError
    from icefloe.spark.hdf5_files import OpenFile
    from icefloe.spark.hdf5_variable import Variable

_LARGE = 2**28
_REFS = 200_000
"""References in one staged manifest, or those of one file."""


@dataclass(slots=True)
class _Manifests:
    """Manifests to be: each gets the arrays of whole files."""

    assets: Assets
    id: ManifestId = field(default_factory=ManifestId.random)
    arrays: list[ArrayManifest] = field(default_factory=list)
    weight: int = 0

    def add(self, number: int, variable: int, refs: ChunkRefs, weight: int) -> None:
        self.arrays.append(ArrayManifest(staged_id(number, variable), refs))
        self.weight += weight

    def id_since(self, count: int) -> bytes:
        """The id, or zeros if there are no more arrays than this."""
        return self.id.raw if len(self.arrays) > count else bytes(ManifestId.SIZE)

    def store(self) -> None:
        if self.arrays:
            data = manifest_file.encode(Manifest(self.id, tuple(self.arrays)))
            self.assets.put_manifests([(self.id, data)])
        self.id, self.arrays, self.weight = ManifestId.random(), [], 0


def stage_files(
    reading: Reading, item: tuple[int, Sequence[str]]
) -> list[StagedFile | IcefloeError]:
    """Stage some files, numbered from the first number on; what is wrong with the first bad one."""
    first, locations = item
    assets = reading.source.open().context.assets
    refs, values = _Manifests(assets), _Manifests(assets)
    staged: list[StagedFile | IcefloeError] = []
    # Files are mostly alike: what they share crosses to the driver once for each task.
    known: dict[Any, Any] = {}
    for number, location in enumerate(locations, first):
        try:
            with open_hdf5(location, reading.storages) as opened:
                staged.append(_stage(reading, opened, number, refs, values, known))
        except (InvalidInputError, NotFoundError) as error:
            # Trying again would not help, and the driver tells it better than a failed job.
            return [error]
        if refs.weight > _REFS:
            refs.store()
        if values.weight > SMALL:
            values.store()
    refs.store()
    values.store()
    return staged


def _stage(
    reading: Reading,
    opened: OpenFile,
    number: int,
    refs: _Manifests,
    values: _Manifests,
    known: dict[Any, Any],
) -> StagedFile:
    variables = hdf5.read_variables(opened, reading.group, reading.drop)
    dropped = hdf5.found_names(opened, reading.group, reading.drop)
    groups = hdf5.read_groups(opened, reading.group)
    counts = len(refs.arrays), len(values.arrays)
    digests: list[bytes | None] = []
    key = None
    for at, variable in enumerate(variables):
        must, may = loading(variable, reading.loadable)
        _require(opened, variable, may=may)
        if not must:
            found = hdf5.read_refs(opened, reading.group, variable, checksum=reading.checksum)
            refs.add(number, at, found, len(found))
        digest = None
        data = _values(reading, opened, variable, must=must) if may else None
        if data is not None:
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if data:
                values.add(number, at, _inline(data), len(data))
            if variable.name == reading.sort_by:
                key = values_of(variable, data).reshape(-1)[:1].tolist()
        digests.append(digest)
    return StagedFile(
        opened.location,
        known.setdefault(variables, variables),
        known.setdefault(groups, groups),
        known.setdefault(tuple(digests), tuple(digests)),
        refs.id_since(counts[0]),
        values.id_since(counts[1]),
        key,
        known.setdefault(dropped, dropped),
    )


def _values(reading: Reading, opened: OpenFile, variable: Variable, *, must: bool) -> bytes | None:
    """The values of a variable; None if they cannot be read, and need not be."""
    try:
        return hdf5.read_values(opened, reading.group, variable)
    except InvalidInputError:
        if must or variable.name == reading.sort_by:
            raise
        return None


def _require(opened: OpenFile, variable: Variable, *, may: bool) -> None:
    name = variable.name
    if variable.obstacle and not may:
        raise hdf5.unsupported(
            opened.location,
            name,
            f"{variable.obstacle}: copy it, with loadable=[{name!r}], or leave it out, with "
            f"drop=[{name!r}]",
        )
    if may and variable.nbytes > _LARGE:
        raise hdf5.unsupported(
            opened.location,
            name,
            f"{variable.nbytes:,} bytes of one file are too many to copy: use ingest",
        )


def _inline(data: bytes) -> ChunkRefs:
    return ChunkRefs.of_inline(np.zeros((1, 0), np.uint32), Ragged.of([data]))
