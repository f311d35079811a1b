"""Writers that meet: interleavings forced one by one, then many processes at once."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from icefloe import (
    AlreadyExistsError,
    ConflictError,
    MemoryStorage,
    NotFoundError,
    ReadOnlyError,
    Repository,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageRetriesSettings,
)
from icefloe.assets import REPO, Assets
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.updates import UpdateKind

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
WORKERS, COMMITS = 8, 5


class Interrupted:
    """A storage that lets a rival act just before a verb touches the repo object."""

    def __init__(self, storage):
        self._storage = storage
        self.verb = None
        self.rivals = iter(())

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def interrupt(self, verb, *rivals):
        self.verb, self.rivals = verb, iter(rivals)

    def _meet(self, verb, key):
        if verb == self.verb and key == REPO:
            next(self.rivals, lambda: None)()

    def copy(self, source, target, **options):
        self._meet("backup", source)
        self._storage.copy(source, target, **options)

    def put_many(self, items, **options):
        # A commit sends the backup together with its other files.
        if any(key.startswith("overwritten/") for key, _ in items):
            self._meet("backup", REPO)
        self._storage.put_many(items, **options)

    def put_if(self, key, data, **options):
        self._meet("put_if", key)
        return self._storage.put_if(key, data, **options)


@pytest.fixture
def plain():
    return MemoryStorage()


@pytest.fixture
def rival(plain):
    return Repository.create(plain)


@pytest.fixture
def storage(plain, rival):
    return Interrupted(plain)


@pytest.fixture
def repo(storage):
    return Repository.open(storage)


# Between our read of the repo object and its backup, and between the backup and the swap.
moments = pytest.mark.parametrize("verb", ["backup", "put_if"])


def commit(repo, name, branch="main"):
    session = repo.writable_session(branch)
    session.set_node(f"/{name}", GROUP)
    return session.commit(name)


def history(repo, branch="main"):
    return [info.message for info in repo.ancestry(branch=branch)]


def logged(repo):
    return Counter(UpdateKind(update.kind).name for update in repo.ops_log())


@moments
def test_a_commit_to_another_branch_in_between_is_kept_and_ours_goes_through(
    repo, rival, storage, verb
):
    rival.create_branch("dev", rival.lookup_branch("main"))
    storage.interrupt(verb, lambda: commit(rival, "theirs", "dev"))
    commit(repo, "ours")
    assert history(rival) == ["ours", "Repository initialized"]
    assert history(rival, "dev") == ["theirs", "Repository initialized"]
    assert logged(rival) == {"REPO_INITIALIZED": 1, "BRANCH_CREATED": 1, "NEW_COMMIT": 2}


@moments
def test_a_commit_to_the_same_branch_in_between_wins_and_ours_conflicts(repo, rival, storage, verb):
    storage.interrupt(verb, lambda: commit(rival, "theirs"))
    session = repo.writable_session("main")
    session.set_node("/ours", GROUP)
    with pytest.raises(ConflictError) as caught:
        session.commit("ours")
    assert caught.value.kind == "branch-moved"
    assert session.has_uncommitted_changes
    assert history(rival) == ["theirs", "Repository initialized"]
    assert rival.readonly_session("main").paths() == ["/theirs"]
    assert logged(rival) == {"REPO_INITIALIZED": 1, "NEW_COMMIT": 1}


@moments
def test_several_rivals_in_a_row_are_all_kept(repo, rival, storage, verb):
    initial = rival.lookup_branch("main")
    rivals = [lambda n=n: rival.create_tag(f"v{n}", initial) for n in range(3)]
    storage.interrupt(verb, *rivals)
    commit(repo, "ours")
    assert rival.list_tags() == {"v0", "v1", "v2"}
    assert history(rival) == ["ours", "Repository initialized"]
    assert logged(rival) == {"REPO_INITIALIZED": 1, "TAG_CREATED": 3, "NEW_COMMIT": 1}


@moments
@pytest.mark.parametrize("ref", ["branch", "tag"])
def test_a_name_taken_in_between_is_not_given_twice(repo, rival, storage, verb, ref):
    initial = rival.lookup_branch("main")
    theirs = commit(rival, "theirs")
    storage.interrupt(verb, lambda: getattr(rival, f"create_{ref}")("name", theirs))
    with pytest.raises(AlreadyExistsError):
        getattr(repo, f"create_{ref}")("name", initial)
    assert getattr(rival, f"lookup_{ref}")("name") == theirs


@moments
def test_a_conditional_reset_sees_a_commit_in_between(repo, rival, storage, verb):
    initial = rival.lookup_branch("main")
    tip = commit(rival, "first")
    storage.interrupt(verb, lambda: commit(rival, "second"))
    with pytest.raises(ConflictError):
        repo.reset_branch("main", initial, from_snapshot_id=tip)
    assert history(rival) == ["second", "first", "Repository initialized"]


@moments
def test_a_branch_deleted_in_between_is_not_committed_to(repo, rival, storage, verb):
    rival.create_branch("dev", rival.lookup_branch("main"))
    storage.interrupt(verb, lambda: rival.delete_branch("dev"))
    with pytest.raises(NotFoundError):
        commit(repo, "ours", "dev")
    assert rival.list_branches() == {"main"}


@moments
def test_a_repository_that_goes_read_only_in_between_is_not_written(
    repo, rival, plain, storage, verb
):
    def stop():
        assets = Assets(plain)
        info, version = assets.repo()
        status = RepoStatus(Availability.READ_ONLY, 1)
        assets.swap_repo(replace(info, status=status), expected=version)

    storage.interrupt(verb, stop)
    with pytest.raises(ReadOnlyError):
        commit(repo, "ours")
    assert history(rival) == ["Repository initialized"]


def test_endless_rivals_end_in_an_error_and_nothing_of_ours_is_seen(repo, rival, storage):
    retries = RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=3))
    repo = repo.reopen(RepositoryConfig(repo_update_retries=retries))
    initial = rival.lookup_branch("main")
    storage.interrupt("put_if", *(lambda n=n: rival.create_tag(f"v{n}", initial) for n in range(9)))
    with pytest.raises(ConflictError) as caught:
        commit(repo, "ours")
    assert caught.value.kind == "update-attempts-exhausted"
    assert rival.list_tags() == {"v0", "v1", "v2"}
    assert history(rival) == ["Repository initialized"]


def test_of_two_creators_one_creates_and_the_other_learns_of_it():
    plain = MemoryStorage()
    storage = Interrupted(plain)
    storage.interrupt("put_if", lambda: commit(Repository.create(plain), "theirs"))
    with pytest.raises(AlreadyExistsError):
        Repository.create(storage)
    assert history(Repository.open(plain)) == ["theirs", "Repository initialized"]


def test_open_or_create_opens_what_a_rival_created_in_between():
    plain = MemoryStorage()
    storage = Interrupted(plain)
    storage.interrupt("put_if", lambda: commit(Repository.open_or_create(plain), "theirs"))
    assert history(Repository.open_or_create(storage)) == ["theirs", "Repository initialized"]


WORKER = """
import sys
from icefloe import ConflictError, Repository

