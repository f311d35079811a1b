"""Two writers meet: the rival acts before each single storage call of ours in turn."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrency.hooks import (
    At,
    Hooked,
    check_history,
    chunks,
    create,
    logged,
    messages,
    run_in_turns,
    write,
)
from icefloe import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    MemoryStorage,
    NotFoundError,
    RebaseFailedError,
    Repository,
    StorageError,
    VersionSelection,
)

KEY = "dag/run/task"
LEAST_CALLS = 3
"""Reading the repo object, backing it up and swapping it: fewer moments would prove nothing."""


def moments(act, rival, check, *, prepare=lambda repo: None):
    """Run `act` once for every storage call in it, with the rival acting before that call.

    Args:
        act: called with our repository and what `prepare` returned; gives a function to call.
        rival: called with another handle on the repository and what `prepare` returned.
        check: called with a fresh handle, the answer or error of ours, and what was prepared.
        prepare: called with a handle on the new repository.
    """
    for number in count():
        plain = MemoryStorage()
        prepared = prepare(create(plain))
        at = At(number, lambda plain=plain, it=prepared: rival(Repository.open(plain), it))
        step = act(Repository.open(Hooked(plain, at)), prepared)
        at.arm()
        try:
            answer = step()
        except Exception as error:
            answer = error
        if not at.fired:
            assert number >= LEAST_CALLS
            return
        check(Repository.open(plain), answer, prepared)


def committing(at, **options):
    """A session opened now, which commits a chunk later."""

    def act(repo, prepared):
        session = repo.writable_session("main")
        write(session, at)
        return lambda: session.commit("ours", **options)

    return act


def commit(repo, at, message="theirs", **options):
    session = repo.writable_session("main")
    write(session, at)
    return session.commit(message, **options)


def test_of_two_committers_the_second_conflicts_and_shows_nothing():
    def check(repo, answer, prepared):
        assert isinstance(answer, ConflictError)
        assert answer.kind == "branch-moved"
        assert messages(repo) == ["theirs"]
        assert chunks(repo) == {2, 15}
        assert logged(repo) == {"NEW_COMMIT": 1}
        check_history(repo)

    moments(committing(1), lambda repo, _: commit(repo, 2), check)


def test_two_committers_of_other_chunks_both_land_when_ours_may_rebase():
    def check(repo, answer, prepared):
        assert repo.lookup_branch("main") == answer
        assert messages(repo) == ["ours", "theirs"]
        assert chunks(repo) == {1, 2, 15}
        assert logged(repo) == {"NEW_COMMIT": 2}
        check_history(repo)

    ours = committing(1, rebase_with=ConflictDetector())
    moments(ours, lambda repo, _: commit(repo, 2), check)


def test_two_committers_of_one_chunk_never_lose_one_silently():
    def check(repo, answer, prepared):
        assert isinstance(answer, RebaseFailedError)
        assert answer.conflicts[0].conflicted_chunks == [[1]]
        assert messages(repo) == ["theirs"]

    solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.Fail)
    ours = committing(1, rebase_with=solver)
    moments(ours, lambda repo, _: commit(repo, 1), check)


@pytest.mark.parametrize("solver", [None, ConflictDetector()])
def test_a_commit_does_not_undo_a_reset_of_its_branch(solver):
    def rival(repo, _):
        history = [*repo.ancestry(branch="main")]
        repo.reset_branch("main", history[1].id)

    def check(repo, answer, prepared):
        assert isinstance(answer, ConflictError)
        assert answer.kind == ("branch-moved" if solver is None else "history-rewritten")
        assert next(repo.ancestry(branch="main")).message == "root"
        assert logged(repo) == {"BRANCH_RESET": 1}

    moments(committing(1, rebase_with=solver), rival, check)


def test_a_commit_does_not_bring_a_deleted_branch_back():
    def act(repo, _):
        session = repo.writable_session("dev")
        write(session, 1)
        return lambda: session.commit("ours", rebase_with=ConflictDetector())

    def check(repo, answer, prepared):
        assert isinstance(answer, NotFoundError)
        assert repo.list_branches() == {"main"}
        assert logged(repo) == {"BRANCH_CREATED": 1, "BRANCH_DELETED": 1}

    moments(
        act,
        lambda repo, _: repo.delete_branch("dev"),
        check,
        prepare=lambda repo: repo.create_branch("dev", repo.lookup_branch("main")),
    )


def test_a_tag_made_meanwhile_stays_where_it_was_put():
    def check(repo, answer, prepared):
        assert repo.lookup_tag("v1") == prepared
        assert repo.lookup_branch("main") == answer
        assert logged(repo) == {"NEW_COMMIT": 1, "TAG_CREATED": 1}

    moments(
        committing(1),
        lambda repo, tip: repo.create_tag("v1", tip),
        check,
        prepare=lambda repo: repo.lookup_branch("main"),
    )


def staged(repo):
    """Two staged writes of other chunks."""
    ids = []
    for at in (1, 2):
        session = repo.writable_session("main")
        write(session, at)
        ids.append(session.flush(f"staged {at}"))
    return ids


def test_a_merge_takes_a_commit_made_meanwhile_along():
    def check(repo, answer, prepared):
        assert repo.lookup_branch("main") == answer
        assert messages(repo) == ["merged", "theirs"]
        assert chunks(repo) == {1, 2, 3, 15}
        assert logged(repo) == {"NEW_DETACHED_SNAPSHOT": 2, "NEW_COMMIT": 2}
        check_history(repo)

    moments(
        lambda repo, ids: lambda: repo.merge_snapshots("main", ids, "merged"),
        lambda repo, _: commit(repo, 3),
        check,
        prepare=staged,
    )


def test_a_merge_that_meets_a_commit_of_its_chunk_is_refused():
    def check(repo, answer, prepared):
        assert isinstance(answer, RebaseFailedError)
        assert messages(repo) == ["theirs"]

    moments(
        lambda repo, ids: lambda: repo.merge_snapshots("main", ids, "merged"),
        lambda repo, _: commit(repo, 2),
        check,
        prepare=staged,
    )


def audited(repo):
    return repo.merge_snapshots(None, staged(repo), "merged")


def test_a_publication_takes_a_commit_made_meanwhile_along():
    def check(repo, answer, prepared):
        assert repo.lookup_branch("main") == answer
        assert messages(repo) == ["merged", "theirs"]
        assert chunks(repo) == {1, 2, 3, 15}
        check_history(repo)

    moments(
        lambda repo, it: lambda: repo.publish("main", it),
        lambda repo, _: commit(repo, 3),
        check,
        prepare=audited,
    )


@pytest.mark.parametrize("tip_moved", [False, True])
def test_what_two_publish_is_published_once(tip_moved):
    answers = []

    def prepare(repo):
        snapshot_id = audited(repo)
        if tip_moved:
            commit(repo, 3)
        return snapshot_id

    def check(repo, answer, prepared):
        assert answer == answers.pop() == repo.lookup_branch("main")
        assert messages(repo) == ["merged", "theirs"][: 1 + tip_moved]
        check_history(repo)

    moments(
        lambda repo, it: lambda: repo.publish("main", it),
        lambda repo, it: answers.append(repo.publish("main", it)),
        check,
        prepare=prepare,
    )


# A solver that prefers ours would commit over its own twin, if the key did not hold it back.
INSISTENT = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)


def write_once(repo, verb, ids, solver=INSISTENT):
    """One attempt at a write under the key, to be called for the snapshot's id."""
    if verb == "merge":
        return lambda: repo.merge_snapshots("main", ids, "once", write_key=KEY)
    if verb == "merge detached":
        return lambda: repo.merge_snapshots(None, ids, "once", write_key=KEY)
    session = repo.writable_session("main")
    write(session, 4)
    options = {"rebase_with": solver} if verb == "commit" else {}
    return lambda: getattr(session, verb)("once", write_key=KEY, **options)


