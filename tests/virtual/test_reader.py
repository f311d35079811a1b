"""Reading virtual chunks: from files, web servers and S3; authorized, unchanged, whole."""

import asyncio
import multiprocessing
import os
import pickle
import uuid

import pytest
from adlfs import AzureBlobFileSystem

import servers
from icefloe.config import (
    RepositoryConfig,
    Unrecognized,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)
from icefloe.format.chunk_refs import VirtualRef
from icefloe.storage import Retries, open_storage
from icefloe.virtual import VirtualReader
from icefloe.virtual.local import etag

DATA = bytes(range(256)) * 40
QUICK = Retries(attempts=3, initial=0.01, maximum=0.05)


def reader_of(prefix, store, grant=None, name=None, **options):
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store, name))
    options.setdefault("retries", QUICK)
    return VirtualReader(config.virtual_chunk_containers, {prefix: grant}, **options)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "données 1.bin"
    path.write_bytes(DATA)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


@pytest.fixture
def prefix(tmp_path):
    return f"file://{tmp_path}/"


@pytest.fixture
def files(prefix, tmp_path):
    return reader_of(prefix, local_filesystem_store(str(tmp_path)))


def location_of(file):
    return f"file://{file.parent}/donn%C3%A9es%201.bin"


async def test_a_chunk_is_read_from_its_offset(file, files):
    ref = VirtualRef(location_of(file), 100, 50)
    assert await files.read(ref) == DATA[100:150]
    assert await files.read(ref, 10, 5) == DATA[110:115]
    assert await files.read(ref, 50, 0) == b""
    assert await files.read(VirtualRef(f"file://{file}", 0, 3)) == DATA[:3]


async def test_many_are_read_in_order(file, files):
    refs = [VirtualRef(location_of(file), offset, 20) for offset in (500, 0, 20, 9000, 10, 500)]
    read = await files.read_many([(ref, 1, 10) for ref in refs])
    assert read == [DATA[ref.offset + 1 : ref.offset + 11] for ref in refs]
    assert await files.read_many([]) == []


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 51), (50, 1), (0, -1)])
async def test_bytes_outside_of_the_chunk_are_refused(file, files, start, length):
    with pytest.raises(InvalidInputError) as caught:
        await files.read(VirtualRef(location_of(file), 0, 50), start, length)
    assert caught.value.kind == "invalid-byte-range"


async def test_the_etag_of_a_file_is_checked(file, files):
    tag = etag(file.stat())
    good = VirtualRef(location_of(file), 0, 5, tag)
    assert await files.read(good) == DATA[:5]
    assert await files.read(VirtualRef(location_of(file), 0, 5, f'"{tag}"')) == DATA[:5]
    file.write_bytes(DATA)
    with pytest.raises(StorageError) as caught:
        await files.read(good)
    assert caught.value.kind == "virtual-chunk-modified"
    assert location_of(file) in str(caught.value)


async def test_a_file_newer_than_its_checksum_is_refused(file, files):
    ref = VirtualRef(location_of(file), 0, 5, None, 1_600_000_000)
    assert await files.read(ref) == DATA[:5]
    for newer in (1_600_000_000.25, 1_600_000_001):
        os.utime(file, (newer, newer))
        with pytest.raises(StorageError) as caught:
            await files.read(ref)
        assert caught.value.kind == "virtual-chunk-modified"
    os.utime(file, (1_500_000_000, 1_500_000_000))
    assert await files.read(ref) == DATA[:5]


async def test_a_change_while_reading_is_noticed(file, files, monkeypatch):
    ref = VirtualRef(location_of(file), 0, 5, etag(file.stat()))
    pread = os.pread

    def slow(*arguments):
        data = pread(*arguments)
        file.write_bytes(b"X" * len(DATA))
        return data

    monkeypatch.setattr(os, "pread", slow)
    with pytest.raises(StorageError) as caught:
        await files.read(ref)
    assert caught.value.kind == "virtual-chunk-modified"


async def test_a_missing_source_is_no_missing_chunk(file, files):
    with pytest.raises(StorageError, match="nowhere") as caught:
        await files.read(VirtualRef(f"file://{file.parent}/nowhere", 0, 5))
    assert caught.value.kind == "virtual-chunk-fetch"
    assert not isinstance(caught.value, NotFoundError | KeyError)
    with pytest.raises(StorageError):
        await files.read(VirtualRef(f"file://{file.parent.parent}/{file.parent.name}/", 0, 5))


async def test_a_short_object_is_an_error(file, files):
    for offset in (len(DATA) - 4, len(DATA) + 100):
        with pytest.raises(StorageError, match="asked for") as caught:
            await files.read(VirtualRef(location_of(file), offset, 5))
        assert caught.value.kind == "virtual-chunk-fetch"


