"""The whole stack on this machine: every example over REST, a kill, no secret, nothing left."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import icechunk
import numpy as np
import psutil
import psycopg
import pytest
import zarr
from cryptography.fernet import Fernet, InvalidToken

import icefloe
from icefloe import UpdateKind
from netcdf_files import save_rain
from running_stack import DAGS, ROOT, await_true, left_over, private_stack
from stack import state
from stack.ports import is_free

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLES = {path.stem for path in (ROOT / "dags").glob("example_*.py")}
SPARK_UIS = range(4040, 4050)


class Sampler(threading.Thread):
    """Looks, until it is stopped, at what other users could see of the jobs while they run."""

    def __init__(self, stack):
        super().__init__(daemon=True)
        self.stack = stack
        self.ended = threading.Event()
        self.commands = set()
        self.environments = {}
        self.triggers = {}

    def run(self):
        while not self.ended.wait(0.3):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    self.commands.add((folder / "cmdline").read_bytes())
                except OSError:
                    continue
            self._look_at_spark()
            self.triggers |= triggers(self.stack)

    def _look_at_spark(self):
        for port in SPARK_UIS:
            base = f"http://127.0.0.1:{port}/api/v1/applications"
            try:
                (application, *_) = fetch(base)
                place = f"{base}/{application['id']}"
                found = [fetch(f"{place}/{page}") for page in ("environment", "allexecutors")]
            except (OSError, ValueError):
                continue
            self.environments[application["id"]] = json.dumps(found)

    def stop(self):
        self.ended.set()
        self.join(30)


def fetch(url):
    with urllib.request.urlopen(url, timeout=2) as response:
        return json.load(response)


def database(stack):
    port, password = stack.state.ports["postgres"], stack.keys["postgres_password"]
    place = f"host=127.0.0.1 port={port} dbname=postgres user=airflow"
    return psycopg.connect(place, password=password, autocommit=True)


def triggers(stack):
    """The arguments of all triggers in the database, by id."""
    with database(stack) as connection:
        rows = connection.execute("SELECT id, classpath, kwargs FROM trigger").fetchall()
    return {number: (path, in_clear(kwargs, stack)) for number, path, kwargs in rows}


def in_clear(kwargs, stack):
    """Airflow encrypts the arguments of some triggers."""
    try:
        return Fernet(stack.keys["fernet_key"]).decrypt(kwargs.encode()).decode()
    except InvalidToken:
        return kwargs


@pytest.fixture(scope="module")
def stack():
    checks = [DAGS / "stack_checks.py", DAGS / "stack_jobs.py"]
    with private_stack(ROOT / "dags", *checks) as made:
        for folder in (made.dags / "events", made.folder.parent / "netcdf"):
            folder.mkdir()
        made.environment["NETCDF_FOLDER"] = str(made.folder.parent / "netcdf")
        yield made


@pytest.fixture(scope="module")
def running(stack):
    stack.run("up")
    assert "postgres" in stack.pids(), "this is to be proved with PostgreSQL"
    return stack


@pytest.fixture(scope="module")
def sampler(running):
    thread = Sampler(running)
    thread.start()
    yield thread
    thread.stop()


def use_repository(stack, name):
    """Point the connection at a repository of its own; the official library's storage of it."""
    found = stack.api("GET", "/connections/icechunk_default")
    body = {"connection_id": "icechunk_default", "conn_type": "icechunk"}
    body["host"] = f"s3://icechunk/{name}"
    assert found["conn_type"] == "icechunk"
    stack.api("PATCH", "/connections/icechunk_default?update_mask=host", body)
    return icechunk.s3_storage(
        bucket="icechunk",
        prefix=name,
        endpoint_url=f"http://127.0.0.1:{stack.state.ports['s3']}",
        region="us-east-1",
        access_key_id=stack.keys["s3_access_key"],
        secret_access_key=stack.keys["s3_secret_key"],
        allow_http=True,
        force_path_style=True,
    )


