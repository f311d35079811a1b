"""zarr's contract for stores, with icechunk's rules on keys and values where they are stricter."""

import json
import pickle

import pytest
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

import servers
from icefloe import (
    InvalidInputError,
    MemoryStorage,
    PackingConfig,
    ReadOnlyError,
    Repository,
    RepositoryConfig,
    SessionStateError,
)
from icefloe.zarr_store import IcechunkStore

INLINE = RepositoryConfig(inline_chunk_threshold_bytes=512)
PACKED = RepositoryConfig(inline_chunk_threshold_bytes=0)
SINGLE = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
READ_ONLY = "store was opened in read-only mode and does not support writing"


def array(*shape):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
    }
    return json.dumps(document).encode()


GROUP = b'{"zarr_format": 3, "node_type": "group"}'
DATA = b"\x01\x02\x03\x04"
KEYS = ["c/0", "foo/c/0/0", "foo/bar/c/9/9/9", "foo/c"]


@pytest.fixture(scope="module")
def s3_repo(s3_server):
    """Made once: the tests write to sessions, and few commit."""
    public = {key: it for key, it in s3_server.options.items() if key not in ("key", "secret")}
    return Repository.create(
        s3_server.root(), public, credentials=servers.credentials, config=PACKED
    )


def target(key):
    """The path and coordinates of a chunk's key, worked out apart from the store."""
    path, _, coords = f"/{key}".rpartition("/c")
    return path or "/", tuple(int(part) for part in coords.split("/")[1:])


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    async def set(self, store, key, value):
        """Through the session; chunks get the array they need."""
        if key.endswith("zarr.json"):
            store.session.set_node(f"/{key}".removesuffix("/zarr.json") or "/", value.to_bytes())
            return
        path, coords = target(key)
        if store.session.node(path) is None:
            store.session.set_node(path, array(*[10] * len(coords)))
        await store.session.set_chunk(path, coords, value.to_bytes())

    async def get(self, store, key):
        if key.endswith("zarr.json"):
            node = store.session.node(f"/{key}".removesuffix("/zarr.json") or "/")
            return self.buffer_cls.from_bytes(node.user_data)
        return self.buffer_cls.from_bytes(await store.session.get_chunk(*target(key)))

    # In manifests, in packs, and in objects of their own.
    @pytest.fixture(
        params=[
            ("memory", INLINE),
            ("memory", PACKED),
            ("local", SINGLE),
            pytest.param(("s3", PACKED), marks=pytest.mark.s3),
        ],
        ids=["memory-inline", "memory-packed", "local-single", "s3-packed"],
    )
    def repo(self, request, tmp_path):
        place, config = request.param
        match place:
            case "memory":
                return Repository.create(MemoryStorage(), config=config)
            case "local":
                return Repository.create(tmp_path, config=config)
            case _:
                repo = request.getfixturevalue("s3_repo")
                repo.reset_branch("main", list(repo.ancestry(branch="main"))[-1].id)
                return repo

    @pytest.fixture
    def store_kwargs(self, repo):
        return {"session": repo.writable_session("main")}

    def test_store_repr(self, store):
        assert repr(store) == str(store) == f"IcechunkStore({store.session!r})"

    def test_store_supports_writes(self, store):
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store):
        assert store.supports_listing

    # What a copy of a writable session writes would be lost, so only read-only ones travel.
    async def test_serializable_store(self, store, repo):
        with pytest.raises(SessionStateError):
            pickle.dumps(store)
        await self.set(store, "foo/c/0", self.buffer_cls.from_bytes(DATA))
        store.session.commit("written")
        reader = repo.readonly_session("main").store
        copy = pickle.loads(pickle.dumps(reader))
        assert copy == reader
        assert copy.read_only
        assert (await copy.get("foo/c/0")).to_bytes() == DATA

    # The keys of the contract are no keys of zarr v3, and chunks are never empty.
    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize(
        "byte_range",
        [
            None,
            RangeByteRequest(1, 4),
            RangeByteRequest(1, 40),
            RangeByteRequest(40, 50),
            OffsetByteRequest(1),
            OffsetByteRequest(40),
            SuffixByteRequest(1),
            SuffixByteRequest(0),
            SuffixByteRequest(40),
        ],
    )
    async def test_get(self, store, key, byte_range):
        await super().test_get(store, key, DATA, byte_range)

    # The same: keys and values.
    async def test_get_many(self, store):
        values = {f"a/c/{at}": f"value {at}".encode() for at in range(10)}
        for key, value in values.items():
            await self.set(store, key, self.buffer_cls.from_bytes(value))
        requests = [(key, default_buffer_prototype(), None) for key in values]
        assert {key: it.to_bytes() async for key, it in store._get_many(requests)} == values

    # The same: keys and values.
    @pytest.mark.parametrize("key", KEYS)
    async def test_getsize(self, store, key):
        await super().test_getsize(store, key, DATA)

    # A chunk needs its array first.
    async def test_getsize_prefix(self, store):
        store.session.set_node("/a", array(2, 2))
        store.session.set_node("/ab", array(2))
        await self.set(store, "ab/c/0", self.buffer_cls.from_bytes(DATA))
        for key in ("a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"):
            await self.set(store, key, self.buffer_cls.from_bytes(DATA))
        assert await store.getsize_prefix("a/c") == 4 * len(DATA)
        assert await store.getsize_prefix("a") == 4 * len(DATA) + len(array(2, 2))

    # The same, and documents must be zarr's.
    @pytest.mark.parametrize(
        ("key", "data"), [("zarr.json", GROUP), ("a/c/0", DATA), ("b/c", DATA), ("d/c/0/1", DATA)]
    )
    async def test_set(self, store, key, data):
        for path, shape in {"/a": (1,), "/b": (), "/d": (1, 2)}.items():
            store.session.set_node(path, array(*shape))
        await super().test_set(store, key, data)

    # The same.
    async def test_set_not_open(self, store_not_open):
        store_not_open.session.set_node("/", array(1))
        await super().test_set_not_open(store_not_open)

    # The same.
    async def test_set_many(self, store):
        store.session.set_node("/a", array(2))
        values = {"b/zarr.json": GROUP, "a/c/0": DATA, "a/c/1": DATA[::-1]}
        await store._set_many((key, self.buffer_cls.from_bytes(it)) for key, it in values.items())
        assert {key: (await self.get(store, key)).to_bytes() for key in values} == values

    # The same.
    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("a/c/0", RangeByteRequest(0, 2)), ("b/c/0/0", None), ("a/c/0", None)],
            [("a/c/0", SuffixByteRequest(2)), ("a/c/1", OffsetByteRequest(2))],
        ],
    )
    async def test_get_partial_values(self, store, key_ranges):
        await super().test_get_partial_values(store, key_ranges)

    # Documents must be zarr's.
    async def test_exists(self, store):
        assert not await store.exists("foo")
        assert not await store.exists("foo/zarr.json")
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    # The same.
    async def test_delete(self, store):
        await self.set(store, "foo/c/3", self.buffer_cls.from_bytes(DATA))
        await store.delete("foo/c/3")
        assert not await store.exists("foo/c/3")
        assert await store.exists("foo/zarr.json")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    # The same.
    async def test_delete_dir(self, store):
        for path in ("/", "/foo-bar", "/foo", "/foo/x"):
            store.session.set_node(path, GROUP)
        await self.set(store, "foo/y/c/0", self.buffer_cls.from_bytes(DATA))
        await store.delete_dir("foo")
        assert [key async for key in store.list()] == ["zarr.json", "foo-bar/zarr.json"]

    async def test_delete_dir_takes_a_part_of_the_chunks(self, store):
        for at in range(4):
            await self.set(store, f"a/c/{at % 2}/{at}", self.buffer_cls.from_bytes(DATA))
        await store.delete_dir("a/c/1")
        assert [key async for key in store.list_prefix("a/c")] == ["a/c/0/0", "a/c/0/2"]

    # The same.
    async def test_is_empty(self, store):
        assert await store.is_empty("")
        store.session.set_node("/foo/bar", GROUP)
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    # The same.
    async def test_clear(self, store):
        store.session.set_node("/", GROUP)
        await self.set(store, "foo/c/0", self.buffer_cls.from_bytes(DATA))
        await store.clear()
        assert await store.is_empty("")

    # The same.
    async def test_list(self, store):
        assert [key async for key in store.list()] == []
        for at in range(10):
            await self.set(store, f"foo/c/{at}", self.buffer_cls.from_bytes(DATA))
        expected = {"foo/zarr.json", *(f"foo/c/{at}" for at in range(10))}
        found = [key async for key in store.list()]
        assert (set(found), len(found)) == (expected, len(expected))

    # The same.
    async def test_list_prefix(self, store):
        groups = ["zarr.json", "a/zarr.json", "a/b/zarr.json", "a-b/zarr.json"]
        for key in groups:
            await store.set(key, self.buffer_cls.from_bytes(GROUP))
        await self.set(store, "a/b/x/c/1/2", self.buffer_cls.from_bytes(DATA))
        every = [*groups, "a/b/x/zarr.json", "a/b/x/c/1/2"]
        for prefix in ("", "a/", "a/b/", "a/b/x/c/1/", "a/b/x/c/2/", "z/", "a/b/x/c/1/2/"):
            found = [key async for key in store.list_prefix(prefix)]
            assert sorted(found) == sorted(key for key in every if key.startswith(prefix))
        # As in the official store, a prefix without its slash is a folder, too, or a key.
        for prefix in ("a", "a/b", "a/b/x/c", "a/b/x/c/1"):
            found = [key async for key in store.list_prefix(prefix)]
            assert sorted(found) == sorted(key for key in every if key.startswith(f"{prefix}/"))
        assert [key async for key in store.list_prefix("a/zarr.json")] == ["a/zarr.json"]
        assert [key async for key in store.list_prefix("a/b/x/z")] == []

    # The same.
    async def test_list_empty_path(self, store):
        for key in ("foo/bar/c/1", "foo/baz/c/0"):
            await self.set(store, key, self.buffer_cls.from_bytes(DATA))
        expected = ["foo/bar/c/1", "foo/bar/zarr.json", "foo/baz/c/0", "foo/baz/zarr.json"]
        assert sorted([key async for key in store.list()]) == expected
        assert sorted([key async for key in store.list_prefix("")]) == expected
        assert sorted([key async for key in store.list_prefix("foo/bar/")]) == expected[:2]

    # The same; and every array lists `c`, as the official store has it.
    async def test_list_dir(self, store):
        assert [key async for key in store.list_dir("")] == []
        store.session.set_node("/", GROUP)
        store.session.set_node("/foo", GROUP)
        store.session.set_node("/foo/deep/down", GROUP)
        store.session.set_node("/foo/empty", array(10))
        await self.set(store, "foo/full/c/1/2", self.buffer_cls.from_bytes(DATA))
        expected = {
            "": ["foo", "zarr.json"],
            "foo": ["deep", "empty", "full", "zarr.json"],
            "foo/deep": ["down"],
            "foo/empty": ["c", "zarr.json"],
            "foo/full": ["c", "zarr.json"],
            "foo/full/c": ["1"],
            "foo/full/c/1": ["2"],
            "fo": [],
        }
        for prefix, names in expected.items():
            for spelling in (prefix, f"{prefix}/"):
                assert sorted([name async for name in store.list_dir(spelling)]) == names

    # The same.
    async def test_set_if_not_exists(self, store):
        store.session.set_node("/", array(2))
        await self.set(store, "c/0", self.buffer_cls.from_bytes(b"0000"))
        for key in ("c/0", "c/1"):
            await store.set_if_not_exists(key, self.buffer_cls.from_bytes(b"1111"))
        assert (await store.get("c/0")).to_bytes() == b"0000"
        assert (await store.get("c/1")).to_bytes() == b"1111"

    # The contract writes to a key that is none.
    async def test_with_read_only_store(self, open_kwargs):
        store = await self.store_cls.open(**open_kwargs | {"read_only": True})
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        await writer.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        for reader in (store, writer.with_read_only(read_only=True)):
            assert reader.read_only
            with pytest.raises(ValueError, match=READ_ONLY):
                await reader.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
            with pytest.raises(ValueError, match=READ_ONLY):
                await reader.delete("foo/zarr.json")
            with pytest.raises(ValueError, match=READ_ONLY):
                await reader.clear()
            with pytest.raises(ValueError, match=READ_ONLY):
                await reader.delete_dir("foo")
        assert await store.exists("foo/zarr.json")


