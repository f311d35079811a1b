"""Which URL leads where."""

import http.server
import sys
import threading
import zipfile
from functools import partial
from pathlib import Path

import pytest

from icefloe.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.storage import MemoryStorage, open_storage


def test_a_path_and_a_file_url_are_the_same_place(tmp_path, monkeypatch):
    open_storage(tmp_path / "repository").put("a", b"x")
    assert open_storage(f"file://{tmp_path}/repository").get("a").data == b"x"
    assert open_storage(str(tmp_path / "repository")).url == f"file://{tmp_path}/repository"
    monkeypatch.chdir(tmp_path)
    storage = open_storage("repository")
    monkeypatch.chdir("/")
    assert storage.get("a").data == b"x"


def test_opening_touches_nothing(tmp_path):
    open_storage(tmp_path / "repository")
    assert [*tmp_path.iterdir()] == []


def test_memory_is_shared_by_name_and_private_without():
    open_storage("memory://shared").put("a", b"x")
    assert open_storage("memory://shared/").get("a").data == b"x"
    assert not open_storage("memory://other").exists("a")
    assert not MemoryStorage().exists("a")


def test_a_storage_opens_as_itself():
    storage = MemoryStorage()
    assert open_storage(storage) is storage
    with pytest.raises(InvalidInputError):
        open_storage(storage, {"anon": True})


@pytest.mark.parametrize("url", ["", "  ", "file://", "s3://", "s3:///", "://x", "memory://"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidInputError):
        open_storage(url)


def test_an_unknown_scheme_is_named():
    with pytest.raises(InvalidInputError, match="nosuchscheme"):
        open_storage("nosuchscheme://bucket/x").get("a")


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("s3://b", "s3fs", "s3"), ("gs://b", "gcsfs", "gcs"), ("abfs://c/x", "adlfs", "azure")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch, url, module, extra):
    for loaded in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"icefloe.storage.{extra}", raising=False)
    with pytest.raises(InvalidInputError) as caught:
        open_storage(url)
    assert f"pip install 'icefloe[{extra}]'" in str(caught.value)


@pytest.mark.parametrize(("spelt", "shown"), [("s3a://b/p/", "s3://b/p"), ("gcs://b", "gs://b")])
def test_a_scheme_is_shown_in_one_spelling(spelt, shown):
    assert open_storage(spelt).url == shown


WRITES = [
    lambda storage: storage.put("a", b"x"),
    lambda storage: storage.put_many([("a", b"x")]),
    lambda storage: storage.put_if("a", b"x", expected=None),
    lambda storage: storage.copy("b", "a"),
    lambda storage: storage.delete(["b"]),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_read_only_handle_refuses_writes_and_reads_on(opener, write):
    opener().put("b", b"y")
    storage = opener(read_only=True)
    assert storage.read_only
    with pytest.raises(ReadOnlyError) as caught:
        write(storage)
    assert storage.url in str(caught.value)
    assert storage.get("b").data == b"y"
    assert not storage.exists("a")


def test_a_bucket_that_does_not_exist_is_said_to_be_missing(aws_server):
    storage = open_storage("s3://no-such-bucket/x", aws_server.options)
    for call in (lambda: storage.get("a"), lambda: storage.put("a", b"x")):
        with pytest.raises(NotFoundError) as caught:
            call()
        assert caught.value.kind == "bucket-not-found"


def test_wrong_credentials_are_denied(s3_server):
    storage = open_storage(s3_server.root(), s3_server.options | {"key": "nobody"})
    for call in (lambda: storage.get("a"), lambda: storage.put_if("a", b"x", expected=None)):
        with pytest.raises(PermissionDeniedError) as caught:
            call()
        assert isinstance(caught.value, StorageError)
        assert storage.url in str(caught.value)


@pytest.fixture
def published(tmp_path):
    """A folder with objects, and its address on a web server."""
    folder = tmp_path / "published"
    open_storage(folder).put_many([("repo", b"state"), ("chunks/A", b"0123456789")])

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def check_reading(storage):
    assert storage.read_only
    found = storage.get("repo")
    assert found.data == b"state"
    assert storage.get("repo", known=found.version) is None
    assert storage.get_range("chunks/A", 2, 3) == b"234"
    assert storage.get_ranges([("chunks/A", 0, 2), ("chunks/A", 8, 2)]) == [b"01", b"89"]
    assert storage.get_many(["repo", "chunks/A"]) == [b"state", b"0123456789"]
    assert storage.exists("repo")
    assert not storage.exists("missing")
    with pytest.raises(NotFoundError):
        storage.get("missing")
    for write in WRITES:
        with pytest.raises(ReadOnlyError, match="conditional writes"):
            write(storage)


def test_a_web_server_is_read_and_never_written(published):
    _, address = published
    storage = open_storage(address)
    check_reading(storage)


async def test_a_web_server_is_read_from_a_running_loop(published):
    _, address = published
    storage = open_storage(address)
    assert (await storage.get_async("repo")).data == b"state"
    assert await storage.get_many_async(["repo"]) == [b"state"]


def test_an_archive_is_read_and_listed(published, tmp_path):
    folder, _ = published
    with zipfile.ZipFile(tmp_path / "published.zip", "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    storage = open_storage(f"zip://::file://{tmp_path}/published.zip")
    check_reading(storage)
    assert [info.key for page in storage.list() for info in page] == ["chunks/A", "repo"]
    assert [info.key for page in storage.list("chunks/") for info in page] == ["chunks/A"]
    assert [info.key for page in storage.list(start_after="chunks/A") for info in page] == ["repo"]


def test_the_local_root_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    Path(tmp_path / "link").symlink_to(tmp_path / "real")
    open_storage(tmp_path / "link").put("a/b", b"x")
    assert open_storage(tmp_path / "real").get("a/b").data == b"x"


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_local_and_memory_places_refuse_options_that_they_would_ignore(tmp_path, scheme):
    place = f"{scheme}{tmp_path}/repository"
    with pytest.raises(InvalidInputError, match="there is no option 'endpont_url'") as refused:
        open_storage(place, {"endpont_url": "http://secret", "deadline": 5})
    assert refused.value.kind == "unknown-storage-option"
    assert "secret" not in str(refused.value)
    open_storage(place, {"deadline": 5}).put("a", b"x")
    assert open_storage(place, {}).get("a").data == b"x"
