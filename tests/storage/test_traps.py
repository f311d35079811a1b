"""What s3fs, botocore and S3 servers do that would lose a commit or hide a failure."""

import threading
from types import SimpleNamespace

import boto3
import pytest

from icefloe.errors import ConflictError, StorageError, UnsafeStorageError
from icefloe.storage import Retries, open_storage
from proxy import Action, Answer, always, once, proxy_to

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server):
    with proxy_to(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def direct(open_s3):
    return open_s3()


@pytest.fixture
def watched(open_s3, proxy):
    """The same root as `direct`, seen through the proxy."""
    return open_s3(options={"endpoint_url": proxy.endpoint})


@pytest.mark.parametrize("exists", [True, False])
def test_a_write_above_the_multipart_threshold_keeps_its_condition(open_s3, exists):
    # From twice the block size on, s3fs's own writes are multipart and drop If-Match in silence.
    storage = open_s3(options={"default_block_size": 5 * 2**20, "engine": "s3fs"})
    large = b"x" * (12 * 2**20)
    stale = storage.put_if("repo", b"old", expected=None)
    version = storage.put_if("repo", large, expected=stale)
    with pytest.raises(ConflictError):
        storage.put_if("repo", large[:-1], expected=stale if exists else None)
    found = storage.get("repo")
    assert (found.version, found.data) == (version, large)


def test_every_argument_is_one_that_botocore_knows(open_s3):
    """s3fs drops the others in silence: a condition misspelt would be no condition."""
    storage = open_s3(options={"engine": "s3fs"})
    fs = storage._driver()._fs
    calls = []
    call = fs._call_s3

    async def note(method, **arguments):
        calls.append((method, set(arguments)))
        return await call(method, **arguments)

    fs._call_s3 = note
    version = storage.put_if("a", b"1", expected=None)
    version = storage.put_if("a", b"2", expected=version, metadata={"icspecver": "2"})
    storage.put("b", b"3")
    storage.get("a", known=version)
    storage.get_range("a", 0, 1)
    storage.copy("a", "c", expected=version)
    storage.info("a")
    assert [info.key for page in storage.list("", start_after="a") for info in page] == ["b", "c"]
    storage.delete(["a", "b", "c"])
    model = boto3.client("s3", region_name="us-east-1").meta.service_model
    operations = {"".join(part.title() for part in name.split("_")): name for name, _ in calls}
    assert len(operations) == 6
    for operation, name in operations.items():
        known = set(model.operation_model(operation).input_shape.members)
        for method, arguments in calls:
            assert method != name or arguments <= known
    sent = set().union(*(arguments for _, arguments in calls))
    assert {"IfMatch", "IfNoneMatch", "CopySourceIfMatch", "Range", "StartAfter"} <= sent


def test_a_botocore_without_conditional_writes_is_refused(open_s3, direct):
    storage = open_s3(options={"engine": "s3fs"})
    model = SimpleNamespace(input_shape=SimpleNamespace(members={"Bucket": 0, "IfNoneMatch": 0}))
    old = SimpleNamespace(
        meta=SimpleNamespace(service_model=SimpleNamespace(operation_model=lambda name: model))
    )

    async def old_client():
        return old

    storage._driver()._fs.set_session = old_client
    with pytest.raises(UnsafeStorageError, match="botocore"):
        storage.put_if("repo", b"ours", expected=None)
    assert not direct.exists("repo")


@pytest.mark.parametrize("quoted", [True, False])
def test_an_etag_has_no_quotes_here_or_in_a_condition_whatever_the_server_sends(
    proxy, watched, direct, quoted
):
    # Ceph 16 compares the condition with the tag as it stores it: without.
    proxy.quote_etags = quoted
    created = watched.put_if("repo", b"one", expected=None)
    assert created == watched.get("repo").version == direct.get("repo").version
    swapped = watched.put_if("repo", b"two", expected=created)
    assert '"' not in created.token + swapped.token
    assert watched.get("repo", known=swapped) is None
    sent = [headers.get("if-match") for headers in proxy.headers]
    assert [tag for tag in sent if tag] == [created.token]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (412, "PreconditionFailed"),
        (409, "ConditionalRequestConflict"),
        (409, "ConcurrentModification"),
        (404, "NoSuchKey"),
    ],
)
def test_every_way_to_say_that_a_condition_tripped_is_a_conflict(
    proxy, watched, direct, status, code
):
    before = direct.put("repo", b"before")
    text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    proxy.plan = always("PUT", Answer(status, text))
    with pytest.raises(ConflictError) as caught:
        watched.put_if("repo", b"ours", expected=before)
    assert caught.value.kind == "precondition-failed"
    assert code in str(caught.value)
    assert direct.get("repo").data == b"before"


def test_a_key_that_a_bulk_delete_left_is_reported(proxy, watched, direct):
    direct.put_many([("a", b""), ("b", b"")])
    prefix = direct.url.removeprefix("s3://").partition("/")[2]
    error = f"<Error><Key>{prefix}/b</Key><Code>AccessDenied</Code><Message>held</Message></Error>"
    proxy.plan = once("POST", Answer(200, f"<DeleteResult>{error}</DeleteResult>"))
    result = watched.delete(["a", "b"])
    assert (result.deleted, result.failures) == (1, {"b": "AccessDenied: held"})


def test_a_delete_that_one_key_refuses_deletes_the_others(open_gcs, gcs_endpoint):
    with proxy_to(gcs_endpoint) as proxy:
        options = {"token": "anon", "endpoint_url": proxy.endpoint}
        storage = open_storage(open_gcs().url, options, retries=Retries(2, 0.001))
        storage.put_many([("a", b""), ("b", b"")])
        held = Answer(403, '{"error": {"errors": [{"reason": "retained"}], "message": "held"}}')

        def plan(method, path):
            return held if method == "DELETE" and path.endswith("b") else Action.PASS

        proxy.plan = plan
        result = storage.delete(["a", "b"])
        assert result.deleted == 1
        assert "held" in result.failures["b"]
        assert [info.key for page in storage.list() for info in page] == ["b"]
        proxy.plan = always("DELETE", Answer(500, "down"))
        with pytest.raises(StorageError, match="500"):
            storage.delete(["b"])


@pytest.mark.parametrize(("concurrency", "least"), [(5, 2), (40, 11)])
def test_as_many_requests_are_under_way_as_allowed_and_no_more(
    open_s3, s3_server, concurrency, least
):
    """s3fs alone stops at the ten connections of its pool."""
    with proxy_to(s3_server.endpoint) as proxy:
        storage = open_s3(options={"endpoint_url": proxy.endpoint}, concurrency=concurrency)
        storage.put("a", b"1")
        under_way, most = 0, 0
        lock = threading.Lock()

        def plan(method, path):
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            threading.Event().wait(0.1)
            with lock:
                under_way -= 1
            return Action.PASS

        proxy.plan = plan
        wanted = 2 * concurrency
        assert storage.get_many(["a"] * wanted) == [b"1"] * wanted
        assert least <= most <= concurrency
