"""References that the official library wrote, read by both: the bytes agree, and so do refusals."""

import datetime
import os
import uuid

import icechunk
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import servers
from icefloe.config import decode
from icefloe.errors import IcefloeError
from icefloe.format import manifest, repo_info
from icefloe.virtual import VirtualReader

icechunk.set_logs_filter("error")

DATA = bytes(range(200))


class Official:
    """A repository with one array of virtual chunks of ten bytes each."""

    def __init__(self, path, prefix, store, credentials):
        self.path = path
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, "named"))
        self.repo = icechunk.Repository.create(
            icechunk.local_filesystem_storage(str(path)),
            config=config,
            authorize_virtual_chunk_access=icechunk.containers_credentials({prefix: credentials}),
        )

    def write(self, *locations, checksum=None):
        session = self.repo.writable_session("main")
        zarr.create_array(
            session.store, name="a", shape=(10 * len(locations),), chunks=(10,), dtype="u1",
            compressors=None, overwrite=True,
        )  # fmt: skip
        for number, location in enumerate(locations):
            session.store.set_virtual_ref(
                f"a/c/{number}", location, offset=10 * number, length=10, checksum=checksum
            )
        session.commit("virtual")

    def refs(self):
        (newest, *_) = sorted(
            (self.path / "manifests").iterdir(), key=lambda file: file.stat().st_mtime_ns
        )[::-1]
        refs = manifest.decode(newest.read_bytes()).arrays[0].refs
        return [refs[row] for row in range(len(refs))]

    def containers(self):
        info = repo_info.decode((self.path / "repo").read_bytes())
        return decode(info.config).virtual_chunk_containers

    async def read(self):
        """The first chunk, or the kind of the official error."""
        store = self.repo.readonly_session("main").store
        try:
            buffer = await store.get("a/c/0", prototype=default_buffer_prototype())
        except icechunk.IcechunkError as error:
            return error.kind
        return buffer.to_bytes()


async def ours(official, grant=None):
    """The first chunk, or the kind of our error."""
    containers = official.containers()
    reader = VirtualReader(containers, dict.fromkeys(containers, grant))
    try:
        return await reader.read(official.refs()[0])
    except IcefloeError as error:
        return error.kind


@pytest.fixture
def on_files(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "a b.bin").write_bytes(DATA)
    os.utime(folder / "a b.bin", (1_600_000_000, 1_600_000_000))
    prefix = f"file://{folder}/"
    store = icechunk.local_filesystem_store(str(folder))
    access = icechunk.credentials.LocalFileSystemAccess
    return folder, prefix, Official(tmp_path / "repo", prefix, store, access)


async def test_files_read_alike(on_files):
    _, prefix, official = on_files
    official.write(f"{prefix}a b.bin", "vcc://named/a b.bin", f"{prefix}a%20b.bin?query")
    array = zarr.open_array(official.repo.readonly_session("main").store, path="a", mode="r")
    containers = official.containers()
    reader = VirtualReader(containers, dict.fromkeys(containers))
    read = await reader.read_many([(ref, 0, 10) for ref in official.refs()])
    assert b"".join(read) == DATA[:30] == np.asarray(array[:]).tobytes()


async def test_both_refuse_a_file_that_is_newer(on_files):
    folder, prefix, official = on_files
    when = datetime.datetime.fromtimestamp(1_600_000_000, datetime.UTC)
    official.write(f"{prefix}a b.bin", checksum=when)
    assert await official.read() == await ours(official) == DATA[:10]
    for newer in (1_600_000_000.5, 1_600_000_001):
        os.utime(folder / "a b.bin", (newer, newer))
        assert await official.read() == await ours(official) == "virtual-chunk-modified"


async def test_both_refuse_a_file_that_is_gone(on_files):
    folder, prefix, official = on_files
    official.write(f"{prefix}a b.bin")
    (folder / "a b.bin").unlink()
    assert await official.read() == await ours(official) == "virtual-chunk-fetch"


async def test_both_demand_authorization(on_files):
    _, prefix, official = on_files
    official.write(f"{prefix}a b.bin")
    official.repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(official.path)))
    kind = await official.read()
    assert kind == "unauthorized-virtual-chunk-container"
    with pytest.raises(IcefloeError) as caught:
        await VirtualReader(official.containers()).read(official.refs()[0])
    assert caught.value.kind == kind


async def test_both_refuse_to_write_without_a_container(on_files):
    _, _, official = on_files
    with pytest.raises(icechunk.IcechunkError) as theirs:
        official.write("s3://elsewhere/k")
    with pytest.raises(IcefloeError) as mine:
        VirtualReader(official.containers()).containers.validate(["s3://elsewhere/k"])
    assert theirs.value.kind == mine.value.kind == "no-container-for-virtual-chunk"


@pytest.mark.s3
@pytest.mark.parametrize("by", ["etag", "quoted etag", "time"])
async def test_both_refuse_a_changed_object_on_s3(s3_server, tmp_path, by):
    folder = uuid.uuid4().hex
    place = {"Bucket": s3_server.bucket, "Key": f"{folder}/k"}
    s3_server.client().put_object(**place, Body=DATA)
    head = s3_server.client().head_object(**place)
    modified = head["LastModified"].astimezone(datetime.UTC)
    prefix = f"s3://{s3_server.bucket}/{folder}/"
    store = icechunk.s3_store(
        endpoint_url=s3_server.endpoint, allow_http=True, region="us-east-1",
        force_path_style=True, s3_compatible=True,
    )  # fmt: skip
    credentials = icechunk.s3_credentials(
        access_key_id=s3_server.key, secret_access_key=s3_server.secret
    )
    official = Official(tmp_path / "repo", prefix, store, credentials)
    good = {
        "etag": head["ETag"].strip('"'),
        "quoted etag": head["ETag"],
        "time": modified,
    }
    official.write(f"{prefix}k", checksum=good[by])
    assert await official.read() == await ours(official, servers.credentials) == DATA[:10]
    if by == "time":
        official.write(f"{prefix}k", checksum=modified - datetime.timedelta(seconds=1))
    else:
        s3_server.client().put_object(**place, Body=DATA[::-1])
    assert await official.read() == "virtual-chunk-modified"
    assert await ours(official, servers.credentials) == "virtual-chunk-modified"


async def test_web_servers_read_alike(web, tmp_path):
    web.files["/p/a%20b"] = DATA
    prefix = f"{web.url}/p/"
    access = icechunk.credentials.HttpAccess
    official = Official(tmp_path / "repo", prefix, icechunk.http_store(), access)
    official.write(f"{prefix}a b?query", checksum="tag-1")
    assert await official.read() == await ours(official) == DATA[:10]
    assert {path for path, _ in web.requests} == {"/p/a%20b"}
    web.etag = '"tag-2"'
    # The official library leaves the check to the server, and this one does not check.
    assert await official.read() == DATA[:10]
    assert await ours(official) == "virtual-chunk-modified"
