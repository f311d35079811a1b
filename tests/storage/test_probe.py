"""A store that ignores preconditions is refused."""

import pytest

from icefloe import Repository
from icefloe.errors import UnsafeStorageError
from icefloe.storage import UnsafeStorageWarning, open_storage, probe_preconditions
from proxy import Action, proxy_to


def test_a_store_that_ignores_preconditions_is_refused_with_a_way_out(careless_s3_server):
    storage = open_storage(careless_s3_server.root(), careless_s3_server.options)
    with pytest.raises(UnsafeStorageError) as caught:
        probe_preconditions(storage)
    assert storage.url in str(caught.value)
    assert "If-None-Match" in str(caught.value)
    assert "unsafe_allow_no_preconditions" in str(caught.value)
    assert [*storage.list()] in ([], [[]])


def test_the_user_can_accept_it_and_is_warned_loudly(careless_s3_server):
    storage = open_storage(
        careless_s3_server.root(), careless_s3_server.options, unsafe_allow_no_preconditions=True
    )
    with pytest.warns(UnsafeStorageWarning, match="commits may be lost"):
        probe_preconditions(storage)


class IgnoresVersions:
    """Honours creation only, as some servers do."""

    def __init__(self, storage):
        self._storage = storage

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if(self, key, data, *, expected, metadata=()):
        if expected is None:
            return self._storage.put_if(key, data, expected=None)
        return self._storage.put(key, data)


def test_a_store_that_only_knows_creation_is_refused_too(memory):
    with pytest.raises(UnsafeStorageError, match="If-Match"):
        probe_preconditions(IgnoresVersions(memory))
    assert [*memory.list()] == []


def test_no_repository_is_created_on_a_store_that_would_lose_its_commits(careless_s3_server):
    root, options = careless_s3_server.root(), careless_s3_server.options
    with pytest.raises(UnsafeStorageError, match="unsafe_allow_no_preconditions=True"):
        Repository.create(root, options)
    assert [info.key for page in open_storage(root, options).list() for info in page] == []
    with pytest.warns(UnsafeStorageWarning, match="commits may be lost"):
        Repository.create(root, options, unsafe_allow_no_preconditions=True)
    assert Repository.open(root, options).list_branches() == {"main"}


@pytest.mark.s3
def test_a_repository_asks_its_store_once_when_it_is_created(s3_server):
    root = s3_server.root()
    asked = []

    def plan(method, path):
        if "icefloe-probe-" in path and method == "PUT":
            asked.append(path)
        return Action.PASS

    with proxy_to(s3_server.endpoint) as proxy:
        proxy.plan = plan
        options = s3_server.options | {"endpoint_url": proxy.endpoint}
        Repository.create(root, options)
        assert len(asked) == 4
        repo = Repository.open(root, options)
        repo.create_tag("v1", repo.lookup_branch("main"))
        assert len(asked) == 4