def own_repository(stack, name):
    options = {
        "key": stack.keys["s3_access_key"],
        "secret": stack.keys["s3_secret_key"],
        "endpoint_url": f"http://127.0.0.1:{stack.state.ports['s3']}",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return icefloe.Repository.open_or_create(f"s3://icechunk/{name}", options)


def values(storage, path, **access):
    repo = icechunk.Repository.open(storage, **access)
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")[...]


def messages(storage):
    repo = icechunk.Repository.open(storage)
    return [snapshot.message for snapshot in repo.ancestry(branch="main")]


def test_daily_ingest_on_spark(running, sampler):
    storage = use_repository(running, "daily")
    run = running.trigger("example_daily_ingest")
    running.await_success(run)
    assert values(storage, "field")[:, 7].tolist() == [float(row) for row in range(100)]
    repo = icechunk.Repository.open(storage)
    (tag,) = repo.list_tags()
    assert repo.lookup_tag(tag) == repo.lookup_branch("main") == running.result(run, "commit")
    events = running.api("GET", "/assets/events?limit=100")["asset_events"]
    (told,) = [each["extra"] for each in events if each["source_run_id"] == run.split("/")[-1]]
    assert told["snapshot_id"] == running.result(run, "commit")
    assert {"repo", "branch", "snapshot_id", "parent", "tag", "write_key"} == {*told}


def test_write_audit_publish_waits_for_an_answer_over_rest(running, sampler):
    own_repository(running, "audited")
    storage = use_repository(running, "audited")
    run = running.trigger("example_write_audit_publish")
    place = f"{run}/taskInstances/transaction.approve/-1/hitlDetails"

    def asks():
        try:
            return running.api("GET", place)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    await_true(asks, 200)
    # All is written and merged, and nothing of it is published.
    assert len(messages(storage)) == 1
    running.api("PATCH", place, {"chosen_options": ["Approve"], "params_input": {}})
    running.await_success(run)
    assert values(storage, "temperature")[:, 0].tolist() == [10, 11, 12]
    assert messages(storage)[0] == "Temperatures of three stations"


def test_regions_are_backfilled_over_rest_and_again(running, sampler):
    own_repository(running, "regions")
    storage = use_repository(running, "regions")
    running.await_dag("example_backfill_regions")
    days = {"from_date": "2026-01-05T00:00:00Z", "to_date": "2026-01-06T00:00:00Z"}

    def backfill(behavior):
        body = {"dag_id": "example_backfill_regions", **days, "reprocess_behavior": behavior}
        made = running.api("POST", "/backfills", body)
        running.api("PATCH", "/dags/example_backfill_regions", {"is_paused": False})
        path = f"/backfills/{made['id']}"
        await_true(lambda: running.api("GET", path)["completed_at"], 400)

    backfill("none")
    done = [message for message in messages(storage) if message in DAYS]
    assert sorted(done) == sorted(DAYS)
    # By hand again: each run has new keys, and its commits replace what it wrote.
    backfill("completed")
    done = [message for message in messages(storage) if message in DAYS]
    assert sorted(done) == sorted([*DAYS, *DAYS]), running.task_logs()
    assert values(storage, "rain")[4:6, 0].tolist() == [5, 6]


DAYS = ["Rain of 2026-01-05", "Rain of 2026-01-06"]


def test_a_commit_from_outside_starts_a_run(running, sampler):
    repo = own_repository(running, "watched")
    use_repository(running, "watched")
    with repo.transaction("main", message="Rain") as store:
        zarr.create_array(store, name="rain", shape=(4,), chunks=(2,), dtype="f4")
    running.await_dag("example_react_to_snapshots")
    running.api("PATCH", "/dags/example_react_to_snapshots", {"is_paused": False})
    storage = use_repository(running, "watched")
    path = "/dags/example_react_to_snapshots/dagRuns?limit=50"
    deadline = time.monotonic() + 300
    rain = 0
    # A watcher tells of what comes after it began, which takes the triggerer a while.
    while not (runs := running.api("GET", path)["dag_runs"]):
        assert time.monotonic() < deadline, "no run was started"
        rain += 1
        writer = icechunk.Repository.open(storage).writable_session("main")
        zarr.open_array(writer.store, path="rain")[:] = rain
        writer.commit("From elsewhere")
        time.sleep(20)
    assert {each["run_type"] for each in runs} == {"asset_triggered"}
    run = f"/dags/example_react_to_snapshots/dagRuns/{runs[0]['dag_run_id']}"
    running.await_success(run)
    total = running.result(run, "total")
    assert total in [4.0 * number for number in range(1, rain + 1)]
    running.api("PATCH", "/dags/example_react_to_snapshots", {"is_paused": True})


def test_maintenance(running, sampler):
    repo = own_repository(running, "daily")
    use_repository(running, "daily")
    before = repo.lookup_branch("main")
    run = running.trigger("example_maintenance")
    running.await_success(run)
    assert running.result(run, "verify") == {"level": "objects", "error": 0, "warning": 0}
    assert repo.lookup_branch("main") == before


def test_virtual_ingest(running, sampler):
    folder = Path(running.environment["NETCDF_FOLDER"])
    days = [np.arange(6).reshape(2, 3) + 10 * day for day in range(3)]
    for day, rain in enumerate(days):
        save_rain(folder / f"rain-{day}.nc", rain)
    storage = use_repository(running, "virtual")
    running.await_success(running.trigger("example_virtual_ingest"))
    trusted = icechunk.Credentials.LocalFileSystemAccess()
    access = icechunk.containers_credentials({f"file://{folder}/": trusted})
    found = values(storage, "rain", authorize_virtual_chunk_access=access)
    assert found.tolist() == [rain.tolist() for rain in days]


def test_every_example_was_run(running):
    ran = set()
    for dag_id in EXAMPLES:
        runs = running.api("GET", f"/dags/{dag_id}/dagRuns?limit=50")["dag_runs"]
        ran |= {dag_id for run in runs if run["state"] == "success"}
    assert ran == EXAMPLES
    assert running.api("GET", "/importErrors")["total_entries"] == 0


def test_a_spark_task_that_is_killed_is_retried_and_finds_what_its_driver_wrote(running, sampler):
    repo = own_repository(running, "killed")
    use_repository(running, "killed")
    with repo.transaction("main", message="Arrays") as store:
        zarr.create_array(store, name="field", shape=(10, 5), chunks=(1, 5), dtype="f4")
    folder = running.folder.parent / "gates"
    folder.mkdir()
    run = running.trigger("check_kill", conf={"folder": str(folder)})
    began = folder / "began-1"
    await_true(began.exists, 200)
    driver = psutil.Process(int(began.read_text()))
    jvm, task, *_ = driver.parents()
    assert "java" in jvm.name()
    os.kill(task.pid, signal.SIGKILL)
    (folder / "go-1").touch()
    driver.wait(100)
    # Where the retry was faster than the driver, it submits: both end in one snapshot.
    (folder / "go-2").touch()
    running.await_success(run)
    (instance,) = running.tasks(run).values()
    assert instance["try_number"] == 2
    staged = [
        str(update.new_snap_id)
        for update in repo.ops_log()
        if update.kind == UpdateKind.NEW_DETACHED_SNAPSHOT
    ]
    assert staged == [running.result(run, "write")]
    assert repo.lookup_snapshot(staged[0]).metadata["airflow.dag_id"] == "check_kill"


def test_a_deferred_task_has_no_secret_in_its_trigger(running, sampler):
    repo = own_repository(running, "daily")
    use_repository(running, "daily")
    run = running.trigger("check_wait")
    running.await_state(run, "wait", ["deferred"])
    await_true(lambda: any("Condition" in name for name, _ in triggers(running).values()), 30)
    repo.create_tag("go", repo.lookup_branch("main"))
    running.await_success(run)


def in_database(stack):
    """Every row of every table, as text: XCom, rendered templates, events, log, ..."""
    with database(stack) as connection:
        tables = connection.execute(
            "SELECT quote_ident(table_name) FROM information_schema.tables "
            "WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        ).fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT t::text FROM {table} t").fetchall()
            yield f"table {table}", "\n".join(row for (row,) in rows)


def in_rendered_fields(stack):
    for run in all_runs(stack):
        instances = stack.api("GET", f"{run}/taskInstances?limit=100")["task_instances"]
        yield run, json.dumps([each["rendered_fields"] for each in instances])


def in_files(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_text(errors="replace")


def test_no_secret_is_seen_anywhere(running, sampler):
    """Last of all runs: in what they left behind, and in what could be seen while they ran."""
    sampler.stop()
    places = {
        "database": {*in_database(running)},
        "rendered fields": {*in_rendered_fields(running)},
        "logs": {*in_files(running.folder / "logs")},
        "Spark's folders": {*in_files(running.folder / "spark")},
        "Spark's event logs": {*in_files(running.dags / "events")},
        "Spark's user interfaces": {*sampler.environments.items()},
        "triggers": {*sampler.triggers.values()},
        "ps": {("ps", command.decode(errors="replace")) for command in sampler.commands},
    }
    # The search has something to search.
    filled = dict(places["database"])
    for table in ("xcom", "rendered_task_instance_fields", "log", "asset_event"):
        assert filled[f"table {table}"], table
    assert any("application_args" in text for _, text in places["rendered fields"])
    events = [text for _, text in places["Spark's event logs"]]
    assert any("SparkListenerEnvironmentUpdate" in text for text in events)
    assert any("sparkProperties" in text for _, text in places["Spark's user interfaces"])
    kinds = {classpath.rpartition(".")[2] for classpath, _ in places["triggers"]}
    assert {"IcechunkBranchTrigger", "IcechunkConditionTrigger"} <= kinds
    assert any("--write-key" in command for _, command in places["ps"])
    secrets = {name: value for name, value in running.keys.items() if name != "s3_access_key"}
    assert [
        (kind, place, name)
        for kind, texts in places.items()
        for place, text in texts
        for name, secret in secrets.items()
        if secret in text
    ] == []


def all_runs(stack):
    found = stack.api("GET", "/dags/~/dagRuns?limit=100")["dag_runs"]
    return [f"/dags/{each['dag_id']}/dagRuns/{each['dag_run_id']}" for each in found]


def test_the_stack_mends_itself_and_leaves_nothing_behind(running):
    stack = running
    told = stack.run("up")
    keys = stack.keys
    assert f"login admin / {keys['admin_password']}" in told
    secrets = {name: value for name, value in keys.items() if name != "admin_password"}
    assert not [name for name, value in secrets.items() if value in told]
    pids = stack.pids()
    assert stack.run("status").count(" healthy") == len(pids) >= 8

    # Up again: nothing new.
    stack.run("up")
    assert stack.pids() == pids

    # All that listens does so on loopback.
    ours = {pid for pid, _ in left_over(stack.folder)}
    listening = [
        each.laddr
        for each in psutil.net_connections("tcp")
        if each.pid in ours and each.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 10
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert stack.state.ports["api"] in {address.port for address in listening}

    # The login is needed.
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stack.request("GET", "/api/v2/dags")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stack.log_in("wrong")

    # A run that needs the database, the scheduler, Spark and S3.
    storage = use_repository(stack, "default")
    stack.await_success(stack.trigger("check_components"))
    assert messages(storage)[0] == "Written by the stack"
    assert values(storage, "field")[:, 7].tolist() == [float(row) for row in range(100)]

    # The connections can be seen, without their secrets.
    known = stack.api("GET", "/connections")
    assert {each["connection_id"] for each in known["connections"]} == {
        *("icechunk_default", "spark_default", "aws_default")
    }
    assert keys["s3_secret_key"] not in json.dumps(known)

    # It ran on the cluster: the workers have folders of its executors.
    assert list((stack.folder / "spark").glob("spark-worker-*/app-*/*/stderr"))

    # One dies: status says so, up mends it.
    os.kill(pids["triggerer"], signal.SIGKILL)
    await_true(lambda: "ended" in stack.run("status", code=1), 30)
    stack.run("up")
    changed = {name for name, pid in stack.pids().items() if pids[name] != pid}
    assert changed == {"triggerer"}

    # Down, while a task runs that has left its process group.
    stack.trigger("check_stop")
    await_true(lambda: any("987654" in str(each) for each in left_over(stack.folder)), 90)
    ports = stack.state.ports
    stack.run("down")
    assert left_over(stack.folder) == []
    assert [name for name, port in ports.items() if not is_free(port)] == []
    assert "nothing is running" in stack.run("status", code=3)
    assert "nothing is running" in stack.run("down")


def test_a_component_that_cannot_start_is_reported_and_the_rest_stopped():
    with private_stack() as stack:
        stack.folder.mkdir(mode=0o711)
        (stack.folder / "airflow").mkdir()
        # A folder where the database file should be.
        (stack.folder / "airflow" / "airflow.db").mkdir()
        state.write(stack.folder / "state.json", state.State(database="sqlite"))
        assert "unable to open database file" in stack.run("up", code=1)
        assert left_over(stack.folder) == []
