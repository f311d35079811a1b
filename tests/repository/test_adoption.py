"""Manifests that others wrote: they replace whole cells, and nothing else is read or rewritten."""

import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, MemoryStorage, Repository, SessionStateError
from icefloe.adoption import Adopted
from icefloe.assets import Assets
from icefloe.conflicts import ConflictDetector
from icefloe.format import manifest as manifest_file
from icefloe.format.chunk_refs import ChunkRefs, InlineRef
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ManifestRefs
from icefloe.format.snapshot import ManifestFiles


@pytest.fixture
def repo():
    repo = Repository.create(MemoryStorage())
    with repo.transaction("main", message="init") as store:
        array = zarr.create_array(
            store, name="a", shape=(8,), chunks=(1,), dtype="u1", compressors=None, filters=None
        )
        array[:] = 1
    return repo


def written(repo, session, path, cells, values, sizes=(4,)):
    """What an executor hands over: the manifest of a cell with these values."""
    node_id = NodeId.parse(session.get_node_id(path))
    index = np.array(sorted(values), np.uint32).reshape(-1, 1)
    refs = ChunkRefs.of([((at,), InlineRef(bytes([values[at]]))) for at in sorted(values)], 1)
    value = Manifest(ManifestId.random(), (ArrayManifest(node_id, refs),))
    data = manifest_file.encode(value)
    Assets(repo.storage).put_manifests([(value.id, data)])
    box = [(int(index.min()), int(index.max()) + 1)]
    return Adopted(
        sizes,
        np.array(cells, np.int64).reshape(-1, 1),
        ManifestRefs.of([(value.id, box)], 1),
        ManifestFiles.of([(value.id, len(data), len(refs))]),
        index,
    )


def values(repo_or_session):
    session = repo_or_session
    if isinstance(repo_or_session, Repository):
        session = repo_or_session.readonly_session("main")
    return zarr.open_array(session.store, path="a", mode="r")[:].tolist()


def test_adopted_manifests_replace_their_cells_in_session_and_commit(repo):
    session = repo.writable_session("main")
    session.adopt_manifests("/a", written(repo, session, "/a", [0, 1], {0: 7, 5: 8}))
    assert values(session) == [7, 0, 0, 0, 0, 8, 0, 0]
    assert session.status().updated_chunks == {"/a": [[0], [5]]}
    session.commit("adopted")
    assert values(repo) == [7, 0, 0, 0, 0, 8, 0, 0]


def test_a_base_manifest_that_reaches_out_of_the_cells_is_refused(repo):
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="reaches into cells"):
        session.adopt_manifests("/a", written(repo, session, "/a", [1], {5: 8}))
    assert not session.has_uncommitted_changes


def test_later_edits_and_later_manifests_count_more(repo):
    session = repo.writable_session("main")
    session.adopt_manifests("/a", written(repo, session, "/a", [0, 1], {0: 7, 5: 8}))
    array = zarr.open_array(session.store, path="a")
    array[0] = 3
    array[6] = 4
    assert values(session) == [3, 0, 0, 0, 0, 8, 4, 0]
    session.adopt_manifests("/a", written(repo, session, "/a", [0, 1], {1: 9}))
    assert values(session) == [0, 9, 0, 0, 0, 0, 0, 0]
    session.commit("adopted twice")
    assert values(repo) == [0, 9, 0, 0, 0, 0, 0, 0]


def test_a_moved_branch_takes_them_by_merging(repo):
    session = repo.writable_session("main")
    session.adopt_manifests("/a", written(repo, session, "/a", [0, 1], {2: 7, 0: 1, 1: 1}))
    with repo.transaction("main", message="other") as store:
        zarr.create_group(store, path="g")
    with pytest.raises(SessionStateError) as caught:
        session.commit("adopted", rebase_with=ConflictDetector())
    assert caught.value.kind == "adopted-manifests"
    staged = session.flush("adopted")
    repo.merge_snapshots("main", [staged], "merged")
    assert values(repo) == [1, 1, 7, 0, 0, 0, 0, 0]