ONCE = pytest.mark.parametrize("verb", ["commit", "flush", "merge", "merge detached"])


def check_once(repo, verb, answers):
    """Exactly one snapshot carries the key."""
    assert len(set(answers)) == 1, answers
    branch = "main" if verb in ("commit", "merge") else None
    assert repo.find_write(KEY, branch) == answers[0]
    kind = "NEW_COMMIT" if branch else "NEW_DETACHED_SNAPSHOT"
    once = 1 if branch else 3
    assert logged(repo).get(kind, 0) == once
    if branch:
        assert messages(repo) == ["once"]
        check_history(repo)


@ONCE
def test_two_attempts_at_one_write_key_end_in_one_snapshot_whenever_they_meet(verb):
    answers = []

    def check(repo, answer, prepared):
        check_once(repo, verb, [answer, answers.pop()])

    moments(
        lambda repo, ids: write_once(repo, verb, ids),
        lambda repo, ids: answers.append(write_once(repo, verb, ids)()),
        check,
        prepare=staged,
    )


@pytest.mark.parametrize("solver", [INSISTENT, ConflictDetector()])
def test_a_commit_that_must_rebase_knows_its_own_twin_whenever_they_meet(solver):
    answers = []

    def act(repo, _):
        step = write_once(repo, "commit", [], solver)
        commit(repo, 3)
        return step

    def check(repo, answer, prepared):
        assert answer == answers.pop() == repo.lookup_branch("main")
        assert messages(repo) == ["once", "theirs"]

    moments(act, lambda repo, _: answers.append(write_once(repo, "commit", [])()), check)


