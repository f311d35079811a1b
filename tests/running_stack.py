"""A stack in a folder of its own, used as a user does: by commands and over HTTP."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil

from stack import state

ROOT = Path(__file__).parents[1]
DAGS = Path(__file__).parent / "stack" / "dags"


class Stack:
    def __init__(self, folder, dags):
        self.folder = folder
        self.dags = dags
        self.environment = {}
        self._token = None

    def run(self, command, *options, code=0):
        arguments = [command, "--folder", str(self.folder), "--dags", str(self.dags), *options]
        done = subprocess.run(
            [sys.executable, "-m", "stack", *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment},
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

    def api(self, method, path, body=None):
        """The answer of the REST API to the administrator."""
        self._token = self._token or self.log_in(self.keys["admin_password"])
        try:
            return self.request(method, f"/api/v2{path}", body, self._token)
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode(errors="replace"))
            raise

    def await_dag(self, dag_id):
        def is_loaded():
            try:
                return self.api("GET", f"/dags/{dag_id}")
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                return None

        await_true(is_loaded, 90)

    def trigger(self, dag_id, *, logical_date=None, conf=None):
        """Start a run; its path."""
        self.await_dag(dag_id)
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        body = {"logical_date": logical_date, "conf": conf or {}}
        run = self.api("POST", f"/dags/{dag_id}/dagRuns", body)
        return f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}"

    def await_success(self, run, seconds=300):
        def has_ended():
            found = self.api("GET", run)
            return found if found["state"] in ("success", "failed") else None

        ended = await_true(has_ended, seconds)
        assert ended["state"] == "success", self.task_logs()
        return ended

    def tasks(self, run):
        """The task instances of a run, by task and map index."""
        found = self.api("GET", f"{run}/taskInstances?limit=100")["task_instances"]
        return {(each["task_id"], each["map_index"]): each for each in found}

    def await_state(self, run, task_id, wanted, seconds=90):
        await_true(lambda: self.tasks(run)[task_id, -1]["state"] in wanted, seconds)

    def result(self, run, task_id):
        """What a task returned."""
        path = f"{run}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.api("GET", path)["value"]

    def task_logs(self):
        logs = sorted((self.folder / "logs" / "tasks").rglob("*.log"))
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


@contextmanager
def private_stack(*dags):
    """A stack that does not run yet, with these files and folders of Dags; down in the end."""
    base = Path(tempfile.mkdtemp(prefix="stack-e2e-"))
    # Else the user that runs PostgreSQL could not pass.
    base.chmod(0o711)
    (base / "dags").mkdir()
    for each in dags:
        if each.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(each, base / "dags", dirs_exist_ok=True, ignore=ignore)
        else:
            shutil.copy(each, base / "dags")
    made = Stack(base / "stack", base / "dags")
    try:
        yield made
    finally:
        made.run("down")
        shutil.rmtree(base)


def await_true(question, seconds):
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.5)
    return answer


def left_over(folder):
    """Processes that have to do with a folder: by their command, environment or current folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "cwd", "status"]):
        told = json.dumps([process.info[name] for name in ("cmdline", "environ", "cwd")])
        if str(folder) in told and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append((process.pid, process.info["cmdline"]))
    return found
