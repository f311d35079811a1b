"""Our store and the official one, asked the same."""

import json

import icechunk
import numpy as np
import pytest
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from icefloe import MemoryStorage

icechunk.set_logs_filter("error")
PROTOTYPE = default_buffer_prototype()
GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def array(*shape):
    grid = {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}}
    return json.dumps(
        {"zarr_format": 3, "node_type": "array", "shape": shape, "chunk_grid": grid}
    ).encode()


@pytest.fixture
async def stores():
    ours = icefloe.Repository.create(MemoryStorage()).writable_session("main").store
    theirs = icechunk.Repository.create(icechunk.in_memory_storage())
    both = ours, theirs.writable_session("main").store
    nodes = {
        "": GROUP,
        "a/": array(9, 9),
        "a-b/": GROUP,
        "g/": GROUP,
        "g/s/": array(),
        "g/c/": GROUP,
    }
    for store in both:
        for root, document in nodes.items():
            await store.set(f"{root}zarr.json", cpu.Buffer.from_bytes(document))
        for key in ("a/c/0/0", "a/c/1/2", "a/c/1/3", "g/s/c"):
            await store.set(key, cpu.Buffer.from_bytes(b"1234"))
    return both


KEYS = [
    "zarr.json",
    "a/zarr.json",
    "x/zarr.json",
    "g/c/zarr.json",
    "a/c/0/0",
    "a/c/5/5",
    "a/c/9/0",
    "g/s/c",
    "x/c/0",
]
V2_KEYS = [".zgroup", ".zattrs", ".zmetadata", "a/.zarray", "a/.zattrs", "a/.zmetadata"]
# The official store raises on reading these, too. To ours they are keys that are not there, as
# the contract of zarr for stores expects.
NO_KEYS = ["", "a", "a/c/", "a/c/0.0", "a/c.0.0", "a/0.0", "a/c/-1/0", "a/c/x/0", "zarr.jsonx"]


@pytest.mark.parametrize("key", KEYS + V2_KEYS)
async def test_reading_a_key(stores, key):
    ours, theirs = [await store.get(key, PROTOTYPE) for store in stores]
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.to_bytes() == theirs.to_bytes()
    if key not in V2_KEYS:
        assert await stores[0].exists(key) == await stores[1].exists(key)


async def attempt(coroutine):
    """Whether it was done."""
    try:
        await coroutine
    except (ValueError, KeyError, icechunk.IcechunkError, icefloe.IcefloeError):
        return False
    return True


@pytest.mark.parametrize("key", KEYS + V2_KEYS + NO_KEYS)
async def test_writing_a_key(stores, key):
    data = cpu.Buffer.from_bytes(
        GROUP if key.endswith("zarr.json") and key != "a/zarr.json" else b"x"
    )
    ours, theirs = [await attempt(store.set(key, data)) for store in stores]
    assert ours == theirs
    ours, theirs = [sorted([key async for key in store.list()]) for store in stores]
    assert ours == theirs


@pytest.mark.parametrize("key", KEYS + V2_KEYS)
async def test_deleting_a_key(stores, key):
    ours, theirs = [await attempt(store.delete(key)) for store in stores]
    assert ours == theirs
    ours, theirs = [sorted([key async for key in store.list()]) for store in stores]
    assert ours == theirs


@pytest.mark.parametrize(
    "prefix", ["", "/", "a", "a/", "g", "g/", "g/c", "g/s", "a/c", "a/c/1", "x"]
)
async def test_listing_a_folder(stores, prefix):
    ours, theirs = [sorted([key async for key in store.list_dir(prefix)]) for store in stores]
    assert ours == theirs
    ours, theirs = [await store.is_empty(prefix) for store in stores]
    assert ours == theirs


# The official store refuses all prefixes that are no node.
@pytest.mark.parametrize("prefix", ["", "/", "a", "a/", "g", "g/", "g/c", "g/s"])
async def test_listing_a_prefix(stores, prefix):
    ours, theirs = [sorted([key async for key in store.list_prefix(prefix)]) for store in stores]
    assert ours == theirs
    ours, theirs = [await store.getsize_prefix(prefix) for store in stores]
    assert ours == theirs


@pytest.mark.parametrize("prefix", ["", "a", "g", "a/c", "a/c/1", "x"])
async def test_deleting_a_folder(stores, prefix):
    for store in stores:
        await store.delete_dir(prefix)
    ours, theirs = [sorted([key async for key in store.list()]) for store in stores]
    assert ours == theirs


async def test_clearing_without_waiting(stores):
    for store in stores:
        store.sync_clear()
        assert await store.is_empty("")


async def rows(store, path, batch_size):
    """All chunk references, and the sizes of the batches."""
    found, sizes = {}, []
    async for coords, kinds, places, offsets, lengths, inlined in store.array_chunk_iterator(
        path, batch_size
    ):
        sizes.append(len(coords))
        assert coords.dtype == np.uint32
        assert kinds.dtype == np.uint8
        assert offsets.dtype == lengths.dtype == np.uint64
        for row, at in enumerate(coords.tolist()):
            found[tuple(at)] = (
                int(kinds[row]),
                places[row],
                int(offsets[row]),
                int(lengths[row]),
                inlined.get(row),
            )
    return found, sizes


@pytest.mark.parametrize("writer", ["ours", "theirs"])
async def test_references_in_batches(tmp_path, writer):
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "one").write_bytes(bytes(range(200)))
    prefix = f"file://{tmp_path}/sources/"
    place = str(tmp_path / "repo")
    if writer == "ours":
        config = icefloe.RepositoryConfig()
        local = icefloe.local_filesystem_store(f"{tmp_path}/sources")
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, local, "src"))
        session = icefloe.Repository.create(place, config=config).writable_session("main")
    else:
        config = icechunk.RepositoryConfig.default()
        local = icechunk.local_filesystem_store(f"{tmp_path}/sources")
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, local, "src"))
        storage = icechunk.local_filesystem_storage(place)
        session = icechunk.Repository.create(storage, config).writable_session("main")
    await session.store.set("a/zarr.json", cpu.Buffer.from_bytes(array(9, 9)))
    for column in range(9):
        await session.store.set(f"a/c/0/{column}", cpu.Buffer.from_bytes(b"tiny"))
        await session.store.set(f"a/c/1/{column}", cpu.Buffer.from_bytes(bytes(600)))
    session.store.set_virtual_ref("a/c/2/2", f"{prefix}one", offset=3, length=5)
    session.store.set_virtual_ref("a/c/3/3", "vcc://src/one", offset=4, length=6)
    session.commit("written")

    ours = icefloe.Repository.open(place).readonly_session("main").store
    storage = icechunk.local_filesystem_storage(place)
    theirs = icechunk.Repository.open(storage).readonly_session("main").store
    expected, _ = await rows(theirs, "a", 100)
    found, sizes = await rows(ours, "/a", 7)
    assert found == expected
    session = icefloe.Repository.open(place).readonly_session("main")
    assert all(session.chunk_type("/a", at) == kind for at, (kind, *_) in found.items())
    assert len(found) == 20
    assert found[(3, 3)][1] == f"{prefix}one"
    assert max(sizes) == 7
