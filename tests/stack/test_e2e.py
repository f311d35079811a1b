"""The whole stack on this machine: up, a Dag on Spark and S3, down, and nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import icechunk
import psutil
import pytest
import zarr

from stack import state
from stack.ports import is_free

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).parent / "dags" / "stack_checks.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Stack:
    """A stack in a folder of its own, used as a user does: by commands and over HTTP."""

    def __init__(self, folder, dags):
        self.folder = folder
        self.dags = dags

    def run(self, command, *, code=0):
        arguments = [command, "--folder", str(self.folder), "--dags", str(self.dags)]
        done = subprocess.run(
            [sys.executable, "-m", "stack", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def state(self):
        return state.read(self.folder / "state.json")

    @property
    def keys(self):
        return json.loads((self.folder / "keys.json").read_text())

    def pids(self):
        return {name: started.ref.pid for name, started in self.state.processes.items()}

    def request(self, method, path, body=None, token=None):
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.state.ports['api']}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def log_in(self, password):
        body = {"username": "admin", "password": password}
        return self.request("POST", "/auth/token", body)["access_token"]


@pytest.fixture
def stack():
    base = Path(tempfile.mkdtemp(prefix="stack-e2e-"))
    # Else the user that runs PostgreSQL could not pass.
    base.chmod(0o711)
    shutil.copytree(ROOT / "dags", base / "dags")
    shutil.copy(CHECKS, base / "dags")
    made = Stack(base / "stack", base / "dags")
    yield made
    made.run("down")
    shutil.rmtree(base)


def await_true(question, seconds):
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(1)
    return answer


def left_over(folder):
    """Processes that have to do with a folder: by their command, environment or current folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "cwd", "status"]):
        told = json.dumps([process.info[name] for name in ("cmdline", "environ", "cwd")])
        if str(folder) in told and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append((process.pid, process.info["cmdline"]))
    return found


def trigger(stack, token, dag_id):
    dag = f"/api/v2/dags/{dag_id}"

    def is_loaded():
        try:
            return stack.request("GET", dag, token=token)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    await_true(is_loaded, 90)
    run = stack.request("POST", f"{dag}/dagRuns", {"logical_date": None}, token)
    return f"{dag}/dagRuns/{run['dag_run_id']}"


def task_logs(stack):
    logs = sorted((stack.folder / "logs" / "tasks").rglob("*.log"))
    return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


def test_the_stack_runs_a_dag_and_leaves_nothing_behind(stack):
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

    # The login is needed, and the Dags are there.
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stack.request("GET", "/api/v2/dags")
    token = stack.log_in(keys["admin_password"])
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stack.log_in("wrong")

    # A run that needs the database, the scheduler, Spark and S3.
    run = trigger(stack, token, "check_components")
    ended = await_true(
        lambda: (
            (found := stack.request("GET", run, token=token))["state"] in ("success", "failed")
            and found
        ),
        300,
    )
    assert ended["state"] == "success", task_logs(stack)
    examples = {path.stem for path in (ROOT / "dags").glob("example_*.py")}
    dags = stack.request("GET", "/api/v2/dags?limit=100", token=token)["dags"]
    assert examples <= {dag["dag_id"] for dag in dags}
    assert stack.request("GET", "/api/v2/importErrors", token=token)["total_entries"] == 0

    # The connections can be seen, without their secrets.
    known = stack.request("GET", "/api/v2/connections", token=token)
    assert {each["connection_id"] for each in known["connections"]} == {
        *("icechunk_default", "spark_default", "aws_default")
    }
    assert keys["s3_secret_key"] not in json.dumps(known)

    # The official client reads what was written.
    storage = icechunk.s3_storage(
        bucket="icechunk",
        prefix="default",
        endpoint_url=f"http://127.0.0.1:{stack.state.ports['s3']}",
        region="us-east-1",
        access_key_id=keys["s3_access_key"],
        secret_access_key=keys["s3_secret_key"],
        allow_http=True,
        force_path_style=True,
    )
    repo = icechunk.Repository.open(storage)
    field = zarr.open_array(repo.readonly_session("main").store, path="field", mode="r")
    assert field[:, 7].tolist() == [float(row) for row in range(100)]
    assert next(iter(repo.ancestry(branch="main"))).message == "Written by the stack"

    # It ran on the cluster: the workers have folders of its executors.
    assert list((stack.folder / "spark").glob("spark-worker-*/app-*/*/stderr"))

    # One dies: status says so, up mends it.
    os.kill(pids["triggerer"], signal.SIGKILL)
    await_true(lambda: "ended" in stack.run("status", code=1), 30)
    stack.run("up")
    changed = {name for name, pid in stack.pids().items() if pids[name] != pid}
    assert changed == {"triggerer"}

    # No secret is in a log.
    for log in (stack.folder / "logs").rglob("*.log"):
        text = log.read_text(errors="replace")
        assert not [name for name, value in keys.items() if value in text], log

    # Down, while a task runs that has left its process group.
    trigger(stack, token, "check_stop")
    await_true(lambda: any("987654" in str(each) for each in left_over(stack.folder)), 90)
    ports = stack.state.ports
    stack.run("down")
    assert left_over(stack.folder) == []
    assert [name for name, port in ports.items() if not is_free(port)] == []
    assert "nothing is running" in stack.run("status", code=1)
    assert "nothing is running" in stack.run("down")


def test_a_component_that_cannot_start_is_reported_and_the_rest_stopped(stack):
    stack.folder.mkdir(mode=0o711)
    (stack.folder / "airflow").mkdir()
    # A folder where the database file should be.
    (stack.folder / "airflow" / "airflow.db").mkdir()
    state.write(stack.folder / "state.json", state.State(database="sqlite"))
    assert "unable to open database file" in stack.run("up", code=1)
    assert left_over(stack.folder) == []
