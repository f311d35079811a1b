"""The same changes made by one session, by forks and by staged snapshots come to the same."""

import json
import pickle
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import icechunk
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import (
    ConflictError,
    ConflictType,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    PackingConfig,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
)
from stateful import reading
from stateful.layout import check_layout, manifest_ids
from stateful.reading import content, document, group, put, rectilinear, regular, remove

ARRAYS = {"x": (7,), "g/y": (3, 4), "g/日本": (2, 3, 2), "s": (), "r": (4,)}
WORKERS = 3
SPLITS = [(), (1,), (2,), (3, 2), (100,)]


def sizes(split, rank):
    """Chunks per manifest along each axis; an axis without a rule stays whole."""
    return [split[axis] if axis < len(split) else 1000 for axis in range(rank)]


def configuration(split):
    axis = ManifestSplitDimCondition.Axis
    rule = {axis(number): size for number, size in enumerate(split)}
    splitting = ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): rule})
    return RepositoryConfig(
        inline_chunk_threshold_bytes=8,
        manifest=ManifestConfig(splitting=splitting if split else None),
        packing=PackingConfig(enabled=True, max_chunk_bytes=64, target_bytes=100),
    )


def described(path, counts):
    if path == "r":
        return document([2 * n for n in counts], rectilinear([2] * counts[0]))
    return document([2 * n for n in counts], regular(*[2] * len(counts)))


def key(path, coords):
    return "/".join([path, "c", *map(str, coords)])


@dataclass(frozen=True)
class Write:
    worker: int
    path: str
    coords: tuple[int, ...]
    size: int
    """0 deletes the chunk."""

    @property
    def data(self):
        return f"{self.worker} {self.path} {self.coords} ".encode().ljust(self.size, b".")[
            : self.size
        ]


@st.composite
def plans(draw):
    """What a prepare step resizes and notes, and who writes which chunks: no chunk twice."""
    resized = draw(
        st.dictionaries(st.sampled_from(["x", "g/y", "r"]), st.integers(0, 9), max_size=2)
    )
    limits = {
        path: (resized.get(path, counts[0]), *counts[1:]) if counts else ()
        for path, counts in ARRAYS.items()
    }
    places = [(path, at) for path, n in limits.items() for at in product(*map(range, n))]
    chosen = draw(st.lists(st.sampled_from(places), unique=True, max_size=14)) if places else []
    writes = [
        Write(draw(st.integers(0, WORKERS - 1)), path, at, draw(st.sampled_from([0, 5, 30, 80])))
        for path, at in chosen
    ]
    return {
        "resized": resized,
        "noted": draw(st.sets(st.sampled_from([*ARRAYS, "g", ""]), max_size=2)),
        "new": draw(st.sets(st.integers(0, WORKERS - 1))),
        "writes": writes,
    }


class Plan:
    """Changes, to be made on a store and on a plain dictionary."""

    def __init__(self, plan):
        self.plan = plan

    def prepare(self, store, start):
        for path, count in self.plan["resized"].items():
            counts = (count, *ARRAYS[path][1:])
            for name in start:
                at = name.removeprefix(f"{path}/c/").split("/")
                if name.startswith(f"{path}/c/") and int(at[0]) >= count:
                    remove(store, name)
            put(store, f"{path}/zarr.json", described(path, counts))
        for path in self.plan["noted"]:
            name = f"{path}/zarr.json".lstrip("/")
            value = json.loads(self.prepared_document(path, start[name]))
            value["attributes"]["note"] = "prepared"
            put(store, name, json.dumps(value).encode())
        put(store, "new/zarr.json", group())

    def prepared_document(self, path, now):
        count = self.plan["resized"].get(path)
        return now if count is None else described(path, (count, *ARRAYS[path][1:]))

    def work(self, store, worker):
        for write in self.plan["writes"]:
            if write.worker == worker and write.size:
                put(store, key(write.path, write.coords), write.data)
            elif write.worker == worker:
                remove(store, key(write.path, write.coords))
        if worker in self.plan["new"]:
            put(store, f"new/{worker}/zarr.json", document([4], regular(2)))
            put(store, f"new/{worker}/c/1", b"new" * 30)

    def result(self, start):
        """What must be read in the end."""
        found = dict(start)
        for path, count in self.plan["resized"].items():
            found[f"{path}/zarr.json"] = described(path, (count, *ARRAYS[path][1:]))
            for name in [name for name in found if name.startswith(f"{path}/c/")]:
                if int(name.removeprefix(f"{path}/c/").split("/")[0]) >= count:
                    del found[name]
        for path in self.plan["noted"]:
            name = f"{path}/zarr.json".lstrip("/")
            value = json.loads(found[name])
            value["attributes"]["note"] = "prepared"
            found[name] = json.dumps(value).encode()
        found["new/zarr.json"] = group()
        for write in self.plan["writes"]:
            found.pop(key(write.path, write.coords), None)
            if write.size:
                found[key(write.path, write.coords)] = write.data
        for worker in self.plan["new"]:
            found[f"new/{worker}/zarr.json"] = document([4], regular(2))
            found[f"new/{worker}/c/1"] = b"new" * 30
        return found


