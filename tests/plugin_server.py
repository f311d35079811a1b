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

from airflow_icechunk.plugin.icechunk_plugin import IcechunkPlugin

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
