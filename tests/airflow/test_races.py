"""Two runs at one branch at once: a rival acts between what a task read and what it swaps."""

import pytest

import icefloe
from airflow_icechunk.operators.branches import IcechunkResetBranchOperator
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator, IcechunkPublishOperator


class Interrupted:
    """A storage that lets a rival act just before the next swaps of the repo object."""

    def __init__(self, storage):
        self._storage = storage
        self.rivals = []
        self.swaps = 0
        self.loses_answer = False

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if(self, key, data, **options):
        if key != "repo":
            return self._storage.put_if(key, data, **options)
        self.swaps += 1
        if self.rivals:
            self.rivals.pop(0)()
        version = self._storage.put_if(key, data, **options)
        if self.loses_answer:
            self.loses_answer = False
            raise icefloe.UnknownOutcomeError("the connection broke")
        return version


@pytest.fixture
def storage(repo):
    return Interrupted(repo.storage)


@pytest.fixture
def attempt(storage, run):
    """Run an operator whose repository a rival may interrupt."""

    def execute(operator, ti=None):
        operator.hook.__dict__["repository"] = icefloe.Repository.open(storage)
        return run(operator, ti)

    return execute


def commit_of(staged, **arguments):
    return IcechunkCommitOperator(task_id="commit", snapshot_ids=staged, **arguments)


def publish_of(snapshot_id, **arguments):
    return IcechunkPublishOperator(task_id="publish", snapshot_id=snapshot_id, **arguments)


def commits(repo):
    return [item.id for item in repo.ancestry(branch="main")]


def test_two_runs_that_race_for_a_branch_both_commit(
    repo, storage, attempt, run, stage, read, instance
):
    before = commits(repo)
    monday, tuesday = [stage(0, 1), stage(1, 1)], [stage(2, 2), stage(3, 2)]
    theirs = []

    def rival():
        theirs.append(run(commit_of(tuesday), instance("commit", run_id="tuesday")))

    storage.rivals = [rival]
    ours = attempt(commit_of(monday), instance("commit", run_id="monday"))
    assert commits(repo) == [ours, *theirs, *before]
    assert read() == [[1, 1], [1, 1], [2, 2], [2, 2]]
    assert storage.swaps == 2, "the first swap had to lose"


def test_two_runs_that_race_for_the_same_chunks_do_not_overwrite_each_other(
    repo, storage, attempt, run, stage, read, instance
):
    monday, tuesday = stage(0, 1), stage(0, 2)
    storage.rivals = [lambda: run(commit_of(tuesday), instance("commit", run_id="tuesday"))]
    with pytest.raises(icefloe.ConflictError):
        attempt(commit_of(monday), instance("commit", run_id="monday"))
    assert read()[0] == [2, 2]
    assert len(commits(repo)) == 3


def test_two_attempts_of_one_commit_that_race_end_in_one_commit(
    repo, storage, attempt, run, stage, instance
):
    staged = [stage(0), stage(1)]
    before = commits(repo)
    ti = instance("commit")
    theirs = []
    storage.rivals = [lambda: theirs.append(run(commit_of(staged), ti))]
    assert [attempt(commit_of(staged), ti)] == theirs
    assert commits(repo) == [*theirs, *before]


def test_a_swap_that_landed_though_its_answer_was_lost_is_found_by_the_retry(
    repo, storage, attempt, stage, commit, instance
):
    staged = [stage(0), stage(1)]
    before = commits(repo)
    ti = instance("commit")
    storage.loses_answer = True
    first = attempt_or_none(attempt, commit_of(staged), ti)
    theirs = commit(3)
    ti.retry()
    landed = attempt(commit_of(staged), ti)
    assert first in (None, landed)
    assert commits(repo) == [theirs, landed, *before]


def attempt_or_none(attempt, operator, ti):
    try:
        return attempt(operator, ti)
    except icefloe.UnknownOutcomeError:
        return None


def test_a_tip_that_moves_while_it_is_published_on_is_merged_with(
    repo, storage, attempt, stage, commit, read
):
    staged = stage(0, 1)
    storage.rivals = [lambda: commit(1, 2)]
    published = attempt(publish_of(staged))
    assert published != staged
    assert read()[:2] == [[1, 1], [2, 2]]


def test_a_tip_that_moves_while_it_is_published_on_fails_if_that_is_asked(
    repo, storage, attempt, stage, commit, read
):
    staged = stage(0, 1)
    storage.rivals = [lambda: commit(1, 2)]
    with pytest.raises(icefloe.ConflictError):
        attempt(publish_of(staged, if_moved="fail"))
    assert read()[:2] == [[0, 0], [2, 2]]


def test_a_branch_that_moves_while_it_is_reset_is_left_alone(repo, storage, attempt, commit):
    back = commits(repo)[-1]
    commit(0)
    theirs = []
    storage.rivals = [lambda: theirs.append(commit(1))]
    operator = IcechunkResetBranchOperator(task_id="reset", branch="main", snapshot_id=back)
    with pytest.raises(icefloe.ConflictError):
        attempt(operator)
    assert [repo.lookup_branch("main")] == theirs


def test_a_tag_that_appears_meanwhile_counts(repo, storage, attempt, commit):
    first = repo.lookup_branch("main")
    second = commit(0)
    for wanted, taken in ((first, first), (first, second)):
        name = f"v-{taken}"
        operator = IcechunkCreateTagOperator(task_id="tag", tag=name, snapshot_id=wanted)
        storage.rivals = [lambda name=name, taken=taken: repo.create_tag(name, taken)]
        if wanted == taken:
            assert attempt(operator) == wanted
        else:
            with pytest.raises(icefloe.AlreadyExistsError):
                attempt(operator)
        assert repo.lookup_tag(name) == taken
