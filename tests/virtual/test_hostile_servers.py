"""A web server that lies: no byte beyond those asked for, no header to another origin."""

import math
import time
from contextlib import ExitStack

import pytest

import icefloe
from icefloe import InvalidInputError, StorageError, http_store
from icefloe.format.chunk_refs import VirtualRef
from icefloe.storage import Retries
from icefloe.virtual import VirtualReader
from servers_hostile import answer, silent, talking, trickling

RANGE = "Content-Range: bytes 0-4/10"
SECRET = {"headers": {"authorization": "Bearer hunter2", "x-api-key": "hunter2"}}
QUICK = Retries(3, 0.01, deadline=5)


def reading(server, *, start=0, length=5, grant=None, retries=QUICK, etag=None):
    prefix = f"{server.url}/p/"
    container = icefloe.VirtualChunkContainer(prefix, http_store())
    reader = VirtualReader({prefix: container}, {prefix: grant}, retries=retries)
    return reader.read(VirtualRef(f"{prefix}k", start, length, etag))


async def failure(server, **options):
    with pytest.raises(StorageError) as caught:
        await reading(server, **options)
    assert "hunter2" not in str(caught.value)
    return caught.value


async def test_an_honest_answer_is_read():
    with talking(answer("206 Partial", RANGE, "Content-Length: 5", body=b"01234")) as server:
        assert await reading(server) == b"01234"


@pytest.mark.parametrize("start", [0, 1000])
async def test_a_body_without_end_is_read_as_far_as_it_was_asked_for(start):
    def talk(server, connection, head):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        server.pour(connection, b"x" * 2**16)

    with talking(talk) as server:
        assert await reading(server, start=start) == b"xxxxx"
        # What the sockets hold is sent before anybody says stop.
        assert server.sent < 64 * 2**20


async def test_a_part_without_end_is_read_as_far_as_it_was_asked_for():
    def talk(server, connection, head):
        connection.sendall(f"HTTP/1.1 206 Partial\r\n{RANGE}\r\n\r\n".encode())
        server.pour(connection, b"x" * 2**16)

    with talking(talk) as server:
        assert await reading(server) == b"xxxxx"
        assert server.sent < 64 * 2**20


async def test_a_part_that_is_announced_larger_is_not_read_on():
    def talk(server, connection, head):
        connection.sendall(
            f"HTTP/1.1 206 Partial\r\n{RANGE}\r\nContent-Length: {2**40}\r\n\r\n".encode()
        )
        server.pour(connection, b"x" * 2**16)

    with talking(talk) as server:
        assert await reading(server) == b"xxxxx"
        assert server.sent < 64 * 2**20


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Range: bytes 1-5/10"],
        ["Content-Range: bytes 0-9/10"],
        ["Content-Range: bytes */10"],
        ["Content-Range: items 0-4/10"],
        ["Content-Range: bytes 0-4"],
        ["Content-Range: bytes 0-18446744073709551616/*"],
        [],
        ["Content-Type: multipart/byteranges; boundary=b"],
    ],
)
async def test_another_part_than_was_asked_for_is_not_believed(lines):
    with talking(answer("206 Partial", *lines, "Content-Length: 5", body=b"01234")) as server:
        error = await failure(server)
    assert error.kind == "short-read"


@pytest.mark.parametrize("status", ["200 OK", "206 Partial"])
@pytest.mark.parametrize("length", ["3", "99"])
async def test_a_length_that_is_a_lie_is_no_data(status, length):
    lines = [RANGE, f"Content-Length: {length}"]
    with talking(answer(status, *lines, body=b"012")) as server:
        await failure(server)


async def test_a_compressed_answer_is_refused():
    lines = [RANGE, "Content-Encoding: gzip", "Content-Length: 5"]
    with talking(answer("206 Partial", *lines, body=b"01234")) as server:
        error = await failure(server)
    assert "Content-Encoding gzip" in str(error)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 Other", "307 T", "308 P"])
async def test_a_redirect_to_another_origin_is_refused_and_nothing_is_sent_there(status):
    with ExitStack() as stack:
        partial = answer("206 Partial", RANGE, "Content-Length: 5", body=b"01234")
        other = stack.enter_context(talking(partial))
        moved = answer(status, f"Location: {other.url}/p/k", "Content-Length: 0")
        server = stack.enter_context(talking(moved))
        error = await failure(server, grant=SECRET)
        assert "another origin" in str(error)
        assert other.heads == []
        assert len(server.heads) == 1


@pytest.mark.parametrize("location", ["https://127.0.0.1/x", "//other/x", "ftp://h/x", "http://["])
async def test_a_redirect_to_another_scheme_or_host_is_refused(location):
    with talking(answer("302 Found", f"Location: {location}", "Content-Length: 0")) as server:
        await failure(server, grant=SECRET)
        assert len(server.heads) == 1


async def test_a_redirect_within_the_origin_is_followed_with_the_headers():
    partial = answer("206 Partial", RANGE, "Content-Length: 5", body=b"01234")
    moved = answer("302 Found", "Location: /q/k?x=1", "Content-Length: 0")

    def talk(server, connection, head):
        (moved if "/p/k" in head else partial)(server, connection, head)

    with talking(talk) as server:
        assert await reading(server, grant=SECRET) == b"01234"
        assert "/q/k?x=1" in server.heads[1]
        assert "hunter2" in server.heads[1]


async def test_redirects_in_a_circle_end():
    with talking(answer("302 Found", "Location: /p/k", "Content-Length: 0")) as server:
        error = await failure(server)
        assert "redirects" in str(error)
        assert len(server.heads) < 10


@pytest.mark.parametrize("talk", [silent, trickling(0.05)])
async def test_a_dead_server_is_given_up_by_the_deadline(talk):
    with talking(talk) as server:
        began = time.monotonic()
        error = await failure(server, length=1000, grant={"deadline": 0.6}, retries=Retries())
        assert time.monotonic() - began < 5
    assert "`deadline`" in str(error)
    assert "/p/k" in str(error)


async def test_a_deadline_that_is_none_is_refused_before_anything_is_asked():
    with pytest.raises(InvalidInputError, match="deadline"):
        VirtualReader({}, {"http://h/": {"deadline": math.nan}})


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("https://user:hunter2@host/p/", http_store()),
        ("https://user:hun/ter2@host/p/", http_store()),
        ("s3://key:hun/ter2@bucket/p/", icefloe.s3_store()),
        ("s3://bucket/p/", icefloe.s3_store(endpoint_url="https://user:hunter2@host")),
    ],
)
def test_a_container_takes_no_credentials_into_the_repository(prefix, store):
    config = icefloe.RepositoryConfig()
    with pytest.raises(InvalidInputError) as caught:
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    assert "ter2" not in str(caught.value)


async def test_a_container_with_credentials_in_its_prefix_is_not_connected_to():
    prefix = "http://user:hunter2@127.0.0.1:9/p/"
    container = icefloe.VirtualChunkContainer(prefix, http_store())
    reader = VirtualReader({prefix: container}, {prefix: None})
    with pytest.raises(InvalidInputError) as caught:
        await reader.read(VirtualRef(f"{prefix}k", 0, 5))
    assert "no credentials" in str(caught.value)
