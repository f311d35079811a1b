"""Keys, paths, documents and ids of a wrong type get an error of ours, and change nothing."""

import asyncio

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe import InvalidInputError, MemoryStorage, Repository

SURROGATE = "\ud800"
BUFFER = default_buffer_prototype().buffer.from_bytes


@pytest.fixture
def repo():
    repo = Repository.create(MemoryStorage())
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="a", data=np.arange(10.0), chunks=(5,), dimension_names=["x"])
    return repo


@pytest.fixture
def tip(repo):
    return repo.lookup_branch("main")


@pytest.mark.parametrize("key", [SURROGATE, None, 5, b"a", ["a"]], ids=ascii)
def test_what_is_no_text_is_no_key_of_a_store(repo, key):
    session = repo.writable_session("main")
    store = session.store

    async def listed(keys):
        return [each async for each in keys]

    for call in (
        lambda: asyncio.run(listed(store.list_prefix(key))),
        lambda: asyncio.run(listed(store.list_dir(key))),
        lambda: asyncio.run(store.is_empty(key)),
        lambda: asyncio.run(store.set(key, BUFFER(b"x"))),
        lambda: asyncio.run(store.delete_dir(key)),
    ):
        with pytest.raises(InvalidInputError, match="key"):
            call()
    if not isinstance(key, str):
        for call in (store.get, store.exists, store.delete, store.getsize):
            with pytest.raises(InvalidInputError, match="pass a str"):
                asyncio.run(call(key))
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("path", [SURROGATE, f"/{SURROGATE}", None, 5, b"/a"], ids=ascii)
def test_what_is_no_text_is_no_path_of_a_node(repo, path):
    session = repo.writable_session("main")
    for call in (
        lambda: session.set_node(path, b'{"zarr_format":3,"node_type":"group"}'),
        lambda: session.node(path),
        lambda: session.paths(path),
        lambda: session.delete_node(path),
        lambda: session.get_node_id(path),
        lambda: repo.rearrange_session("main").move(path, "/b"),
        lambda: repo.rearrange_session("main").move("/a", path),
    ):
        with pytest.raises(InvalidInputError, match="is not a node path"):
            call()
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("document", [None, "{}", memoryview(b"{}"), bytearray(b"{}"), 5, {}])
def test_metadata_and_chunks_are_bytes(repo, document):
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"zarr\.json of /a is .*: pass bytes"):
        session.set_node("/a", document)
    with pytest.raises(InvalidInputError, match=r"chunk .* pass bytes"):
        asyncio.run(session.set_chunk("/a", (0,), document))
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("ids", [None, 5, "x", b"x", [None], [["x"]], []], ids=ascii)
def test_snapshots_to_merge_are_a_list_of_ids(repo, tip, ids):
    for branch in ("main", None):
        with pytest.raises(InvalidInputError):
            repo.merge_snapshots(branch, ids, "m")
    assert repo.lookup_branch("main") == tip


def test_one_id_to_merge_is_not_taken_for_its_letters(repo, tip):
    with pytest.raises(InvalidInputError, match=f"are '{tip}': pass a list of the ids"):
        repo.merge_snapshots("main", tip, "m")
