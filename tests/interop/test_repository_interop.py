"""Ours and the official library take turns on one repository: both must see the same all along."""

import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import ReadOnlyError, Repository
from icefloe.assets import Assets
from icefloe.format.ids import SnapshotId
from icefloe.format.updates import UpdateKind

icechunk.set_logs_filter("error")

NAMES = ["a", "a-b", "g/a", "g/日本"]
WRITERS = st.sampled_from(["ours", "official"])
REF_STEPS = ["branch", "reset", "tag", "untag"]
STEPS = st.sampled_from(["array", "write", "write", "resize", "delete", "attributes", *REF_STEPS])
PLANS = st.lists(st.tuples(WRITERS, STEPS, st.integers(0, 2**16)), min_size=4, max_size=10)


class Shared:
    """One repository in a folder, both handles on it, and what must be read from `main`."""

    def __init__(self, path, creator="ours", config=None):
        self.path = path
        self.storage = icechunk.local_filesystem_storage(str(path))
        if creator == "ours":
            Repository.create(path)
        else:
            icechunk.Repository.create(self.storage, config)
        self.handles = {
            "ours": Repository.open(path),
            "official": icechunk.Repository.open(self.storage, config),
        }
        self.expected = {}
        self.messages = ["Repository initialized"]

    @contextmanager
    def transaction(self, writer):
        message = f"{writer} {len(self.messages)}"
        metadata = {"by": writer, "number": len(self.messages)}
        repo = self.handles[writer]
        with repo.transaction("main", message=message, metadata=metadata) as store:
            yield zarr.open_group(store, mode="a")
        self.messages.insert(0, message)

    def step(self, writer, step, seed):
        random = np.random.default_rng(seed)
        name = NAMES[seed % len(NAMES)]
        if step in REF_STEPS:
            self.move_refs(self.handles[writer], step, seed)
        elif step == "array":
            self.create(writer, name, random)
        elif name in self.expected:
            getattr(self, step)(writer, name, random)

    def move_refs(self, repo, step, seed):
        tip = repo.lookup_branch("main")
        others = sorted(repo.list_branches() - {"main"})
        if step == "branch":
            repo.create_branch(f"branch-{len([*repo.ops_log()])}", tip)
        elif step == "reset" and others:
            repo.reset_branch(others[seed % len(others)], tip)
            repo.delete_branch(others[0])
        elif step == "tag":
            repo.create_tag(f"tag-{len([*repo.ops_log()])}", tip)
        elif step == "untag":
            for tag in sorted(repo.list_tags())[:1]:
                repo.delete_tag(tag)

    def create(self, writer, name, random):
        shape = tuple(random.integers(0, 7, random.integers(0, 4)).tolist())
        chunks = (2,) * len(shape)
        if random.integers(2):
            # Long rows make chunks of their own, short ones stay in the manifest.
            shape, chunks = (*shape, 300), (*chunks, 300)
        with self.transaction(writer) as root:
            array = root.create_array(
                name,
                shape=shape,
                chunks=chunks,
                dtype="i4",
                compressors=None,
                overwrite=True,
            )
            array[...] = values = random.integers(0, 99, shape).astype(array.dtype)
        self.expected[name] = values

    def write(self, writer, name, random):
        values = self.expected[name]
        if values.ndim and values.size:
            low = random.integers(0, len(values))
            with self.transaction(writer) as root:
                root[name][low:] = values[low:] = random.integers(0, 99, values[low:].shape).astype(
                    values.dtype
                )
                root.attrs["written"] = len(self.messages)

    def resize(self, writer, name, random):
        values = self.expected[name]
        if values.ndim:
            new = int(random.integers(0, 9))
            with self.transaction(writer) as root:
                array = root[name]
                array.resize((new, *values.shape[1:]))
                array.attrs["resized"] = len(self.messages)
                grown = np.full(array.shape, array.fill_value, values.dtype)
                common = min(new, len(values))
                grown[:common] = values[:common]
                # zarr keeps what a chunk at the edge holds past the end of the array.
                edge = min(-(-common // 2) * 2, new)
                array[common:edge] = grown[common:edge]
            self.expected[name] = grown

    def delete(self, writer, name, _):
        with self.transaction(writer) as root:
            del root[name]
        del self.expected[name]

    def attributes(self, writer, name, random):
        with self.transaction(writer) as root:
            root[name].attrs["note"] = f"{len(self.messages)} {random.integers(1000)}"

    def check(self):
        views = {name: view(repo) for name, repo in self.handles.items()}
        assert views["ours"] == views["official"]
        assert [it[2] for it in views["ours"]["history"]["main"]] == self.messages
        for repo in self.handles.values():
            root = zarr.open_group(repo.readonly_session("main").store, mode="r")
            arrays = {path: it for path, it in root.members(None) if isinstance(it, zarr.Array)}
            assert arrays.keys() == self.expected.keys()
            for path, array in arrays.items():
                np.testing.assert_array_equal(array[...], self.expected[path])


def view(repo):
    """All that both libraries can tell of a repository, in the same words."""
    return {
        "branches": {name: repo.lookup_branch(name) for name in repo.list_branches()},
        "tags": {name: repo.lookup_tag(name) for name in repo.list_tags()},
        "history": {
            name: [
                (it.id, it.parent_id, it.message, it.written_at, it.metadata)
                for it in repo.ancestry(branch=name)
            ]
            for name in repo.list_branches()
        },
        "documents": documents(repo),
        "log": [*map(entry, repo.ops_log())],
    }


def documents(repo):
    store = repo.readonly_session("main").store

    async def read():
        # The fill_value of a missing array is not our business: whole documents are compared.
        return {
            key: (await store.get(key, zarr.core.buffer.default_buffer_prototype())).to_bytes()
            for key in sorted([key async for key in store.list()])
        }

    return zarr.core.sync.sync(read())


def entry(update):
    if isinstance(update, icechunk.ops.Update):
        kind = type(update.kind).__name__.removeprefix("UpdateType_")
        at = round(update.updated_at.timestamp() * 1e6)
        return kind.lower(), at, update.backup_path
    return (
        UpdateKind(update.kind).name.replace("_", "").lower(),
        update.updated_at,
        update.backup_path,
    )


@given(PLANS, WRITERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_both_libraries_see_the_same_after_every_step_of_either(plan, creator):
    with tempfile.TemporaryDirectory() as folder:
        shared = Shared(Path(folder) / "repo", creator)
        with shared.transaction("ours"):
            pass
        for step in plan:
            shared.step(*step)
            shared.check()


@pytest.mark.parametrize("creator", ["ours", "official"])
def test_the_ops_log_reads_the_same_across_backups_that_both_made(tmp_path, creator):
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 3
    shared = Shared(tmp_path / "repo", "official", config)
    shared.handles["official"].save_config()
    shared.handles["ours"] = Repository.open(shared.path)
    for number in range(12):
        with shared.transaction(["ours", "official"][number % 5 % 2]) as root:
            root.attrs["number"] = number
        shared.check()
    info, _ = Assets(shared.handles["ours"].storage).repo()
    assert len(info.updates) == 3
    assert len([*shared.handles["official"].ops_log()]) >= 13


@pytest.mark.parametrize("writer", ["ours", "official"])
def test_transaction_logs_say_the_same_whoever_commits(tmp_path, writer):
    """The same changes by either library, told by node path."""
    shared = Shared(tmp_path / "repo")
    random = np.random.default_rng(1)
    for name in NAMES:
        shared.create("ours", name, random)
    ids = {
        path: shared.handles["ours"].readonly_session("main").get_node_id(f"/{path}")
        for path in [*NAMES, "g"]
    }
    with shared.transaction(writer) as root:
        array = root.create_array("new", shape=(4,), chunks=(2,), dtype="i4")
        array[:] = 1
        root["a"].attrs["x"] = 1
        del root["g"]
    snapshot_id = shared.handles["ours"].lookup_branch("main")
    log = Assets(shared.handles["ours"].storage).transaction_log(SnapshotId.parse(snapshot_id))
    assert {str(it) for it in log.updated_arrays} == {ids["a"]}
    assert {str(it) for it in log.deleted_arrays} == {ids["g/a"], ids["g/日本"]}
    assert {str(it) for it in log.deleted_groups} == {ids["g"]}
    (new,) = log.new_arrays
    assert [(node, coords.tolist()) for node, coords in log.updated_chunks.items()] == [
        (new, [[0], [1]])
    ]
    shared.expected = {name: it for name, it in shared.expected.items() if name[0] != "g"}
    shared.expected["new"] = np.ones(4, "i4")
    shared.check()


def test_official_diff_status_and_garbage_collection_take_our_commits(tmp_path):
    shared = Shared(tmp_path / "repo")
    random = np.random.default_rng(2)
    first = shared.handles["ours"].lookup_branch("main")
    for name in NAMES:
        shared.create("ours", name, random)
    official = shared.handles["official"]
    diff = official.diff(from_snapshot_id=first, to_branch="main")
    assert diff.new_arrays == {f"/{name}" for name in NAMES}
    future = (
        icechunk.Repository.open(shared.storage)
        .lookup_snapshot(official.lookup_branch("main"))
        .written_at
    )
    official.garbage_collect(future)
    shared.check()


def test_a_status_set_by_the_official_library_is_honoured(tmp_path):
    shared = Shared(tmp_path / "repo")
    ours, official = shared.handles["ours"], shared.handles["official"]
    now = datetime.now(UTC)
    limited = icechunk.RepoStatus(icechunk.RepoAvailability.read_only, now, "moving house")
    official.set_status(limited)
    with pytest.raises(ReadOnlyError, match="moving house"):
        ours.writable_session("main")
    with pytest.raises(ReadOnlyError):
        ours.create_tag("v1", ours.lookup_branch("main"))
    official.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online, now))
    ours.create_tag("v1", ours.lookup_branch("main"))
    assert official.lookup_tag("v1") == ours.lookup_branch("main")
