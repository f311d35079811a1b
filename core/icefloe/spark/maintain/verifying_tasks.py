"""What a verification runs on executors: files of a kind, for a part of the ids or some of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.chunk_decoding import decode_chunk
from icefloe.format.ids import ManifestId, ObjectId, SnapshotId
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.listing import list_ids
from icefloe.maintenance.marking import read_all
from icefloe.maintenance.verification.catalogue import Catalogue
from icefloe.maintenance.verification.data import DataChecks
from icefloe.maintenance.verification.findings import Finding
from icefloe.maintenance.verification.logs import NeededLogs, check_logs
from icefloe.maintenance.verification.objects import BrokenObjects, ChunkEnds
from icefloe.maintenance.verification.snapshots import SnapshotChecks
from icefloe.maintenance.verify import (
    check_data,
    check_manifest_file,
    check_objects,
    sound_manifests,
)
from icefloe.spark.maintain.jobs import LISTINGS, ROWS_PER_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.format.ragged import Bytes
    from icefloe.maintenance.listing import IdPage
    from icefloe.maintenance.verification.catalogue import Expectation
    from icefloe.maintenance.verification.findings import Sourced
    from icefloe.spark.maintain.jobs import Place
    from icefloe.spark.maintain.staging import Run, Staging

    type Expected = Mapping[bytes, Expectation]

WIDTH = ObjectId.SIZE + 8
"""Of a row: the id of a chunk object, and its end or its size."""


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a verification share."""

    place: Place
    staging: Staging
    most: int | None
    """Findings that anybody will read."""


@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """Ids in one part of all, which a folder must have objects for."""

    folder: str
    span: range
    ids: Bytes


def list_missing(work: Work, needed: Needed) -> tuple[int, Bytes]:
    """How many objects there are, and which of those that are needed are not."""
    folder, span, ids = needed.folder, needed.span, needed.ids
    present, count = IdSet(), 0
    for page in list_ids(work.place.open().storage, folder, span=span, concurrency=LISTINGS):
        present.add(page.id)
        count += len(page.objects)
    return count, ids[~present.contains(ids)]


def check_log_files(work: Work, ids: Bytes) -> str | None:
    """Check logs, all of which are there."""
    logs = NeededLogs(ids, ids[:0], ids[:0])
    return note(work, _plain(check_logs(work.place.open().storage, logs, IdSet(ids))))


def check_snapshots(
    work: Work, item: tuple[Bytes, NDArray[np.uint64]]
) -> tuple[str | None, Catalogue]:
    """Check snapshots, and say what they expect of manifests; ids, and when each was written."""
    ids, times = item
    catalogue = Catalogue()
    return note(work, _snapshot_findings(work, ids, times, SnapshotChecks(catalogue))), catalogue


def _snapshot_findings(
    work: Work, ids: Bytes, times: NDArray[np.uint64], checks: SnapshotChecks
) -> Iterator[Sourced]:
    written = iter(times.tolist())
    for key, data in read_all(work.place.open().storage, "snapshots/", ids):
        yield from checks.check(_id(SnapshotId, key), next(written), key, data)


def check_manifests(work: Work, objects: bool, expected: Expected) -> tuple[str | None, list[Run]]:
    """Check manifests; with `objects`, leave in storage what they need of chunk objects."""
    runs: list[Run] = []
    return note(work, _plain(_manifest_findings(work, objects, expected, runs))), runs


def _manifest_findings(
    work: Work, objects: bool, expected: Expected, runs: list[Run]
) -> Iterator[Finding]:
    ends = ChunkEnds()
    for key, data in read_all(work.place.open().storage, "manifests/", _ids(expected)):
        mine = expected[_id(ManifestId, key).raw]
        yield from check_manifest_file(key, data, mine, ends if objects else None)
        if len(ends) > ROWS_PER_TASK:
            runs.append(work.staging.put_sorted(_rows(*ends.columns())))
            ends = ChunkEnds()
    if len(ends):
        runs.append(work.staging.put_sorted(_rows(*ends.columns())))


def find_broken(work: Work, needed: Sequence[Run], span: range) -> tuple[int, Run | None]:
    """Compare what references need with what is listed, in one part of the ids.

    How many objects were listed, and where those are that miss or are short: as many as anybody
    will read of.
    """
    ends, listed = ChunkEnds(), [0]
    ends.add_columns(*_columns(work.staging.rows(needed, span, WIDTH)))

    def pages() -> Iterator[IdPage]:
        storage = work.place.open().storage
        for page in list_ids(storage, "chunks/", span=span, concurrency=LISTINGS):
            listed[0] += len(page.objects)
            yield page

    broken = ends.broken(pages())
    if not len(broken):
        return listed[0], None
    rows = _rows(broken.id, broken.size.view(np.uint64))[: work.most]
    return listed[0], work.staging.put(rows, np.array([0, len(rows)]))


def check_refs(work: Work, broken: Sequence[Run], expected: Expected) -> str | None:
    """Which references of manifests suffer from broken objects."""
    found = _broken(work, broken)
    return note(
        work,
        _plain(
            finding
            for key, value in sound_manifests(work.place.open().storage, _ids(expected))
            for finding in check_objects(key, value, expected[value.id.raw], found)
        ),
    )


def decode(work: Work, broken: Sequence[Run], expected: Expected) -> str | None:
    """Read and decode the chunks of manifests."""
    storage, found = work.place.open().storage, _broken(work, broken)
    checks = DataChecks(storage, decode_chunk)
    return note(
        work,
        (
            sourced
            for key, value in sound_manifests(storage, _ids(expected))
            for sourced in check_data(checks, key, value, expected[value.id.raw], found)
        ),
    )


def note(work: Work, findings: Iterable[Sourced]) -> str | None:
    """Leave findings in storage, as many as anybody will read; the key, if there are any."""
    lines: list[str] = []
    for finding, source in findings:
        if work.most is None or len(lines) < work.most:
            lines.append(json.dumps([asdict(finding), source]))
    return work.staging.put_bytes("\n".join(lines).encode()) if lines else None


def read_noted(staging: Staging, key: str) -> Iterator[Sourced]:
    """What `note` left."""
    (data,) = staging.storage.get_many([key])
    for line in data.splitlines():
        fields, source = json.loads(line)
        chunk = fields.pop("chunk")
        yield Finding(**fields, chunk=None if chunk is None else tuple(chunk)), source


def _plain(findings: Iterable[Finding]) -> Iterator[Sourced]:
    return ((finding, None) for finding in findings)


def _broken(work: Work, runs: Sequence[Run]) -> BrokenObjects:
    ids, sizes = _columns(work.staging.rows(runs, range(1), WIDTH))
    # Runs are in the order of the ids that they hold.
    return BrokenObjects(ids, sizes.view(np.int64))


def _rows(ids: Bytes, numbers: NDArray[np.uint64]) -> Bytes:
    columns = [ids, np.ascontiguousarray(numbers, "<u8").view(np.uint8).reshape(-1, 8)]
    return np.concatenate(columns, axis=1)


def _columns(rows: Bytes) -> tuple[Bytes, NDArray[np.uint64]]:
    size = ObjectId.SIZE
    return rows[:, :size], np.ascontiguousarray(rows[:, size:]).view("<u8").ravel()


def _ids(expected: Expected) -> Bytes:
    return np.frombuffer(b"".join(expected), np.uint8).reshape(-1, ManifestId.SIZE)


def _id[T: ObjectId](kind: type[T], key: str) -> T:
    return kind.parse(key.rpartition("/")[2])