@pytest.fixture
def store():
    session = Repository.create(MemoryStorage()).writable_session("main")
    session.set_node("/", GROUP)
    session.set_node("/a", array(9, 9))
    return session.store


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a",
        ".zgroup",
        "a/.zarray",
        "a/c.0.0",
        "a/c/0.0",
        "a/0/0",
        "a/c/00/0",
        "a/c/-1/0",
        "a/c/٣/0",
        "a/c/" + "9" * 5000 + "/0",
        "/a/c/0/0",
        "a//c/0/0",
        "../a/c/0/0",
        "a/c/0/0/",
    ],
)
async def test_what_is_no_zarr_v3_key_is_never_there_and_never_written(store, key):
    with pytest.raises(InvalidInputError) as caught:
        await store.set(key, cpu.Buffer.from_bytes(DATA))
    assert caught.value.kind == "invalid-key"
    assert await store.get(key) is None
    assert not await store.exists(key)
    await store.delete(key)


async def test_nodes_may_be_called_c(store):
    store.session.set_node("/c", GROUP)
    store.session.set_node("/c/1", array(2))
    await store.set("c/1/c/0", cpu.Buffer.from_bytes(DATA))
    assert (await store.get("c/1/c/0")).to_bytes() == DATA
    assert [key async for key in store.list_prefix("c/")] == [
        "c/zarr.json",
        "c/1/zarr.json",
        "c/1/c/0",
    ]


