"""An operation on a dead store ends by its deadline, and one that advances goes on."""

import base64
import gc
import logging
import math
import pickle
import re
import socket
import time
import warnings

import pytest

from icefloe import InvalidInputError, Repository, Retries, StorageError, UnknownOutcomeError
from icefloe.storage import open_storage
from servers_hostile import absorbing, silent, talking, trickling

DEADLINE = 0.5
LATEST = 5.0
"""A busy machine may take longer to notice."""
KEY = base64.b64encode(b"key").decode()
STORES = {
    "s3": lambda port: (
        "s3://bucket/x",
        {"endpoint_url": f"http://127.0.0.1:{port}", "key": "k", "secret": "s"},
    ),
    "gcs": lambda port: (
        "gs://bucket/x",
        {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon"},
    ),
    "azure": lambda port: (
        "az://container/x",
        {
            "connection_string": "DefaultEndpointsProtocol=http;AccountName=a;"
            f"AccountKey={KEY};BlobEndpoint=http://127.0.0.1:{port}/a;"
        },
    ),
    "http": lambda port: (f"http://127.0.0.1:{port}/x", {}),
}


@pytest.fixture(autouse=True)
def _collected():
    # Azure's client leaves the connection of a request that was cut short to the collector.
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(params=STORES)
def store(request):
    return STORES[request.param]


@pytest.fixture
def refusing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def seconds_of(call, expected=StorageError):
    began = time.monotonic()
    with pytest.raises(expected) as caught:
        call()
    return time.monotonic() - began, caught.value


def opened(store, port, **options):
    url, found = store(port)
    return open_storage(url, found | {"deadline": DEADLINE} | options)


def test_a_port_that_refuses_is_given_up_by_the_deadline(store, refusing):
    took, error = seconds_of(lambda: opened(store, refusing).get("repo"))
    assert took < LATEST
    # An attempt that is cut short could have been about to connect.
    assert error.kind in {"unreachable", "transport"}
    told = r"'repo' in .*(given up after|no answer within) 0\.\d s,? (and|in) \d+ attempt"
    assert re.search(told, str(error))
    assert "deadline is 0.5 s (storage option `deadline`)" in str(error)
    assert re.search("[Cc]onnect", str(error))


def test_a_server_that_accepts_and_never_answers_is_given_up_by_the_deadline(store):
    with talking(silent) as server:
        storage = opened(store, server.port)
        for call in (
            lambda: storage.get("repo"),
            lambda: storage.get_range("a", 0, 5),
            lambda: storage.exists("a"),
            lambda: [*storage.list()],
        ):
            took, error = seconds_of(call)
            assert DEADLINE * 0.3 < took < LATEST
            assert "given up" in str(error) or "no answer within" in str(error)
            assert "`deadline`" in str(error)


def test_a_server_that_trickles_bytes_is_given_up_by_the_deadline(store):
    with talking(trickling()) as server:
        storage = opened(store, server.port)
        for call in (lambda: storage.get("repo"), lambda: storage.get_many(["a", "b"])):
            took, _ = seconds_of(call)
            assert took < LATEST


@pytest.mark.parametrize("name", ["s3", "gcs", "azure"])
def test_writes_to_a_dead_store_end_by_the_deadline(name):
    with talking(silent) as server:
        storage = opened(STORES[name], server.port)
        assert seconds_of(lambda: storage.put("a", b"x"))[0] < LATEST
        assert seconds_of(lambda: storage.delete(["a", "b"]))[0] < LATEST
        # Whether it landed nobody can say; looking is within the deadline.
        took, _ = seconds_of(
            lambda: storage.put_if("repo", b"x", expected=None), UnknownOutcomeError
        )
        assert took < LATEST


async def test_the_deadline_holds_on_a_running_loop(store):
    with talking(silent) as server:
        began = time.monotonic()
        with pytest.raises(StorageError):
            await opened(store, server.port).get_async("repo")
        assert time.monotonic() - began < LATEST


def test_a_repository_on_a_dead_store_fails_to_open_by_the_deadline(store, refusing):
    url, options = store(refusing)
    took, error = seconds_of(lambda: Repository.open(url, options | {"deadline": DEADLINE}))
    assert took < LATEST
    assert "`deadline`" in str(error)


@pytest.mark.parametrize("name", STORES)
def test_a_download_that_advances_is_not_cut_off(name):
    part = b"x" * 2**15
    with talking(trickling(0.1, part, 9)) as server:
        data = opened(STORES[name], server.port).get("repo").data
    assert data == part * 9


@pytest.mark.parametrize("name", ["s3", "gcs"])
def test_an_upload_that_advances_is_not_cut_off(name):
    with talking(absorbing(2**15, every=0.15)) as server:
        storage = opened(STORES[name], server.port)
        began = time.monotonic()
        storage.put("large", bytes(2**18))
        assert time.monotonic() - began > DEADLINE * 1.5


def test_what_waits_for_its_turn_is_not_late():
    with talking(trickling(0.2, b"x" * 10, 1)) as server:
        url, options = STORES["s3"](server.port)
        storage = open_storage(url, options | {"deadline": DEADLINE}, concurrency=1)
        assert storage.get_many([f"a{i}" for i in range(4)]) == [b"x" * 10] * 4


def test_retries_are_not_silent(refusing, caplog):
    with pytest.raises(StorageError):
        opened(STORES["s3"], refusing).get("repo")
    told = [each for each in caplog.records if each.name == "icefloe.storage.retry"]
    assert told
    assert all(each.levelno == logging.WARNING for each in told)
    assert "attempt 1 of 10 failed, next in" in told[0].getMessage()
    assert "'repo' in s3://bucket/x" in told[0].getMessage()


def test_the_deadline_is_an_option_and_an_argument():
    options = {"token": "anon"}
    assert open_storage("gs://b", options)._settings.retries.deadline == 30
    storage = open_storage("gs://b", options | {"deadline": 7}, retries=Retries(deadline=5))
    assert storage._settings.retries.deadline == 7
    assert storage._settings.options == options
    assert pickle.loads(pickle.dumps(storage))._settings.retries.deadline == 7
    assert Retries(deadline=math.inf).deadline == math.inf


@pytest.mark.parametrize("wrong", [0, -1, "5", True, math.nan])
def test_a_deadline_that_is_no_positive_number_is_refused(wrong):
    with pytest.raises(InvalidInputError, match="deadline"):
        open_storage("s3://bucket", {"deadline": wrong})


def test_without_a_deadline_the_attempts_alone_count(refusing):
    url, options = STORES["s3"](refusing)
    retries = Retries(2, 0.001, deadline=math.inf)
    with pytest.raises(StorageError) as caught:
        open_storage(url, options, retries=retries).get("repo")
    assert "given up" not in str(caught.value)
