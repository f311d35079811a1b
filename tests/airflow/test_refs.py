"""Branches, tags and repositories: what an attempt that comes second does."""

import pytest
from airflow.sdk import Asset, AssetAlias

import icefloe
from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.operators.branches import (
    IcechunkCreateBranchOperator,
    IcechunkDeleteBranchOperator,
    IcechunkResetBranchOperator,
)
from airflow_icechunk.operators.repositories import (
    IcechunkCreateRepositoryOperator,
    IcechunkSetStatusOperator,
)
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator, IcechunkDeleteTagOperator
from airflow_icechunk.task_groups import icechunk_transaction


def test_a_repository_is_created_once(tmp_path, connect, run):
    connect(host=str(tmp_path / "new"))
    first = run(IcechunkCreateRepositoryOperator(task_id="create"))
    assert run(IcechunkCreateRepositoryOperator(task_id="create")) == first
    assert icefloe.Repository.open(str(tmp_path / "new")).lookup_branch("main") == first


def test_a_new_repository_keeps_the_configuration(tmp_path, connect, run):
    connect(host=str(tmp_path / "new"))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7)
    run(IcechunkCreateRepositoryOperator(task_id="create", config=config))
    kept = icefloe.Repository.fetch_config(str(tmp_path / "new"))
    assert kept.inline_chunk_threshold_bytes == 7


def test_the_status_is_set_with_its_reason(repo, run):
    def set_status():
        return IcechunkSetStatusOperator(task_id="s", status="read_only", reason="maintenance")

    assert run(set_status()) == {"status": "read_only", "reason": "maintenance"}
    before = len([*repo.ops_log()])
    run(set_status())
    assert len([*repo.ops_log()]) == before
    assert repo.get_status().availability is icefloe.Availability.READ_ONLY


def test_an_unknown_status_is_refused(repo, run):
    with pytest.raises(ValueError, match="must be 'online' or 'read_only' or 'offline'"):
        run(IcechunkSetStatusOperator(task_id="s", status="asleep"))


def test_a_branch_starts_at_the_tip_of_main(repo, run):
    tip = repo.lookup_branch("main")
    assert run(IcechunkCreateBranchOperator(task_id="b", branch="dev")) == tip
    assert repo.lookup_branch("dev") == tip


def test_a_branch_that_an_earlier_attempt_made_will_do_though_main_moved(repo, run, commit):
    first = run(IcechunkCreateBranchOperator(task_id="b", branch="dev"))
    commit(0)
    assert run(IcechunkCreateBranchOperator(task_id="b", branch="dev")) == first


def test_a_branch_of_another_history_is_refused(repo, run, stage):
    repo.create_branch("dev", stage(0))
    other = stage(1)
    with pytest.raises(icefloe.AlreadyExistsError):
        run(IcechunkCreateBranchOperator(task_id="b", branch="dev", snapshot_id=other))


def test_a_branch_is_deleted_once(repo, run):
    repo.create_branch("dev", repo.lookup_branch("main"))
    assert run(IcechunkDeleteBranchOperator(task_id="d", branch="dev")) is True
    assert run(IcechunkDeleteBranchOperator(task_id="d", branch="dev")) is False


@pytest.mark.parametrize("given", [True, False], ids=["from given", "from remembered"])
def test_a_reset_that_landed_is_not_done_again_after_others_committed(
    repo, run, commit, instance, given
):
    first = repo.lookup_branch("main")
    bad = commit(0)
    arguments = {"from_snapshot_id": bad} if given else {}
    ti = instance("r")

    def reset():
        return IcechunkResetBranchOperator(
            task_id="r", branch="main", snapshot_id=first, **arguments
        )

    assert run(reset(), ti) == first
    theirs = commit(1)
    ti.retry()
    assert run(reset(), ti) == first
    assert repo.lookup_branch("main") == theirs


def test_a_reset_that_is_cleared_is_done_again(repo, run, commit, instance):
    first = repo.lookup_branch("main")
    commit(0)
    ti = instance("r")

    def reset():
        return IcechunkResetBranchOperator(task_id="r", branch="main", snapshot_id=first)

    run(reset(), ti)
    commit(1)
    ti.clear()
    run(reset(), ti)
    assert repo.lookup_branch("main") == first


def test_a_reset_from_elsewhere_fails(repo, run, commit, stage):
    other = stage(2)
    first = repo.lookup_branch("main")
    commit(0)
    with pytest.raises(icefloe.ConflictError):
        run(
            IcechunkResetBranchOperator(
                task_id="r", branch="main", snapshot_id=other, from_snapshot_id=first
            )
        )


def test_a_tag_at_the_same_snapshot_will_do(repo, run):
    tip = repo.lookup_branch("main")
    for _ in range(2):
        assert run(IcechunkCreateTagOperator(task_id="t", tag="v1", snapshot_id=tip)) == tip


def test_a_tag_at_another_snapshot_fails(repo, run, commit):
    first = repo.lookup_branch("main")
    repo.create_tag("v1", first)
    with pytest.raises(icefloe.AlreadyExistsError):
        run(IcechunkCreateTagOperator(task_id="t", tag="v1", snapshot_id=commit(0)))
    assert repo.lookup_tag("v1") == first


def test_a_retry_tags_the_tip_that_the_first_attempt_saw(repo, run, commit, instance):
    ti = instance("t")
    first = run(IcechunkCreateTagOperator(task_id="t", tag="v1"), ti)
    commit(0)
    ti.retry()
    assert run(IcechunkCreateTagOperator(task_id="t", tag="v1"), ti) == first