@pytest.mark.parametrize("coords", ["9/0", "0/9", "0", "0/0/0", ""])
async def test_chunks_outside_the_grid_are_refused_and_deleting_them_does_nothing(store, coords):
    key = f"a/c/{coords}".rstrip("/")
    with pytest.raises(InvalidInputError) as caught:
        await store.set(key, cpu.Buffer.from_bytes(DATA))
    assert caught.value.kind == "invalid-chunk-index"
    assert await store.get(key) is None
    await store.delete(key)
    store.session.commit("the two nodes")


async def test_a_chunk_without_bytes_is_refused(store):
    with pytest.raises(InvalidInputError) as caught:
        await store.set("a/c/0/0", cpu.Buffer.from_bytes(b""))
    assert caught.value.kind == "zero-length-chunk"


async def test_a_store_made_writable_on_a_read_only_session_still_refuses(store):
    store.session.commit("written")
    writer = store.with_read_only(read_only=False)
    with pytest.raises(ReadOnlyError):
        await writer.set("b/zarr.json", cpu.Buffer.from_bytes(GROUP))
    with pytest.raises(ReadOnlyError):
        await writer.delete("a/c/0/0")


async def test_stores_of_two_writable_sessions_are_not_equal(store):
    other = Repository.create(MemoryStorage()).writable_session("main").store
    assert store == store.session.store
    assert store != other


async def test_a_session_reads_on_after_its_commit(store):
    assert await store.get("b/zarr.json") is None
    await store.set("b/zarr.json", cpu.Buffer.from_bytes(array(1)))
    await store.set("b/c/0", cpu.Buffer.from_bytes(DATA))
    store.session.commit("written")
    assert (await store.get("b/zarr.json")).to_bytes() == array(1)
    assert (await store.get("b/c/0")).to_bytes() == DATA
