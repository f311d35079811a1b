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
from icefloe.maintenance.verification.logs import NeededLogs, check_logs
from icefloe.maintenance.verification.manifests import check_manifest, read_manifest
from icefloe.maintenance.verification.objects import BrokenObjects, ChunkEnds, check_refs
from icefloe.maintenance.verification.repo_object import check_ops_log, check_repo
from icefloe.maintenance.verification.snapshots import SnapshotChecks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.assets import Assets
    from icefloe.format.manifest import Manifest
    from icefloe.format.ragged import Bytes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.listing import IdPage
    from icefloe.maintenance.verification.catalogue import Expectation
    from icefloe.maintenance.verification.findings import Sourced
    from icefloe.storage import Storage

type Level = Literal["metadata", "objects", "data"]

CONCURRENCY = 32
LEVELS = ("metadata", "objects", "data")


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
    check_level(level)
    if level == "data" and decode_chunk is None:
        raise InvalidInputError("level 'data' needs decode_chunk")
    return _Verifier(assets, level, decode_chunk, concurrency, Meter(progress)).findings()


def check_level(level: Level) -> None:
    """Raises InvalidInputError if there is no such level."""
    if level not in LEVELS:
        raise InvalidInputError(f"{level!r} is none of the levels {', '.join(LEVELS)}")


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
        logs = NeededLogs.of(info)
        yield from check_logs(self._storage, logs, self._present("transactions/"))
        self._meter.enter("snapshots")
        yield from self._check_snapshots(info)
        self._meter.enter("manifests")
        yield from self._check_manifests()
        if self._level == "metadata":
            return
        self._meter.enter("chunks")
        broken = self._ends.broken(self._listed("chunks/"))
        if len(broken):
            # Read the manifests once more, to say which chunks of which arrays suffer.
            for key, value in self._sound_manifests():
                yield from check_objects(key, value, self._catalogue[value.id.raw], broken)
        if self._decode is not None and self._level == "data":
            self._meter.enter("data")
            checks = DataChecks(self._storage, self._decode)
            for key, value in self._sound_manifests():
                expected = self._catalogue[value.id.raw]
                for finding, _ in check_data(checks, key, value, expected, broken):
                    yield finding

    def _check_snapshots(self, info: RepoInfo) -> Iterator[Finding]:
        checks = SnapshotChecks(self._catalogue)
        rows = info.snapshots
        is_there = self._present("snapshots/").contains(rows.id)
        yield from missing_snapshots(rows.id[~is_there])
        times = iter(rows.flushed_at[is_there].tolist())
        for key, data in read_all(self._storage, "snapshots/", rows.id[is_there]):
            name = SnapshotId.parse(key.rpartition("/")[2])
            for finding, _ in checks.check(name, next(times), key, data):
                yield finding
            self._meter.read_snapshot()

    def _check_manifests(self) -> Iterator[Finding]:
        ids = self._catalogue.ids()
        is_there = self._present("manifests/").contains(ids)
        yield from missing_manifests(ids[~is_there], self._catalogue)
        ends = None if self._level == "metadata" else self._ends
        for key, data in read_all(self._storage, "manifests/", ids[is_there]):
            expected = self._catalogue[ManifestId.parse(key.rpartition("/")[2]).raw]
            yield from check_manifest_file(key, data, expected, ends)
            self._meter.read_manifest()

    def _sound_manifests(self) -> Iterator[tuple[str, Manifest]]:
        ids = self._catalogue.ids()
        there: Bytes = ids[self._present("manifests/").contains(ids)]
        yield from sound_manifests(self._storage, there)

    def _listed(self, folder: str) -> Iterator[IdPage]:
        for page in list_ids(self._storage, folder, concurrency=self._concurrency):
            self._meter.listed(len(page.objects))
            yield page

    def _present(self, folder: str) -> IdSet:
        found = IdSet()
        for page in self._listed(folder):
            found.add(page.id)
        return found


# The steps of a verification, for one file or a few.


def missing_snapshots(ids: Bytes) -> Iterator[Finding]:
    for raw in ids:
        yield missing(f"snapshots/{SnapshotId(raw.tobytes())}", "the repo object")


def missing_manifests(ids: Bytes, catalogue: Catalogue) -> Iterator[Finding]:
    for raw in ids:
        by = catalogue[raw.tobytes()].needed_by
        yield missing(f"manifests/{ManifestId(raw.tobytes())}", by)


def check_manifest_file(
    key: str, data: bytes, expected: Expectation, ends: ChunkEnds | None
) -> Iterator[Finding]:
    """Check a manifest, and note in `ends` what it needs of chunk objects."""
    value = read_manifest(key, data)
    if isinstance(value, Finding):
        yield value
        return
    yield from check_manifest(key, len(data), value, expected)
    if ends is not None:
        for node_id in {place.node_id for place in expected.uses}:
            refs = value.array(node_id)
            if refs is not None:
                ends.add(refs)


def sound_manifests(storage: Storage, ids: Bytes) -> Iterator[tuple[str, Manifest]]:
    """Those that can be read; all must be there."""
    for key, data in read_all(storage, "manifests/", ids):
        value = read_manifest(key, data)
        if not isinstance(value, Finding):
            yield key, value


def check_objects(
    key: str, value: Manifest, expected: Expectation, broken: BrokenObjects
) -> Iterator[Finding]:
    """The references of a manifest that suffer from broken objects."""
    places = {(place.path, place.node_id) for place in expected.uses}
    for path, node_id in sorted(places):
        refs = value.array(node_id)
        if refs is not None:
            yield from check_refs(key, path, refs, broken)


def check_data(
    checks: DataChecks, key: str, value: Manifest, expected: Expectation, broken: BrokenObjects
) -> Iterator[Sourced]:
    """The chunks of a manifest that do not decode."""
    for place, use in expected.uses.items():
        refs = value.array(place.node_id)
        for zarr_json in sorted(use.zarr_json):
            if refs is not None:
                yield from checks.check(Array(place.path, zarr_json, key), refs, broken)
