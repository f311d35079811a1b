"""Storage statistics on Spark: see `icefloe.maintenance.stats`, whose numbers it gives.

Executors leave a key for the data of each reference in storage, with the number of who needs it;
then each adds up a part of the keys.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from icefloe.assets import Assets
from icefloe.format import manifest
from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ManifestId
from icefloe.maintenance.chunk_keys import WIDTH as KEY_WIDTH
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.marking import read_all
from icefloe.maintenance.pruning import reachable
from icefloe.maintenance.sharing import Share, inline_bytes, shares_of, stored_keys
from icefloe.maintenance.stats import add_needs, counted, owners_by
from icefloe.spark.context import spark_context
from icefloe.spark.maintain.jobs import Place, cuts, run_tasks, spans
from icefloe.spark.maintain.staging import Run, Staging

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.format.ragged import Bytes
    from icefloe.maintenance.stats import By, Part, StorageStats
    from icefloe.repository import Repository
    from icefloe.storage import Storage

_SNAPSHOT_TASKS = 32
"""Each of them tells the driver what it knows of all manifests."""
_WIDTH = KEY_WIDTH + 4
"""Of a row: the key of some data, and the number of who needs it."""
_RUN_BYTES = 2**27
_KINDS = (RefKind.NATIVE, RefKind.VIRTUAL)


def stats(
    spark: SparkSession,
    repo: Repository,
    by: By = "repository",
    *,
    staging: Storage | str | None = None,
) -> tuple[StorageStats, ...]:
    """`Repository.chunk_storage_stats` on executors: the same numbers.

    The driver holds who needs which manifest, and nothing of chunks.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        repo: the repository.
        by: `repository`, `array`, `snapshot` or `branch`.
        staging: where tasks leave keys for each other; None: in the repository's own storage.

    Raises:
        InvalidInputError: there is no such breakdown.
        ReadOnlyError: the storage takes no writes, and there is no `staging`.
    """
    context, assets = spark_context(spark), Assets(repo.storage)
    info, _ = assets.repo()
    owners = owners_by(info, by)
    rows = np.flatnonzero(reachable(info))
    place = Staging.new(repo.storage, staging)
    work = _Work(Place.of(assets), place)
    try:
        parts = [
            (info.snapshots.id[rows[a:b]], [owners(row) for row in rows[a:b].tolist()])
            for a, b in cuts(context, len(rows), _SNAPSHOT_TASKS)
        ]
        needed: dict[Part, set[str]] = {}
        told = f"read {len(rows):,} snapshots"
        for answer in run_tasks(context, partial(_needs, work), parts, told):
            for part, names in answer.items():
                needed.setdefault(part, set()).update(names)
        numbered, groups = _numbered(needed)
        manifests = sorted(numbered)
        items = [
            {raw: numbered[raw] for raw in manifests[a:b]} for a, b in cuts(context, len(manifests))
        ]
        told = f"read {len(manifests):,} manifests"
        answers = run_tasks(context, partial(_stage_keys, work), items, told)
        runs = [run for answer in answers for run in answer.runs]
        total = _sums(share for answer in answers for share in answer.inline)
        many = spans(context, repo.storage, sum(len(run) for _, run in runs))
        for shares in run_tasks(context, partial(_add_up, work, runs), many, "add bytes up"):
            total += _sums(shares)
        return counted(
            [Share(places, kind, size) for (places, kind), size in total.items()], groups
        )
    finally:
        place.clear()


def _numbered(
    needed: Mapping[Part, set[str]],
) -> tuple[dict[bytes, dict[bytes, int]], list[frozenset[str]]]:
    """For each manifest and node the number of its owners; and who they are."""
    numbers: dict[frozenset[str], int] = {}
    found: dict[bytes, dict[bytes, int]] = defaultdict(dict)
    for (manifest_id, node_id), names in needed.items():
        found[manifest_id][node_id] = numbers.setdefault(frozenset(names), len(numbers))
    return found, [*numbers]


def _sums(shares: Iterable[Share]) -> Counter[tuple[tuple[int, ...], RefKind]]:
    total: Counter[tuple[tuple[int, ...], RefKind]] = Counter()
    for share in shares:
        total[share.places, share.kind] += share.size
    return total


# From here on, what runs on executors.


@dataclass(frozen=True, slots=True)
class _Work:
    place: Place
    staging: Staging


@dataclass(frozen=True, slots=True)
class _Staged:
    runs: list[tuple[RefKind, Run]]
    inline: list[Share]


def _needs(work: _Work, item: tuple[Bytes, list[frozenset[str] | None]]) -> dict[Part, set[str]]:
    ids, owners = item
    needed: dict[Part, set[str]] = {}
    names = iter(owners)
    for key, data in read_all(work.place.open().storage, "snapshots/", ids):
        add_needs(needed, key, data, next(names))
    return needed


def _stage_keys(work: _Work, owners: Mapping[bytes, Mapping[bytes, int]]) -> _Staged:
    ids = np.frombuffer(b"".join(owners), np.uint8).reshape(-1, ManifestId.SIZE)
    found = {kind: IdSet(width=_WIDTH) for kind in _KINDS}
    runs: list[tuple[RefKind, Run]] = []
    inline: list[Share] = []
    for key, data in read_all(work.place.open().storage, "manifests/", ids):
        value = manifest.decode(data, name=key)
        for array in value.arrays:
            number = owners.get(value.id.raw, {}).get(array.node_id.raw)
            if number is None:
                continue
            inline.append(Share((number,), RefKind.INLINE, inline_bytes(array.refs)))
            for kind, rows in stored_keys(array.refs).items():
                found[kind].add(_with_number(rows, number))
                if found[kind].peak_bytes > _RUN_BYTES:
                    runs.append((kind, work.staging.put_sorted(found[kind].ids())))
                    found[kind] = IdSet(width=_WIDTH)
    runs += [(kind, work.staging.put_sorted(rows.ids())) for kind, rows in found.items() if rows]
    return _Staged(runs, inline)


def _add_up(work: _Work, runs: Sequence[tuple[RefKind, Run]], span: range) -> list[Share]:
    shares: list[Share] = []
    for kind in _KINDS:
        mine = [run for of, run in runs if of == kind]
        rows = work.staging.rows(mine, span, _WIDTH)
        if len(rows):
            number = np.ascontiguousarray(rows[:, KEY_WIDTH:]).view("<u4").ravel()
            shares += shares_of(kind, rows[:, :KEY_WIDTH], number.astype(np.int64))
    return shares


def _with_number(keys: Bytes, number: int) -> Bytes:
    column = np.full(len(keys), number, "<u4").view(np.uint8).reshape(-1, 4)
    return np.concatenate([keys, column], axis=1)
