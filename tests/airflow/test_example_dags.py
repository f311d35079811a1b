"""The example Dags run, on a database of their own."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from netcdf_files import save_rain

# Airflow imports the test client of starlette, which wants another HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def empty_repo(tmp_path, connect):
    url = str(tmp_path / "repo")
    connect(host=url)
    return icefloe.Repository.create(url)


@pytest.fixture
def on_local_spark(database, connect, monkeypatch):
    connect("spark_default", "spark", host="local[1]")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def values(repo, path):
    store = repo.readonly_session("main").store
    return zarr.open_array(store, path=path, mode="r")[...]


@pytest.fixture
def clear_and_run(monkeypatch):
    """Clear all tasks of a run that has ended, and run them again, as a user does."""

    def again(dag, run, **arguments):
        def same(*, session, dag, **about):
            found = session.get(type(run), run.id)
            found.dag, found.state = dag, "running"
            session.commit()
            return found

        # `dag.test` clears the run of this date, but then makes a new one.
        with monkeypatch.context() as patched:
            patched.setattr("airflow.models.dagrun.get_or_create_dagrun", same)
            found = dag.test(logical_date=run.logical_date, run_after=run.run_after, **arguments)
        assert found.id == run.id
        assert max(ti.try_number for ti in found.get_task_instances()) == 2, "nothing was cleared"
        return found

    return again


def history(repo):
    return [snapshot.message for snapshot in repo.ancestry(branch="main")]


def tags(repo):
    return {name: repo.lookup_tag(name) for name in repo.list_tags()}


def test_write_audit_publish(dag_of, states, empty_repo, clear_and_run):
    dag = dag_of("example_write_audit_publish")
    run = dag.test(logical_date=MONDAY, mark_success_pattern=r".*\.?approve")
    assert set(states(run).values()) == {"success"}, states(run)
    assert values(empty_repo, "temperature")[:, 0].tolist() == [10, 11, 12]
    # The arrays and all that was written came with one commit.
    assert len([*empty_repo.ancestry(branch="main")]) == 2
    first = empty_repo.lookup_branch("main")
    ((tag, named),) = tags(empty_repo).items()
    assert named == first
    run = clear_and_run(dag, run, mark_success_pattern=r".*\.?approve")
    assert set(states(run).values()) == {"success"}, states(run)
    assert values(empty_repo, "temperature")[:, 0].tolist() == [10, 11, 12]
    # The work was done again, and published once more: one commit, and a tag for it.
    assert history(empty_repo)[:-1] == ["Temperatures of three stations"] * 2
    assert tags(empty_repo) == {tag: first, f"{tag}-2": empty_repo.lookup_branch("main")}


def test_regions_of_several_days(dag_of, states, empty_repo):
    for day in (5, 6):
        run = dag_of("example_backfill_regions").test(
            logical_date=datetime(2026, 1, day, tzinfo=UTC)
        )
        assert set(states(run).values()) == {"success"}, states(run)
    rain = values(empty_repo, "rain")
    days = sorted({*rain[:, 0].tolist()})
    assert len(days) == 3, "two days of rain, and none on the others"
    assert (rain[:, :1] == rain).all()
    messages = [snapshot.message for snapshot in empty_repo.ancestry(branch="main")]
    assert messages[:2] == ["Rain of 2026-01-06", "Rain of 2026-01-05"]


def test_a_day_that_is_run_again_replaces_what_it_wrote(dag_of, states, empty_repo):
    dag = dag_of("example_backfill_regions")
    for _ in range(2):
        run = dag.test(logical_date=datetime(2026, 1, 5, tzinfo=UTC))
        assert set(states(run).values()) == {"success"}, states(run)
    assert (values(empty_repo, "rain")[:, 0] > 0).sum() == 1


def test_a_day_that_is_cleared_is_written_again(dag_of, states, empty_repo, clear_and_run):
    dag = dag_of("example_backfill_regions")
    run = clear_and_run(dag, dag.test(logical_date=MONDAY))
    assert set(states(run).values()) == {"success"}, states(run)
    assert (values(empty_repo, "rain")[:, 0] > 0).sum() == 1
    assert history(empty_repo)[:2] == ["Rain of 2026-01-05"] * 2
    # The array was there already, so there was nothing to make room for.
    assert len(history(empty_repo)) == 4


def test_a_run_reads_the_new_snapshot(dag_of, states, empty_repo, clear_and_run):
    with empty_repo.transaction("main", message="Rain") as store:
        array = zarr.create_array(store, name="rain", shape=(4,), chunks=(2,), dtype="f4")
        array[:] = 2.5
    dag = dag_of("example_react_to_snapshots")
    run = clear_and_run(dag, dag.test(logical_date=MONDAY))
    assert set(states(run).values()) == {"success"}, states(run)
    (total,) = (ti for ti in run.get_task_instances() if ti.task_id == "total")
    assert total.xcom_pull(task_ids="total") == 10.0


def test_the_asset_of_the_watcher_names_the_branch_and_the_path(dag_of):
    dag = dag_of("example_react_to_snapshots")
    (asset,) = dag.timetable.asset_condition.objects
    assert asset.uri == "icechunk://icechunk_default/rain?branch=main"
    (watcher,) = asset.watchers
    classpath, arguments = watcher.trigger.serialize()
    assert classpath == "airflow_icechunk.triggers.icechunk.IcechunkBranchTrigger"
    assert arguments["path"] == "/rain"


def test_maintenance(dag_of, states, empty_repo, clear_and_run, capfd):
    dag = dag_of("example_maintenance")
    run = dag.test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    # Tasks that make no snapshot do not look for one.
    assert "XCom not found" not in "".join(capfd.readouterr())
    before = len([*empty_repo.ops_log()])
    run = clear_and_run(dag, run)
    assert set(states(run).values()) == {"success"}, states(run)
    assert len([*empty_repo.ops_log()]) == before, "there was nothing left to do"


# Two drivers start one after the other, which a busy machine takes long for.
@pytest.mark.timeout(400)
def test_daily_ingest_on_spark(dag_of, states, tmp_path, connect, on_local_spark, clear_and_run):
    url = str(tmp_path / "repo")
    connect(host=url)
    dag = dag_of("example_daily_ingest")
    run = dag.test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    repo = icefloe.Repository.open(url)
    assert values(repo, "field")[:, 0].tolist() == [*range(100)]
    # The empty repository, its arrays, and one commit for both jobs.
    assert len([*repo.ancestry(branch="main")]) == 3
    first = repo.lookup_branch("main")
    ((tag, named),) = tags(repo).items()
    assert named == first
    run = clear_and_run(dag, run)
    assert set(states(run).values()) == {"success"}, states(run)
    assert values(repo, "field")[:, 0].tolist() == [*range(100)]
    assert len(history(repo)) == 4
    assert tags(repo) == {tag: first, f"{tag}-2": repo.lookup_branch("main")}


@pytest.mark.timeout(400)
def test_virtual_ingest(
    dag_of, states, tmp_path, connect, on_local_spark, monkeypatch, clear_and_run
):
    folder = tmp_path / "netcdf"
    folder.mkdir()
    days = [np.arange(6).reshape(2, 3) + 10 * day for day in range(3)]
    for day, rain in enumerate(days):
        save_rain(folder / f"rain-{day}.nc", rain)
    monkeypatch.setenv("NETCDF_FOLDER", str(folder))
    url = str(tmp_path / "repo")
    connect(host=url)
    dag = dag_of("example_virtual_ingest")
    run = dag.test(logical_date=MONDAY)
    assert set(states(run).values()) == {"success"}, states(run)
    repo = icefloe.Repository.open(url, authorize_virtual_chunk_access={f"file://{folder}/": None})
    assert values(repo, "rain").tolist() == [rain.tolist() for rain in days]
    # The values of the files were not copied.
    assert len(repo.readonly_session("main").all_virtual_chunk_locations()) == 3
    # Cleared, the run finds nothing new: nothing is added twice.
    run = clear_and_run(dag, run)
    assert set(states(run).values()) == {"success", "skipped"}, states(run)
    assert values(repo, "rain").tolist() == [rain.tolist() for rain in days]
    # There is nothing new for another run.
    run = dag.test(logical_date=datetime(2026, 1, 6, tzinfo=UTC))
    assert set(states(run).values()) == {"success", "skipped"}, states(run)
    assert len([*repo.ancestry(branch="main")]) == 2
