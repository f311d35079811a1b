"""Verification: reads a repository as a doubting reader would, and says what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import list_ids
from icefloe.maintenance.marking import read_all
from icefloe.maintenance.progress import Meter, Report
from icefloe.maintenance.verification.catalogue import Catalogue
from icefloe.maintenance.verification.data import Array, DataChecks, DecodeChunk
from icefloe.maintenance.verification.findings import Finding, missing, unreadable
from icefloe.maintenance.verification.logs import check_logs
from icefloe.maintenance.verification.manifests import check_manifest, read_manifest
from icefloe.maintenance.verification.objects import ChunkEnds, check_refs
from icefloe.maintenance.verification.repo_object import check_ops_log, check_repo
from icefloe.maintenance.verification.snapshots import SnapshotChecks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.assets import Assets
    from icefloe.format.manifest import Manifest
    from icefloe.format.ragged import Bytes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.listing import IdPage

type Level = Literal["metadata", "objects", "data"]

CONCURRENCY = 32
_LEVELS = ("metadata", "objects", "data")


def verify(
    assets: Assets,
    level: Level = "metadata",
    *,
    decode_chunk: DecodeChunk | None = None,
    concurrency: int = CONCURRENCY,
    progress: Report | None = None,
) -> Iterator[Finding]:
    """All that is wrong with a repository, as it is found.

    Looks at everything that any listed snapshot needs, detached ones included; objects that nothing
    needs are no fault.

    Args:
        assets: the files of the repository.
        level: `metadata` reads all metadata files; `objects` also lists the chunk objects and
            compares them with all references; `data` also reads and decodes all chunks but virtual
            ones.
        decode_chunk: raises if the bytes of a chunk are bad; needed for `data`.
        concurrency: how many prefixes to list at a time.
        progress: is told, often, how far it is.

    Raises:
        InvalidInputError: there is no such level, or no `decode_chunk` for `data`.
        NotFoundError: there is no repository.
    """
    if level not in _LEVELS:
        raise InvalidInputError(f"{level!r} is none of the levels {', '.join(_LEVELS)}")
    if level == "data" and decode_chunk is None:
        raise InvalidInputError("level 'data' needs decode_chunk")
    return _Verifier(assets, level, decode_chunk, concurrency, Meter(progress)).findings()


class _Verifier:
    def __init__(
        self,
        assets: Assets,
        level: Level,
        decode: DecodeChunk | None,
        concurrency: int,
        meter: Meter,
    ) -> None:
        self._assets = assets
        self._storage = assets.storage
        self._level = level
        self._decode = decode
        self._concurrency = concurrency
        self._meter = meter
        self._catalogue = Catalogue()
        self._ends = ChunkEnds()

    def findings(self) -> Iterator[Finding]:
        try:
            info, _ = self._assets.repo()
        except FormatError as error:
            yield unreadable("repo", error, "roll back to a copy in overwritten/")
            return
        self._meter.enter("history")
        yield from check_repo(info)
        yield from check_ops_log(self._assets)
        yield from check_logs(self._storage, info, self._present("transactions/"))
        self._meter.enter("snapshots")
        yield from self._check_snapshots(info)
        self._meter.enter("manifests")
        yield from self._check_manifests()
        if self._level == "metadata":
            return
        self._meter.enter("chunks")
        broken = self._ends.broken(self._listed("chunks/"))
        if broken:
            yield from self._check_objects(broken)
        if self._decode is not None and self._level == "data":
            self._meter.enter("data")
            yield from self._check_data(DataChecks(self._storage, self._decode), broken)

    def _check_snapshots(self, info: RepoInfo) -> Iterator[Finding]:
        checks = SnapshotChecks(self._catalogue)
        ids = info.snapshots.id
        is_there = self._present("snapshots/").contains(ids)
        for raw in ids[~is_there]:
            yield missing(f"snapshots/{SnapshotId(raw.tobytes())}", "the repo object")
        for key, data in read_all(self._storage, "snapshots/", ids[is_there]):
            row = info.snapshots.row(SnapshotId.parse(key.rpartition("/")[2]))
            if row is not None:
                yield from checks.check(info.snapshots[row], key, data)
            self._meter.read_snapshot()

    def _check_manifests(self) -> Iterator[Finding]:
        ids = self._catalogue.ids()
        is_there = self._present("manifests/").contains(ids)
        for raw in ids[~is_there]:
            by = self._catalogue[raw.tobytes()].needed_by
            yield missing(f"manifests/{ManifestId(raw.tobytes())}", by)
        for key, data in read_all(self._storage, "manifests/", ids[is_there]):
            value = read_manifest(key, data)
            self._meter.read_manifest()
            if isinstance(value, Finding):
                yield value
                continue
            expected = self._catalogue[value.id.raw]
            yield from check_manifest(key, len(data), value, expected)
            if self._level != "metadata":
                for node_id in {place.node_id for place in expected.uses}:
                    refs = value.array(node_id)
                    if refs is not None:
                        self._ends.add(refs)

    def _check_objects(self, broken: Mapping[bytes, int | None]) -> Iterator[Finding]:
        """Read the manifests once more, to say which chunks of which arrays suffer."""
        for key, value in self._sound_manifests():
            uses = self._catalogue[value.id.raw].uses
            for path, node_id in sorted({(place.path, place.node_id) for place in uses}):
                refs = value.array(node_id)
                if refs is not None:
                    yield from check_refs(key, path, refs, broken)

    def _check_data(
        self, checks: DataChecks, broken: Mapping[bytes, int | None]
    ) -> Iterator[Finding]:
        for key, value in self._sound_manifests():
            for place, use in self._catalogue[value.id.raw].uses.items():
                refs = value.array(place.node_id)
                for zarr_json in sorted(use.zarr_json):
                    if refs is not None:
                        array = Array(place.path, zarr_json, key)
                        yield from checks.check(array, refs, broken)

    def _sound_manifests(self) -> Iterator[tuple[str, Manifest]]:
        ids = self._catalogue.ids()
        there: Bytes = ids[self._present("manifests/").contains(ids)]
        for key, data in read_all(self._storage, "manifests/", there):
            value = read_manifest(key, data)
            if not isinstance(value, Finding):
                yield key, value

    def _listed(self, folder: str) -> Iterator[IdPage]:
        for page in list_ids(self._storage, folder, concurrency=self._concurrency):
            self._meter.listed(len(page.objects))
            yield page

    def _present(self, folder: str) -> IdSet:
        found = IdSet()
        for page in self._listed(folder):
            found.add(page.id)
        return found
