"""`@task.icechunk`: commits what a function wrote, once; and nothing if it fails."""

import pytest
import zarr
from airflow.sdk import DAG, task

import icefloe


def operator_of(function, *args, **options):
    """A fresh operator, as each attempt has one."""
    with DAG("dag"):
        return task.icechunk(**options)(function)(*args).operator


def write_row(row, store):
    zarr.open_array(store, path="t2m")[row] = row + 1


def test_what_a_function_wrote_is_committed(repo, run, read):
    snapshot_id = run(operator_of(write_row, 1))
    assert repo.lookup_branch("main") == snapshot_id
    assert read()[1] == [2, 2]
    snapshot = repo.lookup_snapshot(snapshot_id)
    assert snapshot.metadata["airflow.task_id"] == "write_row"
    assert snapshot.message == "write_row of dag, manual__2026-01-01T00:00:00+00:00"


def test_what_a_function_returns_is_kept_with_the_commit(repo, run):
    def write(session) -> dict:
        zarr.open_array(session.store, path="t2m")[0] = 1
        return {"rows": 1}

    snapshot_id = run(operator_of(write, metadata={"source": "era5"}))
    metadata = repo.lookup_snapshot(snapshot_id).metadata
    assert (metadata["rows"], metadata["source"]) == (1, "era5")


def test_a_function_that_fails_commits_nothing(repo, run, read):
    def write(store):
        write_row(0, store)
        raise ZeroDivisionError

    before = repo.lookup_branch("main")
    with pytest.raises(ZeroDivisionError):
        run(operator_of(write))
    assert repo.lookup_branch("main") == before


def test_a_retry_of_a_commit_that_landed_does_not_call_the_function(repo, run, instance):
    calls = []

    def append(store):
        calls.append(1)
        array = zarr.open_array(store, path="t2m")
        array.resize((array.shape[0] + 1, 2))

    ti = instance("append", max_tries=3)
    first = run(operator_of(append, retries=3), ti)
    ti.retry()
    assert run(operator_of(append, retries=3), ti) == first
    assert calls == [1]
    assert repo.lookup_branch("main") == first


def test_a_task_that_is_cleared_does_its_work_again(repo, run, instance):
    ti = instance("write_row", max_tries=2)
    first = run(operator_of(write_row, 1, retries=2), ti)
    ti.max_tries, ti.try_number = ti.try_number + 2, 2
    assert run(operator_of(write_row, 1, retries=2), ti) != first


def test_clearing_another_task_of_the_run_does_not_make_a_retry_write_twice(repo, run, instance):
    """The run's clear number would: it counts all clears of the run."""
    ti = instance("write_row", max_tries=1)
    first = run(operator_of(write_row, 1, retries=1), ti)
    ti.clear_number = 1
    ti.retry()
    assert run(operator_of(write_row, 1, retries=1), ti) == first


def test_mapped_tasks_do_not_take_each_others_writes(repo, run, instance):
    made = {
        run(operator_of(write_row, row), instance("write_row", map_index=row)) for row in (0, 1)
    }
    assert len(made) == 2


def test_a_zombie_that_commits_after_its_retry_changes_nothing(repo, run, read, instance):
    """The first attempt is killed, lives on, and commits when the second is done."""
    ti = instance("write")
    seen = []

    def write(store, session):
        if not seen:
            seen.append(1)
            # While this attempt is at work, Airflow gives up on it, and the retry does it all.
            ti.retry()
            seen.append(run(operator_of(write), ti))
        zarr.open_array(store, path="t2m")[0] += 1

    zombie = run(operator_of(write), ti)
    assert zombie == seen[1]
    assert read()[0] == [1, 1]
    assert len([*repo.ancestry(branch="main")]) == 3


def test_a_commit_is_carried_over_what_others_committed_meanwhile(repo, run, read, commit):
    def write(store):
        commit(3, 7)
        write_row(0, store)

    run(operator_of(write))
    assert (read()[0], read()[3]) == ([1, 1], [7, 7])


def test_a_commit_that_may_not_be_carried_over_fails(repo, run, commit):
    def write(store):
        commit(3, 7)
        write_row(0, store)

    with pytest.raises(icefloe.ConflictError):
        run(operator_of(write, rebase=False))


def test_a_staged_write_moves_no_branch(repo, run, instance):
    before = repo.lookup_branch("main")
    ti = instance("write_row")
    staged = run(operator_of(write_row, 0, stage=True), ti)
    assert repo.lookup_branch("main") == before
    assert repo.lookup_snapshot(staged).parent_id == before
    ti.retry()
    assert run(operator_of(write_row, 0, stage=True), ti) == staged


def test_a_staged_write_stands_on_another(repo, run, stage):
    prepared = stage(3, 5)
    staged = run(operator_of(write_row, 0, stage=True, base=prepared))
    assert repo.lookup_snapshot(staged).parent_id == prepared


def test_a_commit_has_no_base(repo, run):
    with pytest.raises(ValueError, match="base goes with stage=True"):
        run(operator_of(write_row, 0, base=repo.lookup_branch("main")))


def test_where_nothing_changed_there_is_no_commit(repo, run):
    def look(store):
        zarr.open_array(store, path="t2m", mode="r")

    assert run(operator_of(look)) == repo.lookup_branch("main")


def test_what_is_no_mapping_cannot_be_kept(repo, run):
    def write(store):
        return [1, 2]

    before = repo.lookup_branch("main")
    with pytest.raises(TypeError, match="returned list"):
        run(operator_of(write))
    assert repo.lookup_branch("main") == before


def test_an_async_function_is_refused():
    async def write(store):
        pass

    with pytest.raises(TypeError, match="no async function"):
        operator_of(write)