@pytest.mark.parametrize("way", ["sub/../../", "%2e%2e/", "..%2F", "sub/%2E./../"])
async def test_no_path_leads_out_of_a_container(file, tmp_path, way):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    reader = reader_of(f"file://{inside}/", local_filesystem_store(str(inside)), name="n")
    for start in (f"file://{inside}/", "vcc://n/"):
        with pytest.raises(InvalidInputError):
            await reader.read(VirtualRef(f"{start}{way}{file.name}", 0, 5))


async def test_a_named_container_is_found_by_its_name(file, tmp_path, prefix):
    store = local_filesystem_store(str(tmp_path))
    container = VirtualChunkContainer(prefix, store, "n")
    for key in ("n", prefix):
        reader = VirtualReader({prefix: container}, {key: None})
        assert await reader.read(VirtualRef("vcc://n/donn%C3%A9es%201.bin", 0, 5)) == DATA[:5]
        assert await reader.read(VirtualRef(location_of(file), 0, 5)) == DATA[:5]


async def test_nothing_is_read_without_authorization(file, tmp_path, prefix):
    store = local_filesystem_store(str(tmp_path))
    outer = VirtualChunkContainer(f"file://{tmp_path.parent}/", store)
    inner = VirtualChunkContainer(prefix, store)
    containers = {each.url_prefix: each for each in (outer, inner)}
    reader = VirtualReader(containers, {outer.url_prefix: None})
    with pytest.raises(InvalidInputError) as caught:
        await reader.read(VirtualRef(location_of(file), 0, 5))
    assert caught.value.kind == "unauthorized-virtual-chunk-container"
    assert f"authorize_virtual_chunk_access={{'{prefix}': None}}" in str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        await VirtualReader(containers).read(VirtualRef("s3://b/k", 0, 5))
    assert caught.value.kind == "no-container-for-virtual-chunk"


async def test_a_store_of_the_future_is_a_clear_error():
    container = VirtualChunkContainer("s3://b/", Unrecognized('{"quantum": {}}'))
    reader = VirtualReader({"s3://b/": container}, {"s3://b/": None})
    with pytest.raises(InvalidInputError, match="quantum"):
        await reader.read(VirtualRef("s3://b/k", 0, 5))


def test_any_thread_and_loop_may_read(file, files):
    ref = VirtualRef(location_of(file), 0, 5)
    for _ in range(2):
        assert asyncio.run(files.read(ref)) == DATA[:5]


# Web servers.


@pytest.fixture
def site(web):
    web.files["/p/a%20b"] = DATA
    return reader_of(f"{web.url}/p/", http_store())


async def test_a_chunk_is_read_from_a_web_server(web, site):
    ref = VirtualRef(f"{web.url}/p/a b?query#fragment", 100, 50)
    assert await site.read(ref, 10, 5) == DATA[110:115]
    path, headers = web.requests[0]
    assert path == "/p/a%20b"
    assert headers["Range"] == "bytes=110-114"
    assert headers["Accept-Encoding"] == "identity"


async def test_neighbours_on_a_web_server_take_one_request(web, site):
    refs = [VirtualRef(f"{web.url}/p/a%20b", offset, 20) for offset in (40, 0, 20)]
    assert await site.read_many([(ref, 0, 20) for ref in refs]) == [
        DATA[40:60],
        DATA[:20],
        DATA[20:40],
    ]
    assert len(web.requests) == 1


async def test_a_server_that_ignores_ranges_still_serves(web, site):
    web.ranges = False
    assert await site.read(VirtualRef(f"{web.url}/p/a%20b", 9000, 20)) == DATA[9000:9020]
    assert await site.read(VirtualRef(f"{web.url}/p/a%20b", 0, 20)) == DATA[:20]
    with pytest.raises(StorageError):
        await site.read(VirtualRef(f"{web.url}/p/a%20b", len(DATA) - 1, 2))


async def test_a_server_that_sends_another_range_is_not_believed(web, site):
    web.shift = 1
    with pytest.raises(StorageError, match="bytes 1-4"):
        await site.read(VirtualRef(f"{web.url}/p/a%20b", 0, 5))


@pytest.mark.parametrize("served", ['"tag-1"', 'W/"tag-1"', "tag-1"])
async def test_the_etag_of_a_web_server_is_checked(web, site, served):
    web.etag = served
    good = VirtualRef(f"{web.url}/p/a%20b", 0, 5, "tag-1")
    assert await site.read(good) == DATA[:5]
    for other in ('"tag-2"', None):
        web.etag = other
        with pytest.raises(StorageError) as caught:
            await site.read(good)
        kind = "virtual-chunk-modified" if other else "virtual-chunk-fetch"
        assert caught.value.kind == kind