url, worker, commits = sys.argv[1], sys.argv[2], int(sys.argv[3])
repo = Repository.open_or_create(url)
for number in range(commits):
    while True:
        session = repo.writable_session("main")
        session.set_node(f"/{worker}-{number}", b'{"zarr_format": 3, "node_type": "group"}')
        try:
            session.commit(f"{worker}-{number}")
        except ConflictError:
            continue
        break
"""


def test_many_processes_create_and_commit_and_nothing_is_lost(tmp_path):
    url = str(tmp_path / "repo")
    command = [sys.executable, "-c", WORKER, url]
    workers = [
        subprocess.Popen(
            [*command, f"w{worker}", str(COMMITS)],
            env={"PYTHONPATH": ":".join(filter(None, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(WORKERS)
    ]
    for worker in workers:
        _, complaint = worker.communicate(timeout=60)
        assert worker.returncode == 0, complaint
    repo = Repository.open(url)
    names = {f"w{worker}-{number}" for worker in range(WORKERS) for number in range(COMMITS)}
    assert set(repo.readonly_session("main").paths()) == {f"/{name}" for name in names}
    messages = history(repo)
    assert (len(messages), set(messages[:-1])) == (len(names) + 1, names)
    for worker in range(WORKERS):
        mine = [message for message in messages if message.startswith(f"w{worker}-")]
        assert mine == [f"w{worker}-{number}" for number in reversed(range(COMMITS))]
    assert logged(repo) == {"REPO_INITIALIZED": 1, "NEW_COMMIT": len(names)}
    ids = [info.id for info in repo.ancestry(branch="main")][:-1]
    assert [str(update.new_snap_id) for update in repo.ops_log()][:-1] == ids
