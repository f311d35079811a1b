"""Checks of a publication: they judge what a branch will be against what it is at that moment."""

import pytest

from icefloe import ConflictError, InvalidInputError, MemoryStorage, Repository

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def commit(repo, name):
    session = repo.writable_session("main")
    session.set_node(f"/{name}", GROUP)
    return session.commit(name)


def stage(repo, name, on=None):
    session = repo.writable_session(None if on else "main", snapshot_id=on)
    session.set_node(f"/{name}", GROUP)
    return session.flush(name)


class Seen:
    """A check that notes what it is shown, and lets others act meanwhile."""

    def __init__(self, *actions):
        self.calls = []
        self._actions = iter(actions)

    def __call__(self, before, after, diff):
        self.calls.append((set(before.paths()), set(after.paths()), diff.new_groups))
        assert before.read_only
        assert after.read_only
        next(self._actions, lambda: None)()


@pytest.fixture
def repo():
    repo = Repository.create(MemoryStorage())
    commit(repo, "start")
    return repo


def test_where_nothing_moved_it_sees_the_staged_snapshot(repo):
    check = Seen()
    staged = stage(repo, "new")
    assert repo.publish("main", staged, check=check) == staged
    assert check.calls == [({"/start"}, {"/start", "/new"}, {"/new"})]
    repo.publish("main", staged, check=check)
    assert len(check.calls) == 1


def test_where_the_branch_moved_it_sees_the_merge_and_only_its_own_changes(repo):
    check = Seen()
    staged = stage(repo, "new")
    commit(repo, "theirs")
    tip = repo.publish("main", staged, check=check)
    assert tip != staged
    assert check.calls == [({"/start", "/theirs"}, {"/start", "/theirs", "/new"}, {"/new"})]


@pytest.mark.parametrize("moved", [False, True])
def test_it_judges_again_where_the_branch_moves_meanwhile(repo, moved):
    staged = stage(repo, "new")
    if moved:
        commit(repo, "before")
    check = Seen(lambda: commit(repo, "meanwhile"), lambda: repo.create_branch("dev", staged))
    repo.publish("main", staged, check=check)
    assert [before - {"/before"} for before, *_ in check.calls] == [
        {"/start"},
        {"/start", "/meanwhile"},
    ]
    assert {"/meanwhile", "/new"} <= set(repo.readonly_session("main").paths())


@pytest.mark.parametrize("moved", [False, True])
def test_what_it_refuses_is_not_published(repo, moved):
    staged = stage(repo, "new")
    if moved:
        commit(repo, "theirs")
    tip = repo.lookup_branch("main")

    def refuse(before, after, diff):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        repo.publish("main", staged, check=refuse)
    assert repo.lookup_branch("main") == tip
    repo.publish("main", staged)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_branch_that_moved_can_be_a_failure(repo, levels):
    staged = stage(repo, "new")
    if levels == 2:
        staged = stage(repo, "newer", on=staged)
    base = repo.lookup_branch("main")
    tip = commit(repo, "theirs")
    check = Seen()
    with pytest.raises(ConflictError) as caught:
        repo.publish("main", staged, check=check, if_moved="fail")
    assert caught.value.kind == "branch-moved"
    assert (caught.value.expected_parent, caught.value.actual_parent) == (base, tip)
    assert check.calls == []
    repo.reset_branch("main", base)
    tip = repo.publish("main", staged, check=check, if_moved="fail")
    assert repo.publish("main", staged, check=check, if_moved="fail") == tip
    assert check.calls[0][2] == ({"/new"} if levels == 1 else {"/new", "/newer"})


def test_a_branch_that_moves_during_the_check_is_a_failure_too(repo):
    staged = stage(repo, "new")
    with pytest.raises(ConflictError):
        repo.publish("main", staged, check=Seen(lambda: commit(repo, "theirs")), if_moved="fail")
    assert "/new" not in repo.readonly_session("main").paths()


def test_what_to_do_where_the_branch_moved_is_one_of_two(repo):
    with pytest.raises(InvalidInputError, match="'fail', not 'ignore'"):
        repo.publish("main", stage(repo, "new"), if_moved="ignore")
