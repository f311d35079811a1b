"""A swap that landed without an answer, and was built on, is not made twice."""

import pytest
import zarr

import icefloe
from icefloe import ConflictError, MemoryStorage
from icefloe.storage import Storage


class LosesOneAnswer:
    """The next swap of `repo` lands, a rival writes on top, and it looks like a lost race."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.rival = None

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if(self, key, data, **options):
        version = self._storage.put_if(key, data, **options)
        if key == "repo" and self.rival is not None:
            rival, self.rival = self.rival, None
            rival()
            raise ConflictError("precondition failed", kind="precondition-failed")
        return version


@pytest.fixture
def storage():
    return LosesOneAnswer(MemoryStorage())


def test_a_commit_that_landed_without_an_answer_is_not_a_conflict(storage):
    repo = icefloe.Repository.create(storage)
    rival = icefloe.Repository.open(storage._storage)
    session = repo.writable_session("main")
    zarr.group(session.store)
    storage.rival = lambda: rival.create_tag("rival", rival.lookup_branch("main"))

    snapshot_id = session.commit("Ours")

    assert next(repo.ancestry(branch="main")).message == "Ours"
    assert repo.lookup_branch("main") == snapshot_id == repo.lookup_tag("rival")
    assert [update.kind.name for update in repo.ops_log()].count("NEW_COMMIT") == 1


def test_a_tag_that_landed_without_an_answer_is_not_a_name_taken(storage):
    repo = icefloe.Repository.create(storage)
    rival = icefloe.Repository.open(storage._storage)
    tip = repo.lookup_branch("main")
    storage.rival = lambda: rival.create_branch("rival", tip)

    repo.create_tag("v1", tip)

    assert repo.lookup_tag("v1") == tip
    assert [update.kind.name for update in repo.ops_log()].count("TAG_CREATED") == 1