def test_the_name_of_a_deleted_tag_is_not_used_again(repo, run):
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)
    assert run(IcechunkDeleteTagOperator(task_id="d", tag="v1")) is True
    assert run(IcechunkDeleteTagOperator(task_id="d", tag="v1")) is False
    with pytest.raises(icefloe.AlreadyExistsError):
        run(IcechunkCreateTagOperator(task_id="t", tag="v1", snapshot_id=tip))


def tagged(repo):
    return {name: repo.lookup_tag(name) for name in repo.list_tags()}


def test_a_tag_that_is_there_can_be_kept(repo, run, commit, instance, said):
    first = repo.lookup_branch("main")
    repo.create_tag("v1", first)
    second = commit(0)
    ti = instance("t")
    found = run(tag_operator(snapshot_id=second, if_exists="keep"), ti)
    assert (found, tagged(repo)) == (first, {"v1": first})
    assert f"kept the tag v1 at {first}; {second} was to be tagged and is not" in said()
    # A name that is free is taken.
    assert run(tag_operator(tag="v2", snapshot_id=second, if_exists="keep")) == second


def test_a_tag_can_get_the_next_free_name(repo, run, commit):
    made = [repo.lookup_branch("main"), commit(0), commit(1), commit(2)]
    for one in made:
        assert run(tag_operator(snapshot_id=one, if_exists="suffix")) == one
    expected = dict(zip(["v1", "v1-2", "v1-3", "v1-4"], made, strict=True))
    assert tagged(repo) == expected
    # Whoever comes again finds what was made.
    for one in reversed(made):
        assert run(tag_operator(snapshot_id=one, if_exists="suffix")) == one
    assert tagged(repo) == expected


def test_the_name_of_a_deleted_tag_is_skipped_or_refused(repo, run, commit):
    first = repo.lookup_branch("main")
    for name in ("v1", "v1-2"):
        repo.create_tag(name, first)
        repo.delete_tag(name)
    with pytest.raises(icefloe.AlreadyExistsError, match=r"v1 was deleted once.*suffix"):
        run(tag_operator(snapshot_id=first, if_exists="keep"))
    assert run(tag_operator(snapshot_id=first, if_exists="suffix")) == first
    assert tagged(repo) == {"v1-3": first}


@pytest.mark.parametrize("if_exists", ["fail", "keep", "suffix"])
def test_a_retry_whose_tag_was_made_succeeds(repo, run, commit, instance, if_exists):
    ti = instance("t")
    first = run(tag_operator(if_exists=if_exists), ti)
    commit(0)
    ti.retry()
    assert run(tag_operator(if_exists=if_exists), ti) == first
    assert tagged(repo) == {"v1": first}


def test_what_to_do_about_a_tag_is_judged_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match="if_exists is 'replace', and must be 'fail' or 'keep' or"):
        tag_operator(if_exists="replace")
    with pytest.raises(ValueError, match="if_exists"):
        icechunk_transaction(write=lambda base: base, if_exists="replace")


@pytest.mark.parametrize("nothing", ["{{ none }}", "{{ '' }}"])
def test_a_name_that_renders_to_nothing_is_refused(repo, run, nothing):
    with pytest.raises(WrongArgumentError, match="tag is"):
        run(tag_operator(tag=nothing))
    with pytest.raises(WrongArgumentError, match="not a snapshot id"):
        run(tag_operator(snapshot_id=nothing))
    with pytest.raises(WrongArgumentError, match="branch is"):
        run(tag_operator(branch=nothing))
    assert tagged(repo) == {}


def tag_operator(*, tag="v1", **arguments):
    return IcechunkCreateTagOperator(task_id="t", tag=tag, **arguments)


def test_outlets_tell_of_the_snapshot(repo, run, instance):
    asset, alias = Asset("weather"), AssetAlias("made-later")
    ti = instance("t")
    tip = run(IcechunkCreateTagOperator(task_id="t", tag="v1", outlets=[asset, alias]), ti)
    expected = {
        "repo": repo.storage.url,
        "branch": "main",
        "snapshot_id": tip,
        "parent": repo.lookup_snapshot(tip).parent_id,
        "tag": "v1",
        "write_key": None,
    }
    events = ti.context["outlet_events"]
    assert events[asset].extra == expected
    (added,) = events[alias].asset_alias_events
    assert added.extra == expected
    assert added.dest_asset_key.uri == "icechunk://icechunk_default/?branch=main"


def test_before_airflow_3_3_a_task_without_a_state_store_still_works(repo, run):
    operator = IcechunkCreateTagOperator(task_id="t", tag="v1")
    assert run(operator, state_store=False) == repo.lookup_tag("v1")


@pytest.mark.parametrize("nothing", ["{{ none }}", "{{ '' }}"])
def test_a_branch_does_not_start_or_move_from_what_renders_to_nothing(repo, run, commit, nothing):
    first, tip = repo.lookup_branch("main"), commit(0)
    for operator in (
        IcechunkCreateBranchOperator(task_id="t", branch="dev", snapshot_id=nothing),
        IcechunkCreateBranchOperator(task_id="t", branch=nothing),
        IcechunkResetBranchOperator(
            task_id="t", branch="main", snapshot_id=first, from_snapshot_id=nothing
        ),
        IcechunkResetBranchOperator(task_id="t", branch="main", snapshot_id=nothing),
    ):
        with pytest.raises(WrongArgumentError):
            run(operator)
    assert repo.list_branches() == {"main"}
    assert repo.lookup_branch("main") == tip
