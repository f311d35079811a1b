"""Virtual references through zarr, from our store to the official one and back."""

import os
import time
from datetime import UTC, datetime

import icechunk
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import StorageError, VirtualChunkSpec

icechunk.set_logs_filter("error")
ROWS, COLUMNS = 6, 50
VALUES = np.random.default_rng(5).integers(0, 255, (ROWS, COLUMNS), np.uint8)
HEADER = b"sixteen bytes..."


class LocalSource:
    """A file with a header and all chunks end to end."""

    def __init__(self, folder):
        folder.mkdir()
        self.file = folder / "rows"
        self.file.write_bytes(HEADER + VALUES.tobytes())
        # References have whole seconds.
        earlier = int(time.time()) - 60
        os.utime(self.file, (earlier, earlier))
        self.prefix = f"file://{folder}/"
        self.our_container = icefloe.VirtualChunkContainer(
            self.prefix, icefloe.local_filesystem_store(str(folder))
        )
        self.their_container = icechunk.VirtualChunkContainer(
            self.prefix, icechunk.local_filesystem_store(str(folder))
        )
        self.our_access = {self.prefix: None}
        self.their_access = {self.prefix: icechunk.credentials.LocalFileSystemAccess}

    def change(self):
        self.file.write_bytes(HEADER + VALUES[::-1].tobytes())
        later = time.time() + 60
        os.utime(self.file, (later, later))


class S3Source:
    def __init__(self, server):
        self.client = server.client()
        self.bucket = server.bucket
        self.prefix = f"{server.root()}/"
        self.key = self.prefix.removeprefix(f"s3://{server.bucket}/") + "rows"
        self.etag = self.put(VALUES)
        options = {
            "region": "us-east-1",
            "endpoint_url": server.endpoint,
            "allow_http": True,
            "s3_compatible": True,
            "force_path_style": True,
        }
        self.our_container = icefloe.VirtualChunkContainer(self.prefix, icefloe.s3_store(**options))
        self.their_container = icechunk.VirtualChunkContainer(
            self.prefix, icechunk.s3_store(**options)
        )
        self.our_access = {self.prefix: {"key": server.key, "secret": server.secret}}
        credentials = icechunk.s3_credentials(
            access_key_id=server.key, secret_access_key=server.secret
        )
        self.their_access = icechunk.containers_credentials({self.prefix: credentials})

    def put(self, values):
        body = HEADER + values.tobytes()
        return self.client.put_object(Bucket=self.bucket, Key=self.key, Body=body)["ETag"]

    def change(self):
        self.put(VALUES[::-1])


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def source(request, tmp_path):
    if request.param == "local":
        return LocalSource(tmp_path / "sources")
    return S3Source(request.getfixturevalue("s3_server"))


class Ours:
    def __init__(self, place, source):
        self.place = place
        self.access = source.our_access
        self.container = source.our_container

    def create(self):
        config = icefloe.RepositoryConfig()
        config.set_virtual_chunk_container(self.container)
        return icefloe.Repository.create(
            self.place, config=config, authorize_virtual_chunk_access=self.access
        )

    def open(self):
        return icefloe.Repository.open(self.place, authorize_virtual_chunk_access=self.access)


class Theirs(Ours):
    def __init__(self, place, source):
        super().__init__(place, source)
        self.storage = icechunk.local_filesystem_storage(place)
        self.access = source.their_access
        self.container = source.their_container

    def create(self):
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(self.container)
        return icechunk.Repository.create(
            self.storage, config, authorize_virtual_chunk_access=self.access
        )

    def open(self):
        return icechunk.Repository.open(self.storage, authorize_virtual_chunk_access=self.access)


@pytest.fixture(
    params=[(Ours, Theirs), (Theirs, Ours), (Ours, Ours)], ids=lambda it: it[0].__name__
)
def pair(request, tmp_path, source):
    writer, reader = request.param
    place = str(tmp_path / "repo")
    return writer(place, source), reader(place, source)


def empty_array(session):
    zarr.create_array(
        session.store,
        name="a",
        shape=VALUES.shape,
        chunks=(1, COLUMNS),
        dtype="u1",
        compressors=None,
        filters=None,
    )


def read(repo):
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]


@pytest.mark.parametrize("form", ["one by one", "specs", "columns"])
def test_what_one_refers_to_the_other_reads(pair, source, form):
    writer, reader = pair
    session = writer.create().writable_session("main")
    empty_array(session)
    location = f"{source.prefix}rows"
    offsets = len(HEADER) + COLUMNS * np.arange(ROWS, dtype=np.uint64)
    lengths = np.full(ROWS, COLUMNS, np.uint64)
    store = session.store
    match form:
        case "one by one":
            for row, offset in enumerate(offsets.tolist()):
                store.set_virtual_ref(f"a/c/{row}/0", location, offset=offset, length=COLUMNS)
        case "specs":
            library = icechunk if isinstance(writer, Theirs) else icefloe
            spec = library.VirtualChunkSpec
            rows = enumerate(offsets.tolist())
            specs = [spec([row, 0], location, offset, COLUMNS) for row, offset in rows]
            assert not store.set_virtual_refs("a", specs)
        case _:
            store.set_virtual_refs_arr("a", (ROWS, 1), [location] * ROWS, offsets, lengths)
    session.commit("referred")
    assert np.array_equal(read(reader.open()), VALUES)


@pytest.mark.parametrize("checksum", ["etag", "last modified"])
def test_a_source_that_changed_is_an_error(pair, source, checksum):
    writer, reader = pair
    if checksum == "etag" and isinstance(source, LocalSource):
        pytest.skip("files have no etags that both libraries know")
    session = writer.create().writable_session("main")
    empty_array(session)
    seen = source.etag if checksum == "etag" else datetime.now(UTC)
    for row in range(ROWS):
        session.store.set_virtual_ref(
            f"a/c/{row}/0",
            f"{source.prefix}rows",
            offset=len(HEADER) + row * COLUMNS,
            length=COLUMNS,
            checksum=seen,
        )
    session.commit("referred")
    assert np.array_equal(read(reader.open()), VALUES)
    if isinstance(source, S3Source) and checksum == "last modified":
        # S3 has whole seconds.
        time.sleep(1.1)
    source.change()
    with pytest.raises((StorageError, icechunk.IcechunkError)):
        read(reader.open())


async def test_the_twins_do_the_same(tmp_path):
    source = LocalSource(tmp_path / "sources")
    repo = Ours(str(tmp_path / "repo"), source).create()
    session = repo.writable_session("main")
    empty_array(session)
    location = f"{source.prefix}rows"
    store = session.store
    at = len(HEADER)
    await store.set_virtual_ref_async("a/c/0/0", location, offset=at, length=COLUMNS)
    specs = [VirtualChunkSpec([1, 0], location, at + COLUMNS, COLUMNS)]
    assert await store.set_virtual_refs_async("a", specs) is None
    homeless = [VirtualChunkSpec([2, 0], "s3://elsewhere/rows", at, COLUMNS)]
    assert await store.set_virtual_refs_async("a", homeless) == [(2, 0)]
    await store.set_virtual_refs_arr_async(
        "a",
        (1, 1),
        [location],
        np.array([at + 5 * COLUMNS], np.uint64),
        np.array([COLUMNS], np.uint64),
        arr_offset=(5, 0),
    )
    keys = [key async for key in store.list_prefix("a/c")]
    assert sorted(keys) == ["a/c/0/0", "a/c/1/0", "a/c/5/0"]
    assert (await store.get("a/c/5/0")).to_bytes() == VALUES[5].tobytes()
