"""Throttling and broken connections are waited out, within bounds."""

import pickle

import pytest

from icefloe.errors import InvalidInputError, NotFoundError, StorageError, ThrottledError
from icefloe.storage import Retries
from proxy import Action, always, proxy_to


@pytest.fixture
def proxy(s3_server):
    with proxy_to(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def waits():
    return []


@pytest.fixture
def storage(open_s3, proxy, waits):
    async def sleep(seconds):
        waits.append(seconds)

    retries = Retries(5, initial=0.5, maximum=3.0, sleep=sleep, uniform=lambda: 1.0)
    return open_s3(options={"endpoint_url": proxy.endpoint}, retries=retries)


@pytest.mark.s3
def test_throttling_is_waited_out(proxy, storage, waits):
    busy = [Action.SLOW_DOWN] * 3
    proxy.plan = lambda method, path: busy.pop() if busy else Action.PASS
    storage.put("a", b"x")
    assert waits == [0.5, 1.0, 2.0]
    assert storage.get("a").data == b"x"


@pytest.mark.s3
@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("PUT", lambda storage: storage.put("a", b"x")),
        ("PUT", lambda storage: storage.put_if("a", b"x", expected=None)),
        ("GET", lambda storage: storage.get("a")),
        ("GET", lambda storage: storage.get_range("a", 0, 1)),
        ("GET", lambda storage: storage.get_many(["a"])),
        ("GET", lambda storage: [*storage.list()]),
        ("HEAD", lambda storage: storage.exists("a")),
        ("POST", lambda storage: storage.delete(["a"])),
    ],
)
def test_endless_throttling_ends_after_the_last_attempt(proxy, storage, waits, method, call):
    proxy.plan = always(method, Action.SLOW_DOWN)
    with pytest.raises(ThrottledError) as caught:
        call(storage)
    assert caught.value.kind == "throttled"
    assert storage.url in str(caught.value)
    assert proxy.count(method) == 5
    assert waits == [0.5, 1.0, 2.0, 3.0]


@pytest.mark.s3
def test_a_broken_connection_is_tried_again(proxy, storage):
    storage.put("a", b"x")
    broken = [Action.LOSE_ANSWER] * 3
    proxy.plan = lambda method, path: broken.pop() if broken else Action.PASS
    assert storage.get("a").data == b"x"
    assert not broken


@pytest.mark.s3
def test_a_final_answer_is_not_asked_for_again(proxy, storage, waits):
    with pytest.raises(NotFoundError):
        storage.get("missing")
    assert proxy.count("GET") == 1
    assert waits == []


@pytest.mark.s3
def test_one_read_is_one_request(proxy, storage):
    version = storage.put("a", b"12345")
    proxy.seen.clear()
    storage.get("a")
    storage.get("a", known=version)
    storage.get_range("a", 1, 2)
    storage.get_many(["a"])
    assert proxy.seen == ["GET"] * 4
    proxy.seen.clear()
    storage.exists("a")
    storage.exists("missing")
    assert proxy.seen == ["HEAD"] * 2


@pytest.mark.s3
def test_a_page_that_failed_is_asked_for_again(proxy, storage):
    storage.put_many([(f"a{i}", b"") for i in range(3)])
    failing = [Action.FAIL, Action.FAIL]
    proxy.plan = lambda method, path: failing.pop() if failing else Action.PASS
    assert [info.key for page in storage.list() for info in page] == ["a0", "a1", "a2"]


async def test_waits_grow_and_are_spread_from_zero_to_their_bound():
    retries = Retries(100, initial=0.1, maximum=30.0)
    for failed in (1, 5, 60, 2000):
        bound = min(30.0, 0.1 * 2 ** min(failed - 1, 1000))
        drawn = [retries.delay(failed) for _ in range(200)]
        assert all(0 <= wait <= bound for wait in drawn)
        assert min(drawn) < bound / 4
        assert max(drawn) > bound * 3 / 4


async def test_a_failure_that_waiting_cannot_mend_is_raised_at_once():
    calls = []

    async def fail():
        calls.append(1)
        raise StorageError("no", kind="short-read")

    with pytest.raises(StorageError):
        await Retries().run(fail)
    assert calls == [1]


def test_no_attempt_at_all_is_refused():
    with pytest.raises(InvalidInputError):
        Retries(attempts=0)


def test_retries_pickle_small_and_without_the_state_of_a_generator():
    assert len(pickle.dumps(Retries())) < 300
    assert pickle.loads(pickle.dumps(Retries(3, 1.0, 2.0))) == Retries(3, 1.0, 2.0)
