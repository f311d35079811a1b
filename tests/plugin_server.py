"""The plugin in a server on loopback, mounted and guarded as the API server does it."""

import json
import os
import socket
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
import zarr

from airflow_icechunk.plugin.icechunk_plugin import IcechunkPlugin

RUN = "manual__2026-01-01T00:00:00+00:00"
ORIGIN = {
    "airflow.dag_id": "ingest",
    "airflow.run_id": RUN,
    "airflow.task_id": "write",
    "airflow.map_index": 2,
    "airflow.try_number": 1,
}
REPO = "/icechunk/repos/icechunk_default"
API = "/icechunk/api/repos/icechunk_default"
USERS = "admin:admin,op:op,viewer:viewer"
SETTINGS = {
    "AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64,
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
    # Whoever serves requests finds connections in the database.
    "_AIRFLOW_PROCESS_CONTEXT": "server",
}


def make_app(root_path=""):
    """Airflow's own auth manager and login around our application."""
    from fastapi import FastAPI

    with warnings.catch_warnings():
        # Airflow imports a test client, which wants another library.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.app import init_auth_manager

    (mine,) = IcechunkPlugin().fastapi_apps
    app = FastAPI(root_path=root_path)
    app.mount(mine["url_prefix"], mine["app"])
    app.state.icechunk = mine["app"]
    init_auth_manager(app)
    return app


@contextmanager
def serving(app):
    """The address of a running server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # From here on connections wait until the server is up.
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def sign_in(address, role):
    """A client with a token from the login of Airflow."""
    passwords = Path(os.environ["AIRFLOW_HOME"], "simple_auth_manager_passwords.json.generated")
    password = json.loads(passwords.read_text())[role]
    client = httpx.Client(base_url=address, timeout=30)
    answer = client.post("/auth/token", json={"username": role, "password": password})
    client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
    return client


def commit(repository, value, message="More", *, branch="main", path="t2m", **fields):
    with repository.transaction(branch, message=message, **fields) as store:
        zarr.open_array(store, path=path)[value % 4] = value
    return repository.lookup_branch(branch)


def urls(repo):
    tip = repo.lookup_branch("main")
    pages = ["/icechunk/", f"/icechunk/tasks/ingest/{RUN}/write/2", REPO, f"{REPO}/ops"]
    pages += [f"{REPO}/settings", f"{REPO}/snapshots/{tip}"]
    data = ["/icechunk/api/repos", API, f"{API}/history", f"{API}/ops", f"{API}/diff?to={tip}"]
    return [*pages, *data, f"{API}/snapshots/{tip}"]