ORDERS = st.lists(st.integers(0, 1), max_size=40)


@ONCE
@given(order=ORDERS)
@settings(max_examples=8, deadline=None)
def test_two_threads_with_one_write_key_end_in_one_snapshot_in_any_order(verb, order):
    plain = MemoryStorage()
    ids = staged(create(plain))
    answers = run_in_turns(
        plain, order, lambda storage, _: write_once(Repository.open(storage), verb, ids)()
    )
    check_once(Repository.open(plain), verb, answers)


@given(order=ORDERS)
@settings(max_examples=12, deadline=None)
def test_two_threads_that_commit_other_chunks_both_land_in_any_order(order):
    plain = MemoryStorage()
    create(plain)

    def work(storage, writer):
        session = Repository.open(storage).writable_session("main")
        write(session, writer)
        return session.commit(f"writer {writer}", rebase_with=ConflictDetector())

    answers = run_in_turns(plain, order, work)
    repo = Repository.open(plain)
    assert chunks(repo) == {0, 1, 15}
    assert sorted(messages(repo)) == ["writer 0", "writer 1"]
    assert repo.lookup_branch("main") in answers
    assert logged(repo) == {"NEW_COMMIT": 2}
    check_history(repo)


class LosesAnswers:
    """The next swaps of `repo` land, and each looks like a lost race or a failure."""

    def __init__(self, storage, error, *, rival=lambda: None):
        self._storage = storage
        self._error = error
        self._rival = rival
        self.left = 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if(self, key, data, **options):
        version = self._storage.put_if(key, data, **options)
        if key == "repo" and self.left:
            self.left -= 1
            self._rival()
            raise self._error
        return version


@ONCE
@pytest.mark.parametrize("with_key", [True, False])
def test_a_swap_that_landed_without_an_answer_is_not_made_again(verb, with_key):
    plain = MemoryStorage()
    ids = staged(create(plain))
    rival = Repository.open(plain)
    lost = ConflictError("precondition failed", kind="precondition-failed")
    storage = LosesAnswers(
        plain, lost, rival=lambda: rival.create_tag("v1", rival.lookup_branch("main"))
    )
    step = write_once(Repository.open(storage), verb, ids)
    storage.left = 1
    if with_key:
        check_once(rival, verb, [step()])
    elif verb == "commit":
        session = Repository.open(storage).writable_session("main")
        write(session, 4)
        assert session.commit("once", rebase_with=ConflictDetector()) == rival.lookup_branch("main")
        assert messages(rival) == ["once"]
    else:
        session = Repository.open(storage).writable_session("main")
        write(session, 4)
        session.flush("once")
        assert logged(rival)["NEW_DETACHED_SNAPSHOT"] == 3
    assert rival.list_tags() == {"v1"}


@ONCE
def test_a_retry_after_a_swap_that_failed_but_landed_finds_its_own_write(verb):
    plain = MemoryStorage()
    ids = staged(create(plain))
    storage = LosesAnswers(plain, StorageError("the connection broke"))
    step = write_once(Repository.open(storage), verb, ids)
    storage.left = 1
    with pytest.raises(StorageError, match="the connection broke"):
        step()
    repo = Repository.open(plain)
    check_once(repo, verb, [write_once(repo, verb, ids)()])


def test_manifests_are_written_once_through_all_attempts_of_a_rebase():
    plain = MemoryStorage()
    create(plain)
    rival = Repository.open(plain)
    with_b = rival.writable_session("main")
    with_b.set_node("/b", b'{"zarr_format": 3, "node_type": "group"}')
    with_b.commit("another node")
    written, rivals = [], iter(range(4))

    def before(verb, first):
        if verb == "put_many":
            written.extend(key for key, _ in first if key.startswith("manifests/"))
        if (verb, first) == ("put_if", "repo") and (number := next(rivals, None)) is not None:
            session = rival.writable_session("main")
            session.set_node(f"/b/{number}", b'{"zarr_format": 3, "node_type": "group"}')
            session.commit(f"rival {number}")

    session = Repository.open(Hooked(plain, before)).writable_session("main")
    write(session, 1)
    session.commit("ours", rebase_with=ConflictDetector())
    repo = Repository.open(plain)
    head = next(repo.ancestry(branch="main"))
    assert head.metadata["__icechunk"] == {"rebase_attempts": 4}
    assert len(written) == 1
    assert [item.id for item in repo.list_manifest_files(head.id)] == [
        key.removeprefix("manifests/") for key in written
    ]
    assert chunks(repo) == {1, 15}
    check_history(repo)
