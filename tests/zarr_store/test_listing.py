"""Listing: lazily, and from no more manifests than the prefix needs."""

import tracemalloc

import numpy as np
import pytest

from icefloe import CachingConfig, MemoryStorage, Repository, RepositoryConfig
from icefloe.format.chunk_refs import ChunkRefs

ROWS, COLUMNS = 1000, 1000
DOCUMENT = (
    b'{"zarr_format": 3, "node_type": "array", "shape": [1000, 1000],'
    b' "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}}'
)
GROUP = b'{"zarr_format": 3, "node_type": "group"}'


@pytest.fixture(scope="module")
def million(watched):
    """A million chunks in about ten manifests."""
    storage = watched()
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    for path in ("/", "/b", "/b/a-x", "/c", "/c/0"):
        session.set_node(path, GROUP)
    session.set_node("/b/a", DOCUMENT)
    index = np.indices((ROWS, COLUMNS), np.uint32).reshape(2, -1).T
    ids = np.random.default_rng(3).integers(0, 255, (len(index), 12), np.uint8)
    lengths = np.ones(len(index), np.uint64)
    session.set_refs("/b/a", ChunkRefs.native(np.ascontiguousarray(index), ids, lengths, lengths))
    session.commit("a million")
    return storage


@pytest.fixture
def storage(million):
    million.reads.clear()
    return million


@pytest.fixture
def store(storage):
    """No manifest is in memory."""
    config = RepositoryConfig(caching=CachingConfig(manifest_bytes=0))
    store = Repository.open(storage, config=config).readonly_session("main").store
    assert len(store.session.node("/b/a").array.manifests) >= 10
    storage.reads.clear()
    return store


async def test_a_large_array_is_listed_manifest_by_manifest(store, storage):
    keys = store.list_prefix("b/")
    assert [await anext(keys) for _ in range(3)] == ["b/zarr.json", "b/a/zarr.json", "b/a/c/0/0"]
    assert storage.reads["manifests"] == 1
    await keys.aclose()

    tracemalloc.start()
    count = 0
    async for _ in store.list_prefix("b/a/c"):
        count += 1
        if count == 150_000:
            break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A million keys take more than 60 MB.
    assert peak < 40e6
    assert storage.reads["manifests"] <= 1 + 2


async def test_all_keys_are_listed_once(store):
    keys = [key async for key in store.list_prefix("b/a/c")]
    assert len(keys) == len(set(keys)) == ROWS * COLUMNS


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("b/a/c/500/", {f"b/a/c/500/{column}" for column in range(COLUMNS)}),
        ("b/a/c/500/99", {"b/a/c/500/99"}),
        ("b/a/c/50", {f"b/a/c/50/{column}" for column in range(COLUMNS)}),
        ("b/a/c/500/99/1", set()),
        ("b/a/c/500/1000", set()),
        ("b/a/c/500/9/", set()),
        ("b/a/c/05/", set()),
        ("b/a/c/1000/", set()),
        ("b/a/z", set()),
        ("b/a/zarr.json", {"b/a/zarr.json"}),
        ("b/a-", set()),
        ("b/a-x", {"b/a-x/zarr.json"}),
        ("c/0", {"c/0/zarr.json"}),
        ("c/", {"c/zarr.json", "c/0/zarr.json"}),
        ("b/nothing/", set()),
    ],
)
async def test_a_prefix_reads_one_manifest_at_most(store, storage, prefix, expected):
    assert {key async for key in store.list_prefix(prefix)} == expected
    assert storage.reads["manifests"] <= 1


async def test_a_folder_of_chunks_lists_the_next_coordinates(store, storage):
    assert [name async for name in store.list_dir("b/a/c/7")] == [str(at) for at in range(COLUMNS)]
    assert storage.reads["manifests"] == 1
    assert [name async for name in store.list_dir("b/a/c")] == [str(at) for at in range(ROWS)]
    assert [name async for name in store.list_dir("b/a/c/7/7")] == []
    assert not await store.is_empty("b/a/c/999")
    assert await store.is_empty("b/a/c/1000")


async def test_a_leading_slash_means_nothing(store):
    assert not await store.is_empty("/")
    assert not await store.is_empty("/b/a")
    assert [key async for key in store.list_prefix("/c/0")] == ["c/0/zarr.json"]


async def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name():
    session = Repository.create(MemoryStorage()).writable_session("main")
    for path in ("/", "/foo", "/foo/in", "/foo-bar", "/foo-bar/in", "/foobar"):
        session.set_node(path, GROUP)
    store = session.store
    for prefix in ("foo", "foo/", "/foo"):
        assert [key async for key in store.list_prefix(prefix)] == [
            "foo/zarr.json",
            "foo/in/zarr.json",
        ]
        assert await store.getsize_prefix(prefix) == 2 * len(GROUP)
        assert {name async for name in store.list_dir(prefix)} == {"in", "zarr.json"}
    assert [key async for key in store.list_prefix("fo")] == []
    assert await store.is_empty("fo")
    await store.delete_dir("fo")
    await store.delete_dir("foo")
    assert {key async for key in store.list()} == {
        "zarr.json",
        "foo-bar/zarr.json",
        "foo-bar/in/zarr.json",
        "foobar/zarr.json",
    }
