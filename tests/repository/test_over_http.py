"""A repository behind a plain web server is read, and never written."""

import asyncio
import http.server
import threading
import zipfile
from functools import partial

import fsspec
import numpy as np
import pytest
import zarr

from icefloe import NotFoundError, ReadOnlyError, Repository, Retries, StorageError, open_storage
from icefloe.errors import IcefloeError

VALUES = np.arange(1000.0).reshape(20, 50)


class Handler(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` runs, which stumbles as often as it is told to."""

    def do_GET(self):
        if self.server.stumbles:
            self.server.stumbles -= 1
            return self.send_error(500)
        return super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def published(tmp_path):
    """The server and the address of a repository on it."""
    repo = Repository.create(str(tmp_path / "a folder"))
    with repo.transaction("main", message="values") as store:
        zarr.create_array(store, name="a", data=VALUES, chunks=(10, 50), compressors=None)
        zarr.create_array(store, name="group/b", data=VALUES[:2])
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))
    )
    server.stumbles = 0
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server, f"http://127.0.0.1:{server.server_port}/a%20folder"
    server.shutdown()
    server.server_close()
    thread.join()


def check(repo):
    store = repo.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:], VALUES)
    np.testing.assert_array_equal(
        zarr.open_array(store, path="a", mode="r")[3, 4:6], VALUES[3, 4:6]
    )
    assert next(repo.ancestry(branch="main")).message == "values"


def test_a_repository_is_opened_over_http(published):
    _, url = published
    check(Repository.open(url))
    check(Repository.open(f"{url}/"))
    assert Repository.exists(url)
    assert not Repository.exists(f"{url}/nothing")
    with pytest.raises(NotFoundError, match="there is no repository"):
        Repository.open(f"{url}/nothing")


async def test_a_repository_is_opened_over_http_on_a_running_loop(published):
    _, url = published
    check(Repository.open(url))
    repo = await asyncio.to_thread(Repository.open, url)
    session = await repo.readonly_session_async("main")
    found = await session.store.get("a/c/0/0")
    assert len(found.to_bytes()) == VALUES[:10].nbytes


def test_a_repository_is_opened_over_http_on_the_loop_of_fsspec(published):
    _, url = published
    storage = open_storage(url)

    async def get():
        return await storage.get_async("repo")

    assert fsspec.asyn.sync(fsspec.asyn.get_loop(), get).data == storage.get("repo").data


def test_a_server_that_stumbles_is_asked_again(published):
    server, url = published
    server.stumbles = 2
    check(Repository.open(url, retries=Retries(5, 0.001)))


def test_a_server_that_keeps_failing_is_an_error_of_ours(published):
    server, url = published
    server.stumbles = 10**6
    with pytest.raises(StorageError) as caught:
        open_storage(url, retries=Retries(3, 0.001)).get("repo")
    assert caught.value.kind == "server-error"
    with pytest.raises(IcefloeError):
        Repository.open(url, retries=Retries(3, 0.001))


@pytest.mark.parametrize(
    "write",
    [
        lambda repo: repo.writable_session("main"),
        lambda repo: repo.create_branch("b", repo.lookup_branch("main")),
        lambda repo: repo.rearrange_session("main"),
        lambda repo: repo.storage.put("a", b"x"),
    ],
)
def test_writing_is_refused_with_the_reason(published, write):
    _, url = published
    with pytest.raises(ReadOnlyError, match="HTTP is read-only"):
        write(Repository.open(url))


def test_creating_is_refused_with_the_reason(published):
    _, url = published
    with pytest.raises(ReadOnlyError, match="HTTP is read-only"):
        Repository.create(f"{url}/new")


def test_what_a_server_lists_is_checked_as_on_disk(published, tmp_path):
    _, url = published
    repo = Repository.open(url)
    there = [info for page in open_storage(tmp_path / "a folder").list() for info in page]
    found = [info for page in repo.storage.list() for info in page]
    assert [(each.key, each.size) for each in found] == [(each.key, each.size) for each in there]
    assert [each.modified.replace(microsecond=0) for each in found] == [
        each.modified.replace(microsecond=0) for each in there
    ]
    chunks = [each.key for each in there if each.key.startswith("chunks/")]
    assert [each.key for page in repo.storage.list("chunks/") for each in page] == chunks
    after = [each.key for page in repo.storage.list(start_after=chunks[0]) for each in page]
    assert after == [each.key for each in there if each.key > chunks[0]]
    assert [*repo.storage.list("nothing/")] == []
    assert repo.verify("objects") == []


def test_a_listing_that_stumbles_is_asked_for_again(published):
    server, url = published
    storage = open_storage(url, retries=Retries(5, 0.001))
    expected = [info.key for page in storage.list() for info in page]
    server.stumbles = 2
    assert [info.key for page in storage.list() for info in page] == expected


def test_a_blocking_store_waits_without_a_loop(tmp_path, monkeypatch):
    """Chained URLs block: their waits need no event loop, whoever calls."""
    path = tmp_path / "x.zip"
    folder = Repository.create(str(tmp_path / "r")).storage
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("repo", folder.get("repo").data)
    storage = open_storage(f"zip://::file://{path}", retries=Retries(3, 0.001))
    driver = storage._driver()
    failures = [OSError("on purpose")]
    read = driver._fs.cat_file

    def stumble(*arguments, **options):
        if failures:
            raise failures.pop()
        return read(*arguments, **options)

    monkeypatch.setattr(driver._fs, "cat_file", stumble)
    assert storage.get("repo").data == folder.get("repo").data
