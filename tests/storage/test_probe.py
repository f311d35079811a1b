"""A store that ignores preconditions is refused."""

import pytest

from icefloe.errors import UnsafeStorageError
from icefloe.storage import UnsafeStorageWarning, open_storage, probe_preconditions


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
