"""The demonstration does what it prints, as the official library and the files show."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import icechunk
import matplotlib.image
import numpy as np
import psutil
import pytest
import zarr
from icechunk.ops import UpdateType

from demo import fields
from demo.layout import MARK, FolderInUseError, make_folder

ROOT = Path(__file__).parents[1]
DAYS = [fields.day_name(number) for number in range(4)]
FIRST = dict(zip(DAYS, ("sound", "drifting", "sound"), strict=False))
LAST = dict.fromkeys(DAYS, "sound")

# Seven Spark drivers start, mostly beside other tests.
pytestmark = pytest.mark.timeout(900)


def command(folder):
    return [sys.executable, "-m", "demo", "--folder", str(folder)]


def left_running(folder):
    """The command lines of processes that a demonstration has started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                found.append(process.cmdline())
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run, as a user runs it: what it printed, what it claims, what it left."""
    folder = tmp_path_factory.mktemp("demo") / "output"
    home = folder.with_name("home")
    home.mkdir()
    others = {"AIRFLOW_HOME": "/nonexistent", "SPARK_HOME": "/nonexistent"}
    environment = {**os.environ, **others, "CI": "true", "HOME": str(home)}
    done = subprocess.run(
        command(folder), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    storage = icechunk.local_filesystem_storage(str(folder / "archive"))
    return SimpleNamespace(
        folder=folder,
        said=done.stdout,
        complained=done.stderr,
        claims=json.loads((folder / "summary.json").read_text()),
        repo=icechunk.Repository.open(storage),
    )


@pytest.fixture
def read(demo):
    """An array of a version, through the official library."""

    def values(path, **version):
        store = demo.repo.readonly_session(**version).store
        return zarr.open_array(store, path=path, mode="r")[...]

    return values


@pytest.fixture
def attempts(demo):
    """Rows of Airflow's own database: what was tried, and when."""

    def rows(task, run):
        with closing(sqlite3.connect(demo.folder / "airflow" / "airflow.db")) as database:
            columns = "map_index, try_number, state, start_date, end_date"
            where = "where task_id = ? and run_id = ?"
            return database.execute(
                f"select {columns} from task_instance {where} "
                f"union select {columns} from task_instance_history {where}",
                (task, run["run_id"]) * 2,
            ).fetchall()

    return rows


def run_of(demo, dag_id, number=0):
    return [run for run in demo.claims["runs"] if run["dag_id"] == dag_id][number]


def test_it_leaves_no_process_writes_nothing_elsewhere_and_complains_about_nothing(demo):
    assert left_running(demo.folder) == []
    assert demo.complained == ""
    assert [*demo.folder.with_name("home").iterdir()] == []
    assert not (ROOT / "spark-warehouse").exists()


@pytest.mark.parametrize(
    ("version", "days"), [({"tag": "v1"}, FIRST), ({"tag": "v2"}, LAST), ({"branch": "main"}, LAST)]
)
def test_every_value_of_every_version_is_what_the_generator_gives(read, version, days):
    kelvin, rain = read("t2m", **version), read("tp", **version)
    assert kelvin.shape == rain.shape == (24 * len(days), *fields.SHAPE)
    for day, source in days.items():
        hours = fields.hours_of(day)
        numbers = range(hours.start, hours.stop)
        np.testing.assert_array_equal(kelvin[hours], fields.temperature(numbers, source))
        np.testing.assert_array_equal(rain[hours], fields.precipitation(numbers))


def test_each_run_that_published_made_one_commit(demo):
    history = [*demo.repo.ancestry(branch="main")]
    assert [snapshot.id for snapshot in history] == demo.claims["main"]
    assert [snapshot.id for snapshot in history[:2]] == [
        demo.claims["climatology"][1]["snapshot"],
        demo.claims["v2"],
    ]
    assert demo.repo.lookup_tag("v1") == demo.claims["v1"]
    kinds = [type(update.kind) for update in demo.repo.ops_log()]
    assert kinds.count(UpdateType.BranchReset) == 2, "two runs were published"
    assert kinds.count(UpdateType.NewCommit) == 2, "two climatologies"
    # Room, writers and merge: of three days, of one, and of two.
    assert kinds.count(UpdateType.NewDetachedSnapshot) == 5 + 3 + 4


