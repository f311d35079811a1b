"""Branches, tags and repositories: what an attempt that comes second does."""

import pytest
from airflow.sdk import Asset, AssetAlias

import icefloe
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
    with pytest.raises(ValueError, match="none of online, read_only, offline"):
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
