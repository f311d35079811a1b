"""Histories that the official library writes as a plan says, and what can be seen of them."""

import asyncio
import json
import os
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import icechunk
import numpy as np
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

from icefloe.assets import Assets
from icefloe.clock import from_datetime
from icefloe.storage import open_storage

icechunk.set_logs_filter("error")

CHUNKS = 6
CHUNK_BYTES = 32
FOLDERS = ("snapshots", "transactions", "manifests", "chunks")
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
_BUFFER = default_buffer_prototype().buffer
_ZARR_JSON = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [CHUNKS * CHUNK_BYTES],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK_BYTES]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
}


def official(path):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def assets(path):
    return Assets(open_storage(path))


def put(store, key, data):
    asyncio.run(store.set(key, _BUFFER.from_bytes(data)))


def read(store, key):
    found = asyncio.run(store.get(key, default_buffer_prototype()))
    return None if found is None else found.to_bytes()


def write_chunk(session, number, value):
    put(session.store, f"a/c/{number % CHUNKS}", bytes([value % 255 + 1]) * CHUNK_BYTES)


def create(path, *, inline_threshold=0):
    """A repository with an array `a` of native chunks, one of them written."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = inline_threshold
    storage = icechunk.local_filesystem_storage(str(path))
    repo = icechunk.Repository.create(storage, config=config)
    session = repo.writable_session("main")
    put(session.store, "zarr.json", json.dumps({"zarr_format": 3, "node_type": "group"}).encode())
    put(session.store, "a/zarr.json", json.dumps(_ZARR_JSON).encode())
    write_chunk(session, 0, 0)
    session.commit("array")
    return repo


@dataclass
class History:
    """A repository being written, with every snapshot it ever had."""

    path: Path
    repo: icechunk.Repository
    snapshots: list[str] = field(default_factory=list)
    tags: int = 0
    branches: int = 0

    @classmethod
    def new(cls, path):
        repo = create(path)
        return cls(path, repo, [repo.lookup_branch("main")])

    def apply(self, operation):
        kind, first, second = operation
        getattr(self, f"_{kind}")(first, second)

    def _branch(self, number):
        return sorted(self.repo.list_branches())[number % len(self.repo.list_branches())]

    def _listed(self, number):
        """Some snapshot that can be pointed to."""
        info, _ = assets(self.path).repo()
        known = {str(info.snapshots.id_at(row)) for row in range(len(info.snapshots))}
        usable = [item for item in self.snapshots if item in known]
        return usable[number % len(usable)] if usable else self.repo.lookup_branch("main")

    def _session(self, branch, value):
        session = self.repo.writable_session(self._branch(branch))
        write_chunk(session, value, len(self.snapshots))
        return session

    def _commit(self, branch, value):
        self.snapshots.append(self._session(branch, value).commit(f"commit {value}"))

    def _amend(self, branch, value):
        name = self._branch(branch)
        if len([*self.repo.ancestry(branch=name)]) > 2:
            self.snapshots.append(self._session(branch, value).amend(f"amend {value}"))

    def _flush(self, branch, value):
        self.snapshots.append(self._session(branch, value).flush(f"flush {value}"))

    def _create_branch(self, target, _):
        self.branches += 1
        self.repo.create_branch(f"b{self.branches}", self._listed(target))

    def _delete_branch(self, branch, _):
        if (name := self._branch(branch)) != "main":
            self.repo.delete_branch(name)

    def _reset_branch(self, branch, target):
        self.repo.reset_branch(self._branch(branch), self._listed(target))

    def _create_tag(self, target, _):
        self.tags += 1
        self.repo.create_tag(f"t{self.tags}", self._listed(target))

    def _delete_tag(self, number, _):
        if names := sorted(self.repo.list_tags()):
            self.repo.delete_tag(names[number % len(names)])

    def _expire(self, number, flags):
        self.repo.expire_snapshots(
            self.time_of(number),
            delete_expired_branches=bool(flags & 1),
            delete_expired_tags=bool(flags & 2),
        )

    def time_of(self, number):
        """When some listed snapshot was written, exactly: bounds are exclusive."""
        info, _ = assets(self.path).repo()
        times = sorted(info.snapshots.flushed_at.tolist())
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=times[number % len(times)])


_KINDS = {
    "commit": 6,
    "amend": 2,
    "flush": 3,
    "create_branch": 2,
    "delete_branch": 1,
    "reset_branch": 2,
    "create_tag": 2,
    "delete_tag": 1,
    "expire": 1,
}
_operations = st.tuples(
    st.sampled_from([kind for kind, weight in _KINDS.items() for _ in range(weight)]),
    st.integers(0, 20),
    st.integers(0, 20),
)
plans = st.lists(_operations, min_size=3, max_size=14)


def build(path, plan):
    history = History.new(path)
    for operation in plan:
        history.apply(operation)
    return history


def copy(source, target):
    """With the times of all files, which decide what is garbage."""
    shutil.copytree(source, target)
    return target


def times_between(path):
    """Points in time between the writing of any two files."""
    times = sorted(
        {os.stat(file).st_mtime_ns for name in FOLDERS for file in (path / name).glob("*")}
    )
    middles = [(a + b) // 2 for a, b in pairwise(times) if b - a > 10_000]
    return [datetime.fromtimestamp(ns / 1e9, UTC) for ns in middles] + [FUTURE]


def files(path):
    return {f"{name}/{file.name}" for name in FOLDERS for file in (Path(path) / name).glob("*")}


def seen(path):
    """All that a repo object says about its history, without what must differ between two runs."""
    info, _ = assets(path).repo()
    rows = info.snapshots
    return {
        "snapshots": {
            str(row.id): (
                row.parent_id and str(row.parent_id),
                row.flushed_at,
                row.message,
                dict(row.metadata),
                [str(item) for item in row.pruned_ancestor_tx_logs],
            )
            for row in (rows[number] for number in range(len(rows)))
        },
        "branches": {name: str(rows.id_at(row)) for name, row in info.branches.todict().items()},
        "tags": {name: str(rows.id_at(row)) for name, row in info.tags.todict().items()},
        "deleted_tags": info.deleted_tags.texts(),
        "updates": info.updates.kind.tolist(),
        "backups": info.updates.backup_path.present.tolist(),
        "config": info.config,
        "metadata": info.metadata,
    }


def contents(path):
    """Every chunk of every ref, read by the official library."""
    repo = official(path)
    found = {}
    for name in repo.list_branches():
        found["branch", name] = _chunks(repo.readonly_session(branch=name))
    for name in repo.list_tags():
        found["tag", name] = _chunks(repo.readonly_session(tag=name))
    return found


def _chunks(session):
    return tuple(read(session.store, f"a/c/{number}") for number in range(CHUNKS))


def microseconds(when):
    return np.uint64(from_datetime(when))