def test_the_writers_ran_at_the_same_time(demo, attempts):
    rows = attempts("transaction.write_day", run_of(demo, "demo_ingest"))
    spans = [(start, end) for *_, start, end in rows]
    together = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
    assert together == demo.claims["parallel"]["writers_at_once"] >= 2


def test_the_writer_that_was_killed_was_tried_again_and_wrote_once(demo, attempts):
    rows = attempts("transaction.write_day", run_of(demo, "demo_ingest"))
    tries = {index: max(number for at, number, *_ in rows if at == index) for index, *_ in rows}
    killed = demo.claims["killed"]
    assert tries == {0: 1, 1: 2, 2: 1}
    assert killed["attempts"] == 2
    assert killed["staged_snapshots"] == 3
    assert killed["snapshots_per_write_key"] == 1
    assert killed["orphaned_chunk_objects"] >= 1, "it was killed before it had written anything"
    assert len(killed["pids"]) >= 2, "a JVM and a Python"
    log = (demo.folder / "airflow-and-spark.log").read_text()
    assert "Error code is: -9" in log


def test_the_climatology_is_that_of_the_days(demo, read):
    kelvin = read("t2m", branch="main").reshape(4, 24, *fields.SHAPE)
    rain = read("tp", branch="main").reshape(4, 24, *fields.SHAPE)
    mean = kelvin.mean(axis=0, dtype="f8").astype("f4")
    np.testing.assert_array_equal(read("climatology/t2m", branch="main"), mean)
    daily = rain.sum(axis=1, dtype="f8").mean(axis=0).astype("f4")
    np.testing.assert_array_equal(read("climatology/tp", branch="main"), daily)
    tip = next(iter(demo.repo.ancestry(branch="main")))
    assert tip.metadata["derived_from"] == demo.claims["v2"]
    # Committed by the Dag of the sensor, which was started before the days were.
    assert tip.metadata["airflow.dag_id"] == "demo_climatology"


def test_the_bad_day_is_on_no_branch_and_its_snapshot_is_gone(demo, attempts):
    bad = demo.claims["bad_day"]
    broken = fields.temperature(range(72, 96), "broken")
    assert bad["below_180_kelvin"] == int((broken < 180).sum()) > 0
    assert bad["coldest"] == float(broken.min())
    assert not bad["is_published"]
    assert not bad["main_moved"]
    assert bad["sensor_still_waits"]
    assert bad["tags"] == ["v1"]
    assert demo.repo.list_tags() == {"v1", "v2"}
    assert bad["snapshot"] not in {each.id for each in demo.repo.ancestry(branch="main")}
    with pytest.raises(icechunk.IcechunkError):
        demo.repo.readonly_session(snapshot_id=bad["snapshot"])
    run = run_of(demo, "demo_ingest", 1)
    assert run["state"] == "failed"
    assert [row[2] for row in attempts("transaction.audit", run)] == ["failed"]
    assert [row[2] for row in attempts("transaction.publish", run)] == ["upstream_failed"]


def test_the_difference_between_the_versions_is_the_correction(demo, read):
    hours = fields.hours_of(DAYS[1])
    old, new = read("t2m", tag="v1")[hours], read("t2m", branch="main")[hours]
    claimed = demo.claims["versions"]
    assert claimed["mean_v1"] == float(old.mean(dtype="f8"))
    assert claimed["mean_main"] == float(new.mean(dtype="f8"))
    assert claimed["changed_values"] == int((old != new).sum()) > 0
    assert claimed["largest_change"] == float((new.astype("f8") - old).min()) < -1
    assert (claimed["hours_v1"], claimed["hours_main"]) == (72, 96)


def test_the_sizes_are_those_of_the_files(demo):
    files = [path for path in (demo.folder / "archive").rglob("*") if path.is_file()]
    storage = demo.claims["storage"]
    assert storage["after"] == sum(path.stat().st_size for path in files)
    assert storage["objects_after"] == len(files)
    assert storage["freed"] == storage["before"] - storage["after"]
    # The bad day, and half a day of the writer that was killed.
    assert storage["freed"] > 0.1 * storage["before"]
    totals = [moment["total"] for moment in storage["moments"]]
    assert totals[:-1] == sorted(totals[:-1])
    assert totals[-1] == storage["after"]
    assert type(next(iter(demo.repo.ops_log())).kind) is UpdateType.GCRan
    for gone in demo.claims["gone"]:
        assert not (demo.folder / "archive" / "snapshots" / gone).exists()