async def test_the_last_change_on_a_web_server_is_checked(web, site):
    good = VirtualRef(f"{web.url}/p/a%20b", 0, 5, None, web.modified)
    assert await site.read(good) == DATA[:5]
    web.modified += 1
    with pytest.raises(StorageError) as caught:
        await site.read(good)
    assert caught.value.kind == "virtual-chunk-modified"
    web.modified = None
    with pytest.raises(StorageError) as caught:
        await site.read(good)
    assert caught.value.kind == "virtual-chunk-fetch"


async def test_a_web_server_that_stumbles_is_asked_again(web, site):
    ref = VirtualRef(f"{web.url}/p/a%20b", 0, 5)
    web.failures = [503, 500]
    assert await site.read(ref) == DATA[:5]
    web.failures = [429] * 3
    with pytest.raises(ThrottledError):
        await site.read(ref)
    web.failures = [403]
    with pytest.raises(PermissionDeniedError, match="a%20b"):
        await site.read(ref)
    with pytest.raises(StorageError) as caught:
        await site.read(VirtualRef(f"{web.url}/p/none", 0, 5))
    assert caught.value.kind == "virtual-chunk-fetch"


async def test_headers_come_from_the_container_and_from_the_reader(web):
    web.files["/p/k"] = DATA
    store = http_store(headers={"x-public": "1", "x-both": "theirs"})
    grant = {"headers": {"authorization": "Bearer hunter2", "x-both": "mine"}}
    reader = reader_of(f"{web.url}/p/", store, grant)
    await reader.read(VirtualRef(f"{web.url}/p/k", 0, 5))
    (_, headers), *_ = web.requests
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["x-public"] == "1"
    assert sent["x-both"] == "mine"
    assert sent["authorization"] == "Bearer hunter2"
    pickled = pickle.dumps(reader)
    assert b"hunter2" not in pickled
    with pytest.raises(StorageError) as caught:
        await reader.read(VirtualRef(f"{web.url}/p/none", 0, 5))
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    again = pickle.loads(pickled)
    await again.read(VirtualRef(f"{web.url}/p/k", 0, 5))
    assert {name.lower() for name in web.requests[-1][1]} & {"x-public", "authorization"} == {
        "x-public"
    }


# S3.


@pytest.fixture
def bucket(s3_server):
    """A client, and the prefix of a fresh folder with one object `k`."""
    folder = uuid.uuid4().hex
    s3_server.client().put_object(Bucket=s3_server.bucket, Key=f"{folder}/k", Body=DATA)
    return s3_server, folder


def s3_reader(bucket, grant, **options):
    server, folder = bucket
    store = s3_store(
        endpoint_url=server.endpoint, allow_http=True, region="us-east-1", force_path_style=True,
        s3_compatible=True,
    )  # fmt: skip
    return reader_of(f"s3://{server.bucket}/{folder}/", store, grant, **options)


@pytest.mark.s3
async def test_a_chunk_is_read_from_s3(bucket):
    server, folder = bucket
    location = f"s3://{server.bucket}/{folder}/k"
    reader = s3_reader(bucket, {"key": server.key, "secret": server.secret})
    ref = VirtualRef(location, 100, 50)
    assert await reader.read(ref, 10, 5) == DATA[110:115]
    many = await reader.read_many([(ref, 0, 10), (VirtualRef(location, 9000, 8), 0, 8)])
    assert many == [DATA[100:110], DATA[9000:9008]]
    for missing in (f"{location}x", f"s3://{server.bucket}/{folder}/"):
        with pytest.raises((StorageError, InvalidInputError)):
            await reader.read(VirtualRef(missing, 0, 5))
    for offset in (len(DATA) - 2, len(DATA) + 5):
        with pytest.raises(StorageError):
            await reader.read(VirtualRef(location, offset, 5))


@pytest.mark.s3
@pytest.mark.parametrize("key", ["a//b", "a/../b", "a b?c#d%", "ü"])
async def test_odd_keys_are_read_from_s3(aws_server, key):
    folder = uuid.uuid4().hex
    aws_server.client().put_object(Bucket=aws_server.bucket, Key=f"{folder}/{key}", Body=DATA)
    reader = s3_reader((aws_server, folder), servers.credentials)
    quoted = key.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    ref = VirtualRef(f"s3://{aws_server.bucket}/{folder}/{quoted}", 3, 5)
    assert await reader.read(ref) == DATA[3:8]


