"""Repositories that the official library writes as a plan says, and what must be read from them."""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import icechunk
import numpy as np
import zarr
from icechunk import ManifestSplitCondition, ManifestSplitDimCondition

icechunk.set_logs_filter("error")

VIRTUAL_BYTES = bytes(range(1, 256)) * 8
KINDS = ("inline", "native", "virtual", "missing")


@dataclass(frozen=True)
class ArrayPlan:
    """A uint8 array; chunk i is of kind `kinds[i % len(kinds)]`."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    kinds: tuple[str, ...]
    dimension_names: tuple[str | None, ...] | None = None
    attributes: dict = field(default_factory=dict)


@dataclass(frozen=True)
class RepositoryPlan:
    groups: tuple[str, ...] = ()
    arrays: dict[str, ArrayPlan] = field(default_factory=dict)
    message: str = "written"
    commit_metadata: dict = field(default_factory=dict)
    repository_metadata: dict | None = None
    split: int | None = None
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    deleted_tags: tuple[str, ...] = ()


@dataclass
class Official:
    """A repository on disk with the values of all its arrays."""

    path: Path
    plan: RepositoryPlan
    expected: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def virtual_prefix(self) -> str:
        return f"file://{self.path}-virtual/"

    @property
    def access(self) -> dict:
        return {self.virtual_prefix: icechunk.credentials.LocalFileSystemAccess}

    def config(self, inline_threshold: int) -> icechunk.RepositoryConfig:
        config = icechunk.RepositoryConfig.default()
        config.inline_chunk_threshold_bytes = inline_threshold
        store = icechunk.local_filesystem_store(f"{self.path}-virtual")
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(self.virtual_prefix, store)
        )
        if self.plan.split:
            sizes = {ManifestSplitDimCondition.Any(): self.plan.split}
            config.manifest = icechunk.ManifestConfig(
                splitting=icechunk.ManifestSplittingConfig.from_dict(
                    {ManifestSplitCondition.AnyArray(): sizes}
                )
            )
        return config

    def open(self, inline_threshold: int = 512) -> icechunk.Repository:
        return icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(self.path)),
            self.config(inline_threshold),
            authorize_virtual_chunk_access=self.access,
        )

    def verify(self, repo: icechunk.Repository, **version: str) -> None:
        """Every chunk of every array must read as written."""
        version = version or {"branch": "main"}
        root = zarr.open_group(repo.readonly_session(**version).store, mode="r")
        for path, values in self.expected.items():
            read = root[path]
            assert np.array_equal(read[...], values), path
            assert dict(read.attrs) == self.plan.arrays[path].attributes


def build(path: Path, plan: RepositoryPlan) -> Official:
    """Write the plan in four commits: the nodes, then inline, native and virtual chunks."""
    official = Official(path, plan)
    virtual = Path(f"{path}-virtual")
    virtual.mkdir(parents=True)
    (virtual / "données.bin").write_bytes(VIRTUAL_BYTES)
    icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)),
        official.config(512),
        authorize_virtual_chunk_access=official.access,
    )
    _create_nodes(official)
    for kind, threshold in (("inline", 512), ("native", 0), ("virtual", 0)):
        _write_chunks(official, kind, threshold)
    repo = official.open()
    tip = repo.lookup_branch("main")
    for name in plan.branches:
        repo.create_branch(name, tip)
    for name in (*plan.tags, *plan.deleted_tags):
        repo.create_tag(name, tip)
    for name in plan.deleted_tags:
        repo.delete_tag(name)
    if plan.repository_metadata is not None:
        repo.set_metadata(plan.repository_metadata)
    return official


def _create_nodes(official: Official) -> None:
    plan = official.plan
    session = official.open().writable_session("main")
    root = zarr.open_group(session.store, mode="w", attributes={"root": True})
    for path in plan.groups:
        root.require_group(path)
    for path, array in plan.arrays.items():
        root.create_array(
            path,
            shape=array.shape,
            chunks=array.chunks,
            dtype="u1",
            fill_value=0,
            compressors=None,
            dimension_names=array.dimension_names,
            attributes=array.attributes,
        )
        official.expected[path] = np.zeros(array.shape, np.uint8)
    session.commit(plan.message, plan.commit_metadata)


def _write_chunks(official: Official, kind: str, inline_threshold: int) -> None:
    session = official.open(inline_threshold).writable_session("main")
    root = zarr.open_group(session.store, mode="r+")
    for path, array in official.plan.arrays.items():
        for number, coords in enumerate(grid(array)):
            if array.kinds[number % len(array.kinds)] != kind:
                continue
            offset = (7 * number + len(path)) % 500
            size = int(np.prod(array.chunks, dtype=int))
            chunk = np.frombuffer(VIRTUAL_BYTES[offset : offset + size], np.uint8)
            region = tuple(
                slice(c * n, min((c + 1) * n, length))
                for c, n, length in zip(coords, array.chunks, array.shape, strict=True)
            )
            inside = tuple(slice(0, part.stop - part.start) for part in region)
            official.expected[path][region] = chunk.reshape(array.chunks)[inside]
            if kind == "virtual":
                session.store.set_virtual_ref(
                    "/".join([path, "c", *map(str, coords)]),
                    f"{official.virtual_prefix}données.bin",
                    offset=offset,
                    length=size,
                )
            else:
                root[path][region] = official.expected[path][region]
    if session.has_uncommitted_changes:
        session.commit(f"{kind} chunks", {"kind": kind})


def grid(array: ArrayPlan) -> list[tuple[int, ...]]:
    """The coordinates of all chunks."""
    counts = [-(-length // n) for length, n in zip(array.shape, array.chunks, strict=True)]
    return list(product(*map(range, counts)))