def create(path, split, written):
    """A repository with arrays of which some chunks are written."""
    repo = Repository.create(path, config=configuration(split))
    session = repo.writable_session("main")
    store = session.store
    for name in ("", "g", "moving"):
        put(store, f"{name}/zarr.json".lstrip("/"), group())
    for number, (name, counts) in enumerate(ARRAYS.items()):
        put(store, f"{name}/zarr.json", described(name, counts))
        for at, coords in enumerate(product(*map(range, counts))):
            if (at + number) % written:
                put(store, key(name, coords), f"start {at}".encode() * (1 + at % 9))
    session.commit("start")
    return repo


def serial(repo, branch, plan, start):
    session = repo.writable_session(branch)
    plan.prepare(session.store, start)
    for worker in range(WORKERS):
        plan.work(session.store, worker)
    return session.commit("serial")


def forked(repo, branch, plan, start):
    session = repo.writable_session(branch)
    plan.prepare(session.store, start)
    forks = [pickle.dumps(session.fork()) for _ in range(WORKERS)]
    back = []
    for worker, data in enumerate(forks):
        fork = pickle.loads(data)
        plan.work(fork.store, worker)
        back.append(pickle.dumps(fork))
    session.merge(*map(pickle.loads, back))
    return session.commit("forked")


def staged(repo, branch, plan, start):
    """A prepare step, and a flushed snapshot of each worker on top of it."""
    session = repo.writable_session(branch)
    plan.prepare(session.store, start)
    below = session.flush("prepare")
    ids = []
    for worker in range(WORKERS):
        session = repo.writable_session(snapshot_id=below)
        plan.work(session.store, worker)
        ids.append(session.flush(f"worker {worker}"))
    return ids


def merged(repo, branch, plan, start):
    return repo.merge_snapshots(branch, staged(repo, branch, plan, start), "merged")


def chained(repo, branch, plan, start):
    """Each worker on top of the one before; the last one is merged, with all below it."""
    session = repo.writable_session(branch)
    plan.prepare(session.store, start)
    below = session.flush("prepare")
    for worker in range(WORKERS):
        session = repo.writable_session(snapshot_id=below)
        plan.work(session.store, worker)
        below = session.flush(f"worker {worker}")
    return repo.merge_snapshots(branch, [below], "chained")


def published(repo, branch, plan, start):
    audited = repo.merge_snapshots(None, staged(repo, branch, plan, start), "audit me")
    before = repo.lookup_branch(branch)
    assert content(repo.readonly_session(branch).store) == dict(sorted(start.items()))
    snapshot_id = repo.publish(branch, audited)
    assert repo.lookup_branch(branch) == snapshot_id != before
    return snapshot_id


def move_tip(repo, branch):
    with repo.transaction(branch, message="meanwhile") as store:
        put(store, "moving/zarr.json", group(moved=True))
        put(store, "meanwhile/zarr.json", document([2], regular(2)))
        put(store, "meanwhile/c/0", b"meanwhile")


def merged_onto_a_moved_tip(repo, branch, plan, start):
    ids = staged(repo, branch, plan, start)
    move_tip(repo, branch)
    return repo.merge_snapshots(branch, ids, "merged")


def published_onto_a_moved_tip(repo, branch, plan, start):
    ids = staged(repo, branch, plan, start)
    audited = repo.merge_snapshots(None, ids, "audit me")
    move_tip(repo, branch)
    return repo.publish(branch, audited)


