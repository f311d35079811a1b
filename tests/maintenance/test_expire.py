"""Expiring: what the official library has not - dry runs, the last N, a policy for each branch."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from icefloe.assets import Assets
from icefloe.clock import to_datetime
from icefloe.errors import InvalidInputError, NotFoundError, ReadOnlyError
from icefloe.format import repo_info
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId, as_keys, random_ids
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs, RepoInfo, SnapshotInfo, Snapshots
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.updates import Update, UpdateKind, Updates
from icefloe.maintenance.expire import Retention, expire_snapshots
from icefloe.maintenance.verify import verify
from icefloe.storage import MemoryStorage
from maintenance.histories import FUTURE, assets, official, seen

HOUR = 3_600_000_000


def repository(parents, refs, tags=None, **changes):
    """A repo object in memory: snapshot n was written at hour n + 1; its parent is `parents[n]`.

    Returns the assets and the ids of the snapshots; number -1 is the initial one.
    """
    ids = [SnapshotId(bytes([n + 1]) * 12) for n in range(len(parents))]
    known = [*ids, INITIAL_SNAPSHOT_ID]
    infos = [
        SnapshotInfo(ids[n], known[parent], (n + 1) * HOUR, f"{n}")
        for n, parent in enumerate(parents)
    ]
    rows = Snapshots.of([SnapshotInfo(INITIAL_SNAPSHOT_ID, None, 1, "Initial"), *infos])
    info = RepoInfo(
        branches=Refs.of({name: rows.row(known[n]) for name, n in refs.items()}),
        tags=Refs.of({name: rows.row(known[n]) for name, n in (tags or {}).items()}),
        deleted_tags=Ragged.of_text(["gone"]),
        snapshots=rows,
        status=RepoStatus(Availability.ONLINE, 0),
        updates=Updates.of([Update(kind=UpdateKind.REPO_INITIALIZED, updated_at=1)]),
    )
    storage = MemoryStorage()
    storage.put("repo", repo_info.encode(replace(info, **changes)))
    return Assets(storage), [str(item) for item in known]


def hour(number):
    return datetime.fromtimestamp(0, UTC) + timedelta(hours=number)


def numbers(ids, found):
    return sorted(ids.index(item) for item in found)


def listed(files, ids):
    rows = files.repo()[0].snapshots
    initial = len(ids) - 1
    return {ids.index(str(rows.id_at(row))) for row in range(len(rows))} - {initial}


def parent(files, ids, number):
    rows = files.repo()[0].snapshots
    found = rows[rows.row(SnapshotId.parse(ids[number]))]
    return ids.index(str(found.parent_id)), numbers(ids, map(str, found.pruned_ancestor_tx_logs))


LINE = [-1, 0, 1, 2, 3]


def test_the_bound_is_exclusive_and_the_tip_of_main_stays():
    files, ids = repository(LINE, {"main": 4})
    assert numbers(ids, expire_snapshots(files, hour(3)).released_snapshots) == [0, 1]
    assert parent(files, ids, 2) == (5, [0, 1])
    assert numbers(ids, expire_snapshots(files, FUTURE).released_snapshots) == [2, 3]
    assert parent(files, ids, 4) == (5, [0, 1, 2, 3])


def test_a_naive_time_is_local():
    files, ids = repository(LINE, {"main": 4})
    naive = hour(3).astimezone().replace(tzinfo=None)
    result = expire_snapshots(files, naive, dry_run=True)
    assert numbers(ids, result.released_snapshots) == [0, 1]


def test_a_time_before_everything_releases_nothing():
    files, _ = repository(LINE, {"main": 4})
    early = datetime(1900, 1, 1, tzinfo=UTC)
    assert expire_snapshots(files, early).released_snapshots == frozenset()
    assert files.repo()[0].updates[0].kind == UpdateKind.EXPIRATION_RAN


@pytest.mark.parametrize(("count", "released"), [(0, 4), (1, 4), (2, 3), (4, 1), (5, 0), (99, 0)])
def test_every_branch_keeps_its_last_snapshots(count, released):
    files, ids = repository(LINE, {"main": 4})
    result = expire_snapshots(files, FUTURE, keep_last=count)
    assert numbers(ids, result.released_snapshots) == [*range(released)]


def test_the_last_of_a_branch_protect_what_branches_share():
    # 0 - 1 - 2 (main)
    #      \- 3 - 4 (side)
    files, ids = repository([-1, 0, 1, 1, 3], {"main": 2, "side": 4})
    result = expire_snapshots(files, FUTURE, keep_last=3)
    assert result.released_snapshots == frozenset()
    assert numbers(ids, expire_snapshots(files, FUTURE, keep_last=2).released_snapshots) == [0]
    assert parent(files, ids, 1) == (5, [0])


def test_a_negative_count_is_refused():
    files, _ = repository(LINE, {"main": 4})
    with pytest.raises(InvalidInputError):
        expire_snapshots(files, FUTURE, keep_last=-1)


def test_a_dry_run_tells_the_same_and_changes_nothing():
    files, ids = repository(LINE, {"main": 4, "old": 1}, {"t": 2})
    before = files.storage.get("repo").data
    options = {"delete_expired_branches": True, "delete_expired_tags": True}
    rehearsed = expire_snapshots(files, FUTURE, **options, dry_run=True)
    assert files.storage.get("repo").data == before
    result = expire_snapshots(files, FUTURE, **options)
    assert result == rehearsed
    assert numbers(ids, result.released_snapshots) == [0, 1, 2, 3]
    assert numbers(ids, result.edited_snapshots) == [4]
    assert result.deleted_branches == ("old",)
    assert result.deleted_tags == ("t",)
    info, _ = files.repo()
    assert info.branches.name.texts() == ["main"]
    assert info.deleted_tags.texts() == ["gone", "t"]


def test_expired_branches_go_whatever_the_last_ones_are():
    files, ids = repository([-1, 0, 0, 2], {"main": 1, "old": 3})
    result = expire_snapshots(files, FUTURE, keep_last=10, delete_expired_branches=True)
    assert result.deleted_branches == ("old",)
    assert numbers(ids, result.released_snapshots) == [2, 3]


def test_only_the_branches_named_are_expired():
    # 0 - 1 - 2 (main), 1 - 3 - 4 (side), 5: detached, 6 - 7 (other)
    parents = [-1, 0, 1, 1, 3, 1, 0, 6]
    refs = {"main": 2, "side": 4, "other": 7}
    files, ids = repository(parents, refs)
    result = expire_snapshots(files, FUTURE, branches=["side"])
    assert numbers(ids, result.released_snapshots) == [3]
    assert listed(files, ids) == {0, 1, 2, 4, 5, 6, 7}
    # Re-parenting goes to the root of the line, as everywhere.
    assert parent(files, ids, 4) == (8, [0, 1, 3])
    files, ids = repository(parents, refs)
    options = {"branches": ["main", "side"], "delete_expired_branches": True}
    result = expire_snapshots(files, FUTURE, **options)
    assert result.deleted_branches == ("side",)
    # 5 may still be published, on what it was written on.
    assert numbers(ids, result.released_snapshots) == [3, 4]


def test_each_branch_has_its_own_policy():
    files, ids = repository([-1, 0, 1, 2, 0, 4, 5], {"main": 3, "side": 6})
    result = expire_snapshots(
        files,
        FUTURE,
        branches={"main": Retention(hour(3)), "side": Retention(FUTURE, keep_last=2)},
    )
    # 0 and 1 are old on main, 4 on side; 5 and 6 are the last two of side.
    assert numbers(ids, result.released_snapshots) == [0, 1, 4]


def test_what_one_branch_keeps_stays_though_another_would_not():
    files, ids = repository([-1, 0, 1, 1], {"main": 2, "side": 3})
    strict, lenient = Retention(FUTURE), Retention(hour(2))
    result = expire_snapshots(files, FUTURE, branches={"main": strict, "side": lenient})
    assert numbers(ids, result.released_snapshots) == [0]


def test_an_unknown_branch_is_not_found():
    files, _ = repository(LINE, {"main": 4})
    with pytest.raises(NotFoundError):
        expire_snapshots(files, FUTURE, branches=["nope"])


def test_a_repository_that_is_not_online_is_left_alone():
    status = RepoStatus(Availability.READ_ONLY, 0)
    files, _ = repository(LINE, {"main": 4}, status=status)
    with pytest.raises(ReadOnlyError):
        expire_snapshots(files, FUTURE)
    assert expire_snapshots(files, FUTURE, dry_run=True).released_snapshots


def test_a_rival_between_reading_and_swapping_is_seen():
    files, ids = repository(LINE, {"main": 4})
    swap = files.swap_repo
    rivals = [lambda: expire_snapshots(Assets(files.storage), hour(3))]

    def race(*arguments, **named):
        if rivals:
            rivals.pop()()
        return swap(*arguments, **named)

    files.swap_repo = race
    result = expire_snapshots(files, hour(4))
    assert numbers(ids, result.released_snapshots) == [2]
    assert parent(Assets(files.storage), ids, 3) == (5, [0, 1, 2])
    kinds = Assets(files.storage).repo()[0].updates.kind.tolist()
    assert kinds[:2] == [UpdateKind.EXPIRATION_RAN] * 2


def test_old_repositories_without_the_well_known_first_snapshot():
    ids = [SnapshotId(bytes([n + 1]) * 12) for n in range(5)]
    rows = Snapshots.of(
        [
            SnapshotInfo(ids[0], None, HOUR, "root"),
            *(SnapshotInfo(ids[n], ids[n - 1], (n + 1) * HOUR, "") for n in (1, 2)),
            SnapshotInfo(ids[3], ids[1], 4 * HOUR, "detached"),
            SnapshotInfo(ids[4], ids[3], 9 * HOUR, "young, and written on the detached one"),
        ]
    )
    files, _ = repository([], {"main": -1}, snapshots=rows, branches=Refs.of({"main": 2}))
    expire_snapshots(files, hour(8))
    left = files.repo()[0].snapshots
    expected = [None, ids[0], ids[0], ids[3]]
    assert [left[row].parent_id for row in range(len(left))] == expected


def test_expired_histories_can_be_expired_further_by_either_library(copies, messy):
    path = copies()
    expire_snapshots(assets(path), messy.middle, keep_last=2)
    official(path).expire_snapshots(messy.end)
    expire_snapshots(assets(path), FUTURE, delete_expired_branches=True, delete_expired_tags=True)
    assert [*verify(assets(path))] == []
    found = seen(path)
    assert set(found["branches"]) == {"main"}
    assert found["tags"] == {}


def test_a_hundred_thousand_snapshots_take_a_second():
    count = 100_000
    raw = random_ids(count)
    order = np.random.default_rng(0).permutation(count)
    files, _ = repository([], {"main": -1})
    info, version = files.repo()
    ids = raw[np.argsort(as_keys(raw))]
    parent = np.full(count, -1, np.int32)
    parent[order[1:]] = order[:-1]
    flushed = np.zeros(count, np.uint64)
    flushed[order] = np.arange(count) + 1
    rows = Snapshots(
        id=ids,
        parent=parent,
        flushed_at=flushed,
        message=Ragged.of([b""] * count),
        metadata_count=np.full(count, -1, np.int64),
        metadata_name=Ragged.of([]),
        metadata_value=Ragged.of([]),
        pruned=Ragged.absent(count),
    )
    branches = {"main": int(order[-1])} | {f"b{n}": int(order[n * 10_000]) for n in range(10)}
    files.swap_repo(replace(info, snapshots=rows, branches=Refs.of(branches)), expected=version)
    started = time.perf_counter()
    result = expire_snapshots(files, to_datetime(count))
    took = time.perf_counter() - started
    assert len(result.released_snapshots) == count - 11
    assert took < 5, took
