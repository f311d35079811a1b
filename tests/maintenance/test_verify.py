"""Verification: healthy repositories have no findings, and damage has exactly one."""

from dataclasses import replace
from pathlib import Path

import icechunk
import numpy as np
import pytest
from icechunk import ManifestSplitCondition, ManifestSplitDimCondition

import official_repos
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.format import manifest, repo_info, snapshot, transaction_log
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.format.manifest import ArrayManifest
from icefloe.format.nodes import DimensionShape, ManifestRefs, Nodes
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs
from icefloe.format.snapshot import ManifestFiles
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from maintenance.histories import (
    CHUNK_BYTES,
    CHUNKS,
    FUTURE,
    assets,
    copy,
    create,
    official,
    write_chunk,
)


def decode_chunk(zarr_json, coords, data):
    """As `write_chunk` writes them: one byte, repeated."""
    if len(data) != CHUNK_BYTES or len(set(data)) != 1:
        raise ValueError("not a chunk")


def findings(path, level="data"):
    return [*verify(assets(path), level, decode_chunk=decode_chunk)]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Array `a` in three manifests of two chunks, all written; one commit was expired since."""
    path = tmp_path_factory.mktemp("split") / "repo"
    create(path)
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    config.manifest = icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2}}
        )
    )
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)), config=config)
    for start in (0, 2, 4, 0):
        session = repo.writable_session("main")
        write_chunk(session, start, start)
        write_chunk(session, start + 1, start + 7)
        session.commit(f"from {start}")
    repo.create_tag("first", [*repo.ancestry(branch="main")][1].id)
    expire_snapshots(assets(path), [*repo.ancestry(branch="main")][1].written_at)
    garbage_collect(assets(path), FUTURE, force=True)
    return path


class Damaged:
    """A copy to damage, and its files as values."""

    def __init__(self, path):
        self.path = path
        self.assets = assets(path)
        self.info, _ = self.assets.repo()
        self.tip = self.info.snapshots.id_at(self.info.branches.todict()["main"])
        self.snapshot = self.assets.snapshot(self.tip)
        self.node = self.snapshot.nodes[self.snapshot.nodes.row("/a")]
        self.manifests = [self.assets.manifest(item) for item in self.node.array.manifests.ids()]

    def put(self, key, data):
        Path(self.path, key).write_bytes(data)

    def remove(self, key):
        Path(self.path, key).unlink()

    def put_repo(self, **changes):
        self.put("repo", repo_info.encode(replace(self.info, **changes)))

    def put_snapshot(self, **changes):
        self.snapshot = replace(self.snapshot, **changes)
        self.put(f"snapshots/{self.tip}", snapshot.encode(self.snapshot))

    def put_node(self, **changes):
        nodes = self.snapshot.nodes
        others = [nodes[row] for row in range(len(nodes)) if row != nodes.row("/a")]
        self.node = replace(self.node, **changes)
        self.put_snapshot(nodes=Nodes.of([*others, self.node]))

    def put_extents(self, extents):
        array = self.node.array
        refs = ManifestRefs(array.manifests.object_id, np.array(extents, np.uint32))
        self.put_node(array=replace(array, manifests=refs))

    def put_manifest(self, value, name=None):
        """With its true size and count in the snapshot, so that nothing else is wrong."""
        data = manifest.encode(value)
        name = name or value.id
        self.put(f"manifests/{name}", data)
        files = self.snapshot.manifest_files
        sizes = files.size_bytes.copy(), files.num_chunk_refs.copy()
        sizes[0][files.row(name)], sizes[1][files.row(name)] = len(data), value.count
        self.put_snapshot(manifest_files=ManifestFiles(files.id, *sizes, files.extra))

    def put_refs(self, number, refs):
        value = self.manifests[number]
        self.put_manifest(replace(value, arrays=(ArrayManifest(self.node.id, refs),)))

    def refs(self, number):
        return self.manifests[number].arrays[0].refs


@pytest.fixture(scope="module")
def single(split, tmp_path_factory):
    """The same without the tag: nothing is shared, so damage shows once."""
    path = copy(split, tmp_path_factory.mktemp("single") / "repo")
    official(path).delete_tag("first")
    expire_snapshots(assets(path), FUTURE)
    garbage_collect(assets(path), FUTURE, force=True)
    return path


@pytest.fixture
def damaged(single, tmp_path):
    return Damaged(copy(single, tmp_path / "repo"))


def reparented(damaged):
    rows = damaged.info.snapshots
    flushed_at = rows.flushed_at.copy()
    flushed_at[rows.row(damaged.tip)] = 1
    damaged.put_repo(snapshots=replace(rows, flushed_at=flushed_at))
    damaged.put_snapshot(flushed_at=1)


def shuffled_files(damaged):
    files = damaged.snapshot.manifest_files
    damaged.put_snapshot(manifest_files=files.take(np.arange(len(files))[::-1]))


def shuffled_refs(damaged):
    refs = damaged.refs(0).take(np.array([1, 0]))
    damaged.put_refs(0, refs)


def unlisted_manifest(damaged):
    damaged.put_snapshot(manifest_files=damaged.snapshot.manifest_files.take(np.arange(2)))


def stated(damaged, column, change):
    files = damaged.snapshot.manifest_files
    values = getattr(files, column).copy()
    values[0] = int(values[0]) + change
    damaged.put_snapshot(manifest_files=replace(files, **{column: values}))


def log_of(damaged):
    return damaged.assets.transaction_log(damaged.tip)


def pruned_log(damaged):
    pruned = damaged.info.snapshots.pruned.packed().data.reshape(-1, 12)
    return SnapshotId(pruned[0].tobytes())


def chunk_key(damaged, number, row):
    return f"chunks/{damaged.refs(number)[row].chunk_id}"


def with_length(refs, length):
    return replace(refs, length=np.array([length, CHUNK_BYTES], np.uint64))


def nodes_with(damaged, node):
    nodes = damaged.snapshot.nodes
    return Nodes.of([*(nodes[row] for row in range(len(nodes))), node])


def group(damaged, path, **changes):
    root = damaged.snapshot.nodes[0]
    return replace(root, id=NodeId.random(), path=path, **changes)


GRID = (DimensionShape(CHUNKS * CHUNK_BYTES, CHUNKS),)
TIP = "snapshots/{tip}"
M0 = "manifests/{m0}"

# What was done, and the one finding: severity, kind, file, array, chunk.
DAMAGES = {
    "a repo object of garbage": (
        lambda d: d.put("repo", b"garbage"),
        ("error", "unreadable", "repo", None, None),
    ),
    "no branch main": (
        lambda d: d.put_repo(branches=Refs.of({"other": 0})),
        ("error", "missing-main", "repo", None, None),
    ),
    "refs out of order": (
        lambda d: d.put_repo(
            tags=Refs(Ragged.of_text(["b", "a"]), d.info.branches.snapshot.repeat(2))
        ),
        ("error", "unsorted-refs", "repo", None, None),
    ),
    "a deleted tag that is there": (
        lambda d: d.put_repo(tags=Refs.of({"first": 0})),
        ("error", "deleted-tag", "repo", None, None),
    ),
    "a snapshot older than its parent": (
        reparented,
        ("warning", "time-order", "repo", None, None),
    ),
    "no updates": (
        lambda d: d.put_repo(updates=d.info.updates.take(np.zeros(0, np.int64))),
        ("error", "ops-log", "repo", None, None),
    ),
    "a latest update with a backup": (
        lambda d: d.put_repo(updates=d.info.updates.take(np.arange(1, len(d.info.updates)))),
        ("error", "ops-log", "repo", None, None),
    ),
    "updates in the wrong order": (
        lambda d: d.put_repo(
            updates=replace(d.info.updates, updated_at=d.info.updates.updated_at[::-1].copy())
        ),
        ("error", "ops-log", "repo", None, None),
    ),
    "a short log that is cut": (
        lambda d: d.put_repo(repo_before_updates="repo.1.X"),
        ("warning", "ops-log-cut", "overwritten/repo.1.X", None, None),
    ),
    "a backup of garbage in the log": (
        lambda d: (
            d.put("overwritten/repo.1.X", b"garbage"),
            d.put_repo(repo_before_updates="repo.1.X"),
        ),
        ("error", "unreadable", "overwritten/repo.1.X", None, None),
    ),
    "no snapshot file": (
        lambda d: d.remove(f"snapshots/{d.tip}"),
        ("error", "missing-file", TIP, None, None),
    ),
    "a snapshot file of garbage": (
        lambda d: d.put(f"snapshots/{d.tip}", b"garbage"),
        ("error", "unreadable", TIP, None, None),
    ),
    "a truncated snapshot file": (
        lambda d: d.put(f"snapshots/{d.tip}", snapshot.encode(d.snapshot)[:-5]),
        ("error", "unreadable", TIP, None, None),
    ),
    "a snapshot under another name": (
        lambda d: d.put_snapshot(id=SnapshotId.random()),
        ("error", "id-mismatch", TIP, None, None),
    ),
    "a snapshot of another time": (
        lambda d: d.put_snapshot(flushed_at=d.snapshot.flushed_at + 1),
        ("warning", "time-mismatch", TIP, None, None),
    ),
    "nodes out of order": (
        lambda d: d.put_snapshot(nodes=d.snapshot.nodes.take(np.array([1, 0]))),
        ("error", "unsorted-nodes", TIP, None, None),
    ),
    "manifests out of order": (
        shuffled_files,
        ("warning", "unsorted-manifests", TIP, None, None),
    ),
    "a manifest that is not listed": (
        unlisted_manifest,
        ("error", "manifest-list-mismatch", TIP, None, None),
    ),
    "two nodes of one id": (
        lambda d: d.put_snapshot(nodes=nodes_with(d, replace(group(d, "/g"), id=d.node.id))),
        ("error", "duplicate-node", TIP, None, None),
    ),
    "a group in an array": (
        lambda d: d.put_snapshot(nodes=nodes_with(d, group(d, "/a/g"))),
        ("error", "node-below-array", TIP, "/a/g", None),
    ),
    "an impossible path": (
        lambda d: d.put_snapshot(nodes=nodes_with(d, group(d, "/x//y"))),
        ("error", "invalid-path", TIP, "/x//y", None),
    ),
    "zarr.json of garbage": (
        lambda d: d.put_node(user_data=b"{"),
        ("error", "invalid-zarr-metadata", TIP, "/a", None),
    ),
    "zarr.json of a group at an array": (
        lambda d: d.put_node(user_data=d.snapshot.nodes[0].user_data),
        ("error", "metadata-mismatch", TIP, "/a", None),
    ),
    "another shape than zarr.json has": (
        lambda d: d.put_node(
            array=replace(d.node.array, shape=(replace(GRID[0], array_length=999),))
        ),
        ("error", "metadata-mismatch", TIP, "/a", None),
    ),
    "more chunks than zarr.json has": (
        lambda d: d.put_node(array=replace(d.node.array, shape=(replace(GRID[0], num_chunks=9),))),
        ("error", "metadata-mismatch", TIP, "/a", None),
    ),
    "other dimension names than zarr.json has": (
        lambda d: d.put_node(array=replace(d.node.array, dimension_names=("x",))),
        ("warning", "metadata-mismatch", TIP, "/a", None),
    ),
    "overlapping extents": (
        lambda d: d.put_extents([[[0, 3]], [[2, 4]], [[4, 6]]]),
        ("error", "overlapping-extents", TIP, "/a", None),
    ),
    "empty extents": (
        lambda d: (
            d.put_refs(2, ChunkRefs.empty(1)),
            d.put_extents([[[0, 2]], [[2, 4]], [[4, 4]]]),
        ),
        ("error", "empty-extents", TIP, "/a", None),
    ),
    "extents that leave a chunk out": (
        lambda d: d.put_extents([[[0, 1]], [[2, 4]], [[4, 6]]]),
        ("error", "ref-outside-extents", M0, "/a", (1,)),
    ),
    "no manifest file": (
        lambda d: d.remove(f"manifests/{d.manifests[0].id}"),
        ("error", "missing-file", M0, None, None),
    ),
    "a manifest file of garbage": (
        lambda d: d.put(f"manifests/{d.manifests[0].id}", b"garbage"),
        ("error", "unreadable", M0, None, None),
    ),
    "a manifest under another name": (
        lambda d: d.put_manifest(
            replace(d.manifests[0], id=ManifestId.random()), d.manifests[0].id
        ),
        ("error", "id-mismatch", M0, None, None),
    ),
    "references out of order": (shuffled_refs, ("error", "unreadable", M0, None, None)),
    "a manifest of another array": (
        lambda d: d.put_manifest(
            replace(d.manifests[0], arrays=(ArrayManifest(NodeId.random(), d.refs(0)),))
        ),
        ("error", "missing-refs", M0, "/a", None),
    ),
    "a manifest said to be shorter": (
        lambda d: stated(d, "size_bytes", -1),
        ("error", "size-mismatch", "manifests/{first}", None, None),
    ),
    "a manifest said to be longer": (
        lambda d: stated(d, "size_bytes", 1),
        ("warning", "size-mismatch", "manifests/{first}", None, None),
    ),
    "a manifest said to hold more": (
        lambda d: stated(d, "num_chunk_refs", 1),
        ("warning", "count-mismatch", "manifests/{first}", None, None),
    ),
    "a reference outside the grid": (
        lambda d: (
            d.put_refs(2, replace(d.refs(2), index=np.array([[4], [CHUNKS]], np.uint32))),
            d.put_extents([[[0, 2]], [[2, 4]], [[4, CHUNKS + 1]]]),
        ),
        ("warning", "ref-outside-grid", "manifests/{m2}", "/a", (CHUNKS,)),
    ),
    "references of two dimensions": (
        lambda d: d.put_refs(0, replace(d.refs(0), index=np.array([[0, 0], [0, 1]], np.uint32))),
        ("error", "ref-outside-grid", M0, "/a", None),
    ),
    "a reference of no bytes": (
        lambda d: d.put_refs(0, with_length(d.refs(0), 0)),
        ("error", "zero-length", M0, "/a", (0,)),
    ),
    "no transaction log": (
        lambda d: d.remove(f"transactions/{d.tip}"),
        ("error", "missing-file", "transactions/{tip}", None, None),
    ),
    "a transaction log of garbage": (
        lambda d: d.put(f"transactions/{d.tip}", b"garbage"),
        ("error", "unreadable", "transactions/{tip}", None, None),
    ),
    "a transaction log under another name": (
        lambda d: d.put(
            f"transactions/{d.tip}",
            transaction_log.encode(replace(log_of(d), id=SnapshotId.random())),
        ),
        ("error", "id-mismatch", "transactions/{tip}", None, None),
    ),
    "no log of an expired snapshot": (
        lambda d: d.remove(f"transactions/{pruned_log(d)}"),
        ("error", "missing-file", "transactions/{pruned}", None, None),
    ),
    "no chunk object": (
        lambda d: d.remove(chunk_key(d, 1, 0)),
        ("error", "missing-chunk", "{c10}", "/a", (2,)),
    ),
    "a truncated chunk object": (
        lambda d: d.put(chunk_key(d, 1, 1), b"x" * (CHUNK_BYTES - 1)),
        ("error", "short-chunk", "{c11}", "/a", (3,)),
    ),
    "a reference longer than its object": (
        lambda d: d.put_refs(0, with_length(d.refs(0), CHUNK_BYTES + 1)),
        ("error", "short-chunk", "{c00}", "/a", (0,)),
    ),
    "a flipped byte in a chunk": (
        lambda d: d.put(chunk_key(d, 2, 0), b"y" + b"x" * (CHUNK_BYTES - 1)),
        ("error", "undecodable-chunk", "{c20}", "/a", (4,)),
    ),
}
OBJECTS = {"missing-chunk", "short-chunk"}
UNCHECKED = {"references out of order", "a reference of no bytes"}
"""Our writer refuses to write such manifests."""


def names(damaged):
    found = {
        "tip": damaged.tip,
        "pruned": pruned_log(damaged),
        "first": ManifestId(damaged.snapshot.manifest_files.id[0].tobytes()),
        "m0": damaged.manifests[0].id,
        "m2": damaged.manifests[2].id,
    }
    for number in range(3):
        for row in range(2):
            found[f"c{number}{row}"] = chunk_key(damaged, number, row)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_nothing_else(damage, damaged, monkeypatch):
    act, (severity, kind, file, array, chunk) = DAMAGES[damage]
    file = file.format(**names(damaged))
    monkeypatch.setattr(snapshot, "_check_manifests", lambda value: None)
    if damage in UNCHECKED:
        monkeypatch.setattr(manifest, "_check", lambda item: None)
    act(damaged)
    found = findings(damaged.path)
    assert [(f.severity, f.kind, f.file, f.array, f.chunk) for f in found] == [
        (severity, kind, file, array, chunk)
    ]
    assert found[0].message
    assert found[0].what_to_do
    by_level = {level: {item.kind for item in findings(damaged.path, level)} for level in LEVELS}
    needs = {"undecodable-chunk": "data"} | dict.fromkeys(OBJECTS, "objects")
    first = LEVELS.index(needs.get(kind, "metadata"))
    for number, level in enumerate(LEVELS):
        assert by_level[level] == ({kind} if number >= first else set())


LEVELS = ["metadata", "objects", "data"]


def test_a_repository_of_the_official_library_is_healthy(split):
    assert findings(split) == []


def test_a_messy_history_is_healthy(messy):
    assert findings(messy.path) == []


def test_all_kinds_of_arrays_are_healthy(tmp_path):
    arrays = {
        "scalar": official_repos.ArrayPlan((), (), ("inline",)),
        "g/mixed": official_repos.ArrayPlan(
            (7, 5), (2, 2), ("inline", "native", "virtual", "missing"), ("y", None)
        ),
        "g/empty": official_repos.ArrayPlan((0, 3), (1, 1), ("missing",)),
        "a-b": official_repos.ArrayPlan((4,), (3,), ("native",), ("x",)),
    }
    plan = official_repos.RepositoryPlan(
        groups=("g", "é"), arrays=arrays, split=2, branches=("b",), tags=("t",), deleted_tags=("d",)
    )
    path = official_repos.build(tmp_path / "repo", plan).path
    assert [*verify(assets(path), "data", decode_chunk=lambda *_: None)] == []


def test_objects_that_nobody_needs_are_no_fault(damaged):
    damaged.put("chunks/00000000000000000000", b"orphan")
    damaged.put("manifests/00000000000000000000", b"orphan")
    damaged.put("snapshots/notes.txt", b"mine")
    assert findings(damaged.path) == []


def test_what_the_official_library_repairs_is_healthy_again(damaged):
    damaged.remove(chunk_key(damaged, 1, 0))
    assert {item.kind for item in findings(damaged.path)} == {"missing-chunk"}
    repo = official(damaged.path)
    session = repo.writable_session("main")
    write_chunk(session, 2, 9)
    session.commit("repaired")
    repo.expire_snapshots(FUTURE)
    repo.garbage_collect(FUTURE)
    assert findings(damaged.path) == []


def test_chunks_are_decoded_once_whatever_shares_them(split):
    seen = []
    found = verify(
        assets(split), "data", decode_chunk=lambda zarr_json, coords, data: seen.append(coords)
    )
    assert [*found] == []
    # Chunks 0 and 1 were written twice, and a tag holds the older ones.
    assert sorted(seen) == sorted([(n,) for n in range(CHUNKS)] + [(0,), (1,)])


def test_arguments_are_checked_at_once(split):
    with pytest.raises(InvalidInputError):
        verify(assets(split), "everything")
    with pytest.raises(InvalidInputError):
        verify(assets(split), "data")


def test_where_there_is_no_repository_there_is_nothing_to_verify(tmp_path):
    with pytest.raises(NotFoundError):
        [*verify(assets(tmp_path / "nothing"))]