WAYS = [serial, forked, merged, chained, published]
MOVED = [merged_onto_a_moved_tip, published_onto_a_moved_tip]


def check_untouched(repo, plan, split, first, last):
    """Manifests in whose cell nothing was written are those of before."""
    for path, counts in ARRAYS.items():
        if path in plan.plan["resized"]:
            continue
        cut = sizes(split, len(counts))
        written = {
            tuple(at // size for at, size in zip(write.coords, cut, strict=True))
            for write in plan.plan["writes"]
            if write.path == path
        }
        before = manifest_ids(repo.storage, first, f"/{path}")
        after = manifest_ids(repo.storage, last, f"/{path}")
        for manifest_id, extent in before.items():
            cell = tuple(low // size for (low, _), size in zip(extent, cut, strict=True))
            if cell not in written:
                assert after.get(manifest_id) == extent, (path, cell)


def check_way(repo, official, way, plan, split):
    first = repo.lookup_branch("main")
    start = content(repo.readonly_session("main").store)
    repo.create_branch(way.__name__, first)
    last = way(repo, way.__name__, plan, start)
    assert repo.lookup_branch(way.__name__) == last
    expected = plan.result(start)
    if way in MOVED:
        expected |= {
            "moving/zarr.json": group(moved=True),
            "meanwhile/zarr.json": document([2], regular(2)),
            "meanwhile/c/0": b"meanwhile",
        }
    assert content(repo.readonly_session(way.__name__).store) == dict(sorted(expected.items()))
    store = official.readonly_session(way.__name__).store
    assert content(store) == dict(sorted(expected.items()))
    steps = 3 if way in MOVED else 2
    assert len([*repo.ancestry(branch=way.__name__)]) == 1 + steps
    check_layout(repo.storage, last)
    check_untouched(repo, plan, split, first, last)
    if way not in MOVED:
        ends = {"from_snapshot_id": first, "to_snapshot_id": last}
        return reading.diff(official.diff(**ends))
    return None


@given(plans(), st.sampled_from(SPLITS), st.integers(1, 4))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_however_changes_are_split_they_come_to_what_one_session_makes(plan, split, written):
    check_all_ways(plan, split, written)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(plans(), st.sampled_from(SPLITS), st.integers(1, 4))
@settings(
    max_examples=300,
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_many_more_changes_come_to_what_one_session_makes(plan, split, written):
    check_all_ways(plan, split, written)


def check_all_ways(plan, split, written):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repo"
        repo = create(path, split, written)
        official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
        diffs = [check_way(repo, official, way, Plan(plan), split) for way in [*WAYS, *MOVED]]
        told = [diff for diff in diffs if diff is not None]
        for way, diff in zip(WAYS, told, strict=True):
            assert diff == told[0], f"the log of {way.__name__} tells another story"


def manifest_files(repo):
    return {item.key for page in repo.storage.list("manifests/") for item in page}


def flush(repo, branch, writes, *, on=None):
    """A staged snapshot of some chunks of `g/y`; its id."""
    session = repo.writable_session(branch if on is None else None, snapshot_id=on)
    for coords in writes:
        put(session.store, key("g/y", coords), f"{writes} {coords}".encode())
    return session.flush(f"{writes}")


@pytest.mark.parametrize("split", SPLITS)
def test_chunks_that_two_staged_snapshots_wrote_are_named_and_nothing_is_merged(tmp_path, split):
    repo = create(tmp_path / "repo", split, 2)
    ids = [
        flush(repo, "main", [(0, 0), (1, 2), (2, 3)]),
        flush(repo, "main", [(0, 1), (2, 3), (1, 2)]),
    ]
    log, tip = [*repo.ops_log()], repo.lookup_branch("main")
    for branch in ("main", None):
        with pytest.raises(
            ConflictError, match=r"(?s)2 chunks of /g/y .*\(1, 2\), \(2, 3\)"
        ) as caught:
            repo.merge_snapshots(branch, ids, "both")
        assert caught.value.kind == "merge-failed"
    assert (repo.lookup_branch("main"), [*repo.ops_log()]) == (tip, log)


def test_chunks_that_two_forks_wrote_are_named_and_the_last_wins_only_if_asked_for(tmp_path):
    repo = create(tmp_path / "repo", (2,), 2)
    session = repo.writable_session("main")
    forks = [session.fork(), session.fork()]
    for number, fork in enumerate(forks):
        put(fork.store, key("g/y", (1, 2)), f"fork {number}".encode())
    session.merge(forks[0])
    with pytest.raises(ConflictError, match=r"(?s)/g/y .*\(1, 2\)") as caught:
        session.merge(forks[1])
    assert caught.value.kind == "merge-failed"
    assert content(session.store)["g/y/c/1/2"] == b"fork 0"
    session.merge(forks[1], on_conflict="last-wins")
    session.commit("merged")
    assert content(repo.readonly_session("main").store)["g/y/c/1/2"] == b"fork 1"


def test_a_snapshot_staged_on_another_may_write_its_chunks_again(tmp_path):
    repo = create(tmp_path / "repo", (2,), 2)
    below = flush(repo, "main", [(0, 0), (1, 1)])
    above = flush(repo, None, [(1, 1)], on=below)
    repo.merge_snapshots("main", [below, above], "both")
    found = content(repo.readonly_session("main").store)
    assert found["g/y/c/0/0"] == b"[(0, 0), (1, 1)] (0, 0)"
    assert found["g/y/c/1/1"] == b"[(1, 1)] (1, 1)"


def test_a_merge_writes_manifests_only_where_two_writers_met(tmp_path):
    repo = create(tmp_path / "repo", (1,), 2)
    alone = [flush(repo, "main", [(0, 0), (0, 1)]), flush(repo, "main", [(1, 0)])]
    theirs = {}
    for item in alone:
        theirs |= manifest_ids(repo.storage, item, "/g/y")
    before = manifest_files(repo)
    merged = repo.merge_snapshots(None, alone, "a row each")
    assert manifest_files(repo) == before
    assert manifest_ids(repo.storage, merged, "/g/y").items() <= theirs.items()
    check_layout(repo.storage, merged)

    met = [*alone, flush(repo, "main", [(1, 3)])]
    before = manifest_files(repo)
    merged = repo.merge_snapshots(None, met, "two in one row")
    assert len(manifest_files(repo) - before) == 1
    check_layout(repo.storage, merged)


def test_staged_snapshots_may_stand_on_different_snapshots_of_the_branch(tmp_path):
    repo = create(tmp_path / "repo", (1,), 2)
    first = flush(repo, "main", [(0, 0)])
    with repo.transaction("main", message="meanwhile") as store:
        put(store, key("g/y", (0, 3)), b"meanwhile")
    second = flush(repo, "main", [(0, 1), (2, 2)])
    merged = repo.merge_snapshots("main", [second, first], "both")
    found = content(repo.readonly_session("main").store)
    assert found["g/y/c/0/0"] == b"[(0, 0)] (0, 0)"
    assert found["g/y/c/0/1"] == b"[(0, 1), (2, 2)] (0, 1)"
    assert found["g/y/c/0/3"] == b"meanwhile"
    check_layout(repo.storage, merged)


def test_a_staged_write_that_conflicts_with_the_moved_tip_is_refused(tmp_path):
    repo = create(tmp_path / "repo", (1,), 2)
    staged_id = flush(repo, "main", [(0, 0)])
    with repo.transaction("main", message="meanwhile") as store:
        put(store, key("g/y", (0, 0)), b"meanwhile")
    tip = repo.lookup_branch("main")
    for attempt in (
        lambda: repo.merge_snapshots("main", [staged_id], "late"),
        lambda: repo.publish("main", staged_id),
    ):
        with pytest.raises(RebaseFailedError) as caught:
            attempt()
        (conflict,) = caught.value.conflicts
        assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
        assert (conflict.path, conflict.conflicted_chunks) == ("/g/y", [[0, 0]])
    assert repo.lookup_branch("main") == tip


def test_a_staged_deletion_of_what_another_staged_write_changed_is_refused(tmp_path):
    repo = create(tmp_path / "repo", (1,), 2)
    written = flush(repo, "main", [(0, 0)])
    session = repo.writable_session("main")
    session.delete_node("/g/y")
    deleted = session.flush("deleted")
    session = repo.writable_session("main")
    put(session.store, "g/y/zarr.json", described("g/y", (2, 4)))
    resized = session.flush("resized")
    for pair in ([written, deleted], [deleted, resized], [written, resized]):
        with pytest.raises(ConflictError, match="/g/y"):
            repo.merge_snapshots("main", pair, "both")