@pytest.mark.s3
@pytest.mark.parametrize("server", ["s3_server", "aws_server", "careless_s3_server"])
async def test_a_changed_object_on_s3_is_refused(server, request):
    server = request.getfixturevalue(server)
    folder = uuid.uuid4().hex
    place = {"Bucket": server.bucket, "Key": f"{folder}/k"}
    server.client().put_object(**place, Body=DATA)
    head = server.client().head_object(**place)
    reader = s3_reader((server, folder), servers.credentials)
    location = f"s3://{server.bucket}/{folder}/k"
    modified = int(head["LastModified"].timestamp())
    by_etag = VirtualRef(location, 0, 5, head["ETag"].strip('"'))
    assert await reader.read(by_etag) == DATA[:5]
    assert await reader.read(VirtualRef(location, 0, 5, None, modified)) == DATA[:5]
    with pytest.raises(StorageError) as caught:
        await reader.read(VirtualRef(location, 0, 5, None, modified - 1))
    assert caught.value.kind == "virtual-chunk-modified"
    server.client().put_object(**place, Body=DATA[::-1])
    with pytest.raises(StorageError) as caught:
        await reader.read(by_etag)
    assert caught.value.kind == "virtual-chunk-modified"
    assert location in str(caught.value)


@pytest.mark.s3
async def test_a_reader_travels_without_secrets(bucket):
    server, folder = bucket
    ref = VirtualRef(f"s3://{server.bucket}/{folder}/k", 0, 5)
    reader = s3_reader(bucket, servers.credentials)
    assert await reader.read(ref) == DATA[:5]
    pickled = pickle.dumps(reader)
    assert server.secret.encode() not in pickled
    assert await pickle.loads(pickled).read(ref) == DATA[:5]
    with_options = s3_reader(bucket, {"key": server.key, "secret": server.secret})
    pickled = pickle.dumps(with_options)
    assert server.secret.encode() not in pickled
    assert server.key.encode() not in pickled
    with pytest.raises(InvalidInputError):
        pickle.dumps(s3_reader(bucket, lambda: {"secret": server.secret}))


@pytest.mark.s3
async def test_wrong_credentials_are_told_without_showing_them(bucket):
    server, folder = bucket
    reader = s3_reader(bucket, {"key": server.key, "secret": "not-the-secret"})
    with pytest.raises(StorageError) as caught:
        await reader.read(VirtualRef(f"s3://{server.bucket}/{folder}/k", 0, 5))
    assert isinstance(caught.value, PermissionDeniedError)
    assert "not-the-secret" not in str(caught.value)


async def test_plain_http_to_s3_needs_permission():
    store = s3_store(endpoint_url="http://127.0.0.1:9", s3_compatible=True)
    reader = reader_of("s3://b/", store, {"key": "k", "secret": "s"})
    with pytest.raises(InvalidInputError, match="allow_http"):
        await reader.read(VirtualRef("s3://b/k", 0, 5))


@pytest.mark.s3
def test_a_forked_child_reads_too(bucket):
    server, folder = bucket
    ref = VirtualRef(f"s3://{server.bucket}/{folder}/k", 0, 5)
    reader = s3_reader(bucket, servers.credentials)
    assert asyncio.run(reader.read(ref)) == DATA[:5]
    context = multiprocessing.get_context("fork")
    parent, child = context.Pipe()
    process = context.Process(target=_read_and_send, args=(child, reader, ref))
    process.start()
    assert parent.poll(60)
    assert parent.recv_bytes() == DATA[:5]
    process.join()
    assert asyncio.run(reader.read(ref)) == DATA[:5]


def _read_and_send(pipe, reader, ref):
    pipe.send_bytes(asyncio.run(reader.read(ref)))


# Google and Azure.


async def test_a_chunk_is_read_from_gcs(gcs_endpoint):
    options = {"token": "anon", "endpoint_url": gcs_endpoint}
    folder = f"gs://tests/{uuid.uuid4().hex}"
    open_storage(folder, options).put("a b", DATA)
    reader = reader_of(f"{folder}/", gcs_store(), options)
    await _check_source(reader, f"{folder}/a b")


async def test_a_chunk_is_read_from_azure(azure_connection):
    options = {"connection_string": azure_connection}
    AzureBlobFileSystem(**options, skip_instance_cache=True).mkdir(name := uuid.uuid4().hex)
    open_storage(f"az://{name}/x", options).put("a b", DATA)
    reader = reader_of(f"az://{name}/x/", azure_store(account="devstoreaccount1"), options)
    await _check_source(reader, f"az://{name}/x/a b")


async def _check_source(reader, location):
    assert await reader.read(VirtualRef(location, 100, 50), 10, 5) == DATA[110:115]
    for checksum in (("other tag", None), (None, 1_000_000_000)):
        with pytest.raises(StorageError) as caught:
            await reader.read(VirtualRef(location, 0, 5, *checksum))
        assert caught.value.kind == "virtual-chunk-modified"
    assert await reader.read(VirtualRef(location, 0, 5, None, 2**32 - 1)) == DATA[:5]
    with pytest.raises(StorageError) as caught:
        await reader.read(VirtualRef(f"{location}x", 0, 5))
    assert caught.value.kind == "virtual-chunk-fetch"
    with pytest.raises(StorageError):
        await reader.read(VirtualRef(location, len(DATA) - 1, 5))
