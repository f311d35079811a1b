"""The plugin in a real API server of Airflow: a process of its own, with its own login."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import httpx
import pytest

from plugin_server import SETTINGS, sign_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def address(database, airflow_home, repo, tmp_path):
    """Of `airflow api-server`, once it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        **SETTINGS,
        "AIRFLOW_CONN_ICECHUNK_DEFAULT": json.dumps(
            {"conn_type": "icechunk", "host": str(tmp_path / "repo")}
        ),
    }
    command = ["-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    found = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 240
        while not _is_healthy(found):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(1)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=60)


def _is_healthy(address):
    try:
        return httpx.get(f"{address}/api/v2/monitor/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_api_server_serves_the_pages_to_who_may_see_them(address, repo):
    page = "/icechunk/repos/icechunk_default"
    assert httpx.get(f"{address}{page}").status_code == 401
    with closing(sign_in(address, "viewer")) as viewer:
        # The simple auth manager lets viewers read the views of plugins.
        assert viewer.get(page).status_code == 200
        assert viewer.get("/api/v2/connections/icechunk_default").status_code == 403
    with closing(sign_in(address, "op")) as op:
        answer = op.get(page)
        assert answer.status_code == 200
        assert "Arrays" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        tip = repo.lookup_branch("main")
        assert op.get(f"/icechunk/api/repos/icechunk_default/snapshots/{tip}").status_code == 200
    with closing(sign_in(address, "admin")) as admin:
        plugins = admin.get("/api/v2/plugins").json()["plugins"]
        (mine,) = (plugin for plugin in plugins if plugin["name"] == "icechunk")
        assert [view["destination"] for view in mine["external_views"]] == ["nav", "task_instance"]
        assert admin.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0
