"""A conditional write whose answer is lost is looked up, never guessed."""

import pytest

from icefloe.errors import ConflictError, StorageError, UnknownOutcomeError
from icefloe.storage import Retries, open_storage
from proxy import Action, always, once, proxy_to

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server):
    with proxy_to(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def direct(open_s3):
    return open_s3()


@pytest.fixture
def lossy(open_s3, proxy):
    """The same root as `direct`, seen through the proxy."""
    return open_s3(options={"endpoint_url": proxy.endpoint})


def test_a_create_that_landed_unheard_is_a_success(proxy, lossy, direct):
    proxy.plan = once("PUT", Action.LOSE_ANSWER)
    version = lossy.put_if("repo", b"ours", expected=None)
    assert direct.get("repo").data == b"ours"
    assert direct.get("repo").version == version
    assert proxy.count("PUT") >= 2
    assert proxy.count("HEAD") == 1


def test_a_swap_that_landed_unheard_is_a_success(proxy, lossy, direct):
    before = direct.put("repo", b"before")
    proxy.plan = once("PUT", Action.LOSE_ANSWER)
    version = lossy.put_if("repo", b"ours", expected=before)
    assert direct.get("repo").data == b"ours"
    assert direct.get("repo").version == version
    # And the version is good for the next swap.
    lossy.put_if("repo", b"next", expected=version)


def test_a_write_whose_every_answer_is_lost_is_still_found(proxy, lossy, direct):
    proxy.plan = always("PUT", Action.LOSE_ANSWER)
    version = lossy.put_if("repo", b"ours", expected=None)
    assert direct.get("repo").version == version


def test_a_request_that_never_arrived_is_sent_again(proxy, lossy, direct):
    lost = [Action.LOSE_REQUEST] * 3
    proxy.plan = lambda method, path: lost.pop() if method == "PUT" and lost else Action.PASS
    version = lossy.put_if("repo", b"ours", expected=None)
    assert direct.get("repo").version == version


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.PASS])
@pytest.mark.parametrize("exists", [True, False])
def test_a_lost_race_is_a_conflict_even_if_its_answer_is_lost(proxy, lossy, direct, action, exists):
    before = direct.put("repo", b"before") if exists else None
    rivals = [b"rival"]

    def plan(method, path):
        if method == "PUT" and rivals:
            direct.put_if("repo", rivals.pop(), expected=before)
            return action
        return Action.PASS

    proxy.plan = plan
    with pytest.raises(ConflictError) as caught:
        lossy.put_if("repo", b"ours", expected=before)
    assert caught.value.kind == "precondition-failed"
    assert direct.get("repo").data == b"rival"


def test_equal_bytes_of_a_rival_are_not_taken_for_ours(proxy, lossy, direct):
    rivals = [b"same bytes"]

    def plan(method, path):
        if method == "PUT" and rivals:
            direct.put_if("repo", rivals.pop(), expected=None)
            return Action.LOSE_ANSWER
        return Action.PASS

    proxy.plan = plan
    with pytest.raises(ConflictError):
        lossy.put_if("repo", b"same bytes", expected=None)


def test_where_metadata_is_dropped_the_bytes_are_compared(proxy, lossy, direct):
    proxy.keep_metadata = False
    proxy.plan = once("PUT", Action.LOSE_ANSWER)
    version = lossy.put_if("repo", b"ours", expected=None)
    assert direct.get("repo").version == version
    with pytest.raises(ConflictError):
        lossy.put_if("repo", b"more of ours", expected=None)
    with pytest.raises(ConflictError):
        lossy.put_if("repo", b"mine", expected=None)


def test_an_outcome_nobody_tells_is_called_unknown(proxy, lossy, direct):
    def plan(method, path):
        return Action.LOSE_ANSWER if method == "PUT" else Action.FAIL

    proxy.plan = plan
    with pytest.raises(UnknownOutcomeError) as caught:
        lossy.put_if("repo", b"ours", expected=None)
    assert "repo" in str(caught.value)
    assert lossy.url in str(caught.value)
    assert direct.get("repo").data == b"ours"


def test_a_conflict_that_cannot_be_looked_up_is_called_unknown(proxy, lossy, direct):
    direct.put("repo", b"before")
    proxy.plan = always("HEAD", Action.FAIL)
    with pytest.raises(UnknownOutcomeError):
        lossy.put_if("repo", b"ours", expected=None)


def test_a_request_that_may_be_on_its_way_is_called_unknown(proxy, lossy, direct):
    proxy.plan = always("PUT", Action.LOSE_REQUEST)
    with pytest.raises(UnknownOutcomeError):
        lossy.put_if("repo", b"ours", expected=None)
    assert not direct.exists("repo")


def test_a_server_error_on_a_lost_race_ends_in_a_conflict(proxy, lossy, direct):
    # Ceph answers so.
    rivals = [b"rival"]

    def plan(method, path):
        if method == "PUT" and rivals:
            direct.put_if("repo", rivals.pop(), expected=None)
            return Action.FAIL
        return Action.PASS

    proxy.plan = plan
    with pytest.raises(ConflictError):
        lossy.put_if("repo", b"ours", expected=None)


def test_a_write_that_kept_failing_while_a_rival_won_is_a_conflict(proxy, lossy, direct):
    before = direct.put("repo", b"before")
    rivals = [b"rival"]

    def plan(method, path):
        if method == "PUT" and rivals:
            direct.put_if("repo", rivals.pop(), expected=before)
        return Action.FAIL if method == "PUT" else Action.PASS

    proxy.plan = plan
    with pytest.raises(ConflictError) as caught:
        lossy.put_if("repo", b"ours", expected=before)
    assert caught.value.kind == "precondition-failed"
    assert direct.get("repo").data == b"rival"


def test_a_refused_connection_leaves_no_doubt(s3_server):
    nowhere = s3_server.options | {"endpoint_url": "http://127.0.0.1:9"}
    storage = open_storage(s3_server.root(), nowhere, retries=Retries(2, 0.001))
    with pytest.raises(StorageError) as caught:
        storage.put_if("repo", b"ours", expected=None)
    assert caught.value.kind == "unreachable"
    assert not isinstance(caught.value, UnknownOutcomeError)


def test_a_lost_answer_to_a_plain_put_is_simply_put_again(proxy, lossy, direct):
    proxy.plan = once("PUT", Action.LOSE_ANSWER)
    lossy.put("chunks/A", b"ours")
    assert direct.get("chunks/A").data == b"ours"


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.FAIL, Action.LOSE_REQUEST])
def test_other_stores_look_up_a_lost_answer_too(open_gcs, gcs_endpoint, action):
    with proxy_to(gcs_endpoint) as proxy:
        options = {"token": "anon", "endpoint_url": proxy.endpoint}
        direct = open_gcs()
        lossy = open_storage(direct.url, options, retries=Retries(3, 0.001))
        proxy.plan = once("POST", action)
        version = lossy.put_if("repo", b"ours", expected=None)
        assert direct.get("repo").version == version
        proxy.plan = once("POST", action)
        version = lossy.put_if("repo", b"next", expected=version)
        assert direct.get("repo").version == version
        rivals = [b"rival"]

        def plan(method, path):
            if method == "POST" and rivals:
                direct.put_if("repo", rivals.pop(), expected=version)
                return action
            return Action.PASS

        proxy.plan = plan
        with pytest.raises(ConflictError):
            lossy.put_if("repo", b"late", expected=version)
        assert direct.get("repo").data == b"rival"