def test_what_it_prints_is_what_it_claims(demo):
    claims, said = demo.claims, demo.said
    for snapshot in [*claims["main"], *claims["gone"]]:
        assert snapshot in said
    for name in ("(main)", "(tag: v1)", "(tag: v2)", "[expired]", "[collected]"):
        assert name in said
    for number in (
        f"{claims['versions']['mean_v1']:.4f} K in v1",
        f"{claims['storage']['before'] / 1e6:.2f} MB in {claims['storage']['objects_before']}",
        f"{claims['storage']['after'] / 1e6:.2f} MB in {claims['storage']['objects_after']}",
        f"{claims['bad_day']['below_180_kelvin']} values below 180 K",
        f"{claims['parallel']['writers_at_once']} writers ran at the same time",
    ):
        assert number in said
    assert claims["wrong_values"] == claims["killed"]["wrong_values"] == 0
    assert 0 < claims["reaction_seconds"] < claims["seconds"]
    assert "\033" not in said, "colours are for terminals"


def test_the_pictures_show_something(demo):
    names = [Path(path).name for path in demo.claims["plots"]]
    assert names == ["field.png", "difference.png", "storage.png", "overview.png"]
    for path in demo.claims["plots"]:
        picture = matplotlib.image.imread(path)
        assert picture.shape[0] > 300
        assert picture.shape[1] > 600
        assert picture[..., :3].std() > 0.05, f"{path} is blank"


def test_xarray_opens_it_as_the_last_lines_say(demo):
    lines = [line.strip() for line in demo.said.splitlines()]
    start = lines.index("import icechunk, xarray")
    scope = {}
    exec("\n".join([*lines[start : start + 2], f"found = {lines[start + 2]}"]), scope)
    found = scope["found"]
    assert found.t2m.dims == ("time", "lat", "lon")
    assert str(found.time.values[-1])[:13] == f"{DAYS[-1]}T23"
    assert found.t2m.attrs["standard_name"] == "air_temperature"
    assert float(found.lat[0]) == 89.5


def test_days_join_without_a_jump():
    kelvin = fields.temperature(range(22, 26))
    steps = np.abs(np.diff(kelvin, axis=0)).mean(axis=(1, 2))
    assert steps.max() < 1.5 * steps.min()


def test_the_weather_is_that_of_a_planet():
    kelvin, rain = fields.temperature(range(24)), fields.precipitation(range(24))
    assert 200 < kelvin.min() < 250
    assert 300 < kelvin.max() < 325
    assert kelvin[:, 80:100].mean() > kelvin[:, :20].mean() + 20, "the tropics are warm"
    assert (rain == 0).mean() > 0.6
    assert 1 < rain.mean() * 24 < 6
    assert rain.max() > 5
    assert 0.25 < fields.land().mean() < 0.35


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderInUseError, match="choose another"):
        make_folder(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_folder_of_its_own_is_replaced(tmp_path):
    first = make_folder(tmp_path / "output")
    first.summary.write_text("{}")
    second = make_folder(tmp_path / "output")
    assert second == first
    assert not second.summary.exists()


@pytest.mark.slow
def test_a_step_that_fails_is_told_with_the_end_of_the_log(tmp_path):
    environment = {**os.environ, "JAVA_HOME": "/nonexistent"}
    done = subprocess.run(
        command(tmp_path / "output"),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "The demo failed: the run of demo_ingest ended as failed" in done.stdout
    assert "/nonexistent/bin/java" in done.stdout
    assert "airflow-and-spark.log" in done.stdout
    assert left_running(tmp_path / "output") == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_takes_its_processes_along_when_it_is_stopped(tmp_path, number):
    folder = tmp_path / "output"
    demo = subprocess.Popen(command(folder), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not any("SparkSubmit" in " ".join(line) for line in left_running(folder)):
        assert demo.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)
    demo.send_signal(number)
    said, _ = demo.communicate(timeout=120)
    if number != signal.SIGKILL:
        assert demo.returncode == 130
        assert "Stopped." in said
    end = time.monotonic() + 60
    while left_running(folder) and time.monotonic() < end:
        time.sleep(0.2)
    assert left_running(folder) == []
