"""A swap that landed without an answer, and was built on, is not made twice."""

import pytest
import zarr

import icefloe
from icefloe import ConflictError, MemoryStorage, UnknownOutcomeError
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


@pytest.mark.parametrize("foreign", [1, 2, 3, 5])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("verb", ["commit", "flush", "tag"])
def test_a_change_is_found_in_the_backups_that_the_log_runs_on_in(storage, limit, foreign, verb):
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=limit)
    repo = icefloe.Repository.create(storage, config=config)
    rival = icefloe.Repository.open(storage._storage)
    session = repo.writable_session("main")
    zarr.group(session.store)
    tip = repo.lookup_branch("main")

    def meanwhile():
        for number in range(foreign):
            rival.create_branch(f"rival {number}", tip)

    storage.rival = meanwhile
    if verb == "tag":
        repo.create_tag("ours", tip)
    else:
        snapshot_id = getattr(session, verb)("ours")
        assert repo.lookup_snapshot(snapshot_id).message == "ours"
    kinds = [update.kind.name for update in repo.ops_log()]
    wanted = {"commit": "NEW_COMMIT", "flush": "NEW_DETACHED_SNAPSHOT", "tag": "TAG_CREATED"}[verb]
    assert kinds.count(wanted) == 1
    assert kinds.count("BRANCH_CREATED") == foreign


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_race_that_was_really_lost_is_run_again_whatever_the_log_holds(limit):
    plain = MemoryStorage()
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=limit)
    icefloe.Repository.create(plain, config=config)
    rival = icefloe.Repository.open(plain)
    tip = rival.lookup_branch("main")
    names = iter(["first", "second"])

    class Overtaken:
        def __getattr__(self, name):
            return getattr(plain, name)

        def put_if(self, key, data, **options):
            if (name := next(names, None)) is not None:
                rival.create_branch(name, tip)
            return plain.put_if(key, data, **options)

    repo = icefloe.Repository.open(Overtaken())
    repo.create_tag("ours", tip)
    assert repo.lookup_tag("ours") == tip
    assert repo.list_branches() == {"main", "first", "second"}


def test_nobody_guesses_where_the_log_that_would_tell_was_removed(storage):
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=1)
    repo = icefloe.Repository.create(storage, config=config)
    rival = icefloe.Repository.open(storage._storage)
    tip = repo.lookup_branch("main")

    def meanwhile():
        rival.create_branch("one", tip)
        rival.create_branch("two", tip)
        keys = [item.key for page in rival.storage.list("overwritten/") for item in page]
        rival.storage.delete(keys)

    storage.rival = meanwhile
    with pytest.raises(UnknownOutcomeError, match="removed"):
        repo.create_tag("ours", tip)
