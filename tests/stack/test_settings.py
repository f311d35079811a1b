"""Airflow and the provider understand the settings and the connections, here and in Docker."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stack import airflow_services, keys
from stack.layout import Layout
from stack.ports import PREFERRED

ROOT = Path(__file__).parents[2]

READ = """
import json, os
from airflow.models import Connection
from airflow_icechunk.connections import read_connection

found = {}
for name, text in os.environ.items():
    if name.startswith("AIRFLOW_CONN_"):
        conn_id = name.removeprefix("AIRFLOW_CONN_").lower()
        found[conn_id] = Connection.from_json(text, conn_id=conn_id)
target = read_connection(found["icechunk_default"])
print(json.dumps({
    "types": {name: each.conn_type for name, each in found.items()},
    "spark": found["spark_default"].host,
    "url": target.url,
    "options": target.options,
    "secrets": sorted(target.secrets),
}))
"""


@pytest.fixture
def layout(tmp_path):
    return Layout(folder=tmp_path, dags=ROOT / "dags", ports=PREFERRED, keys=keys.generate())


def known_options():
    folder = Path(importlib.util.find_spec("airflow").origin).parent
    described = yaml.safe_load((folder / "config_templates" / "config.yml").read_text())
    return {
        f"AIRFLOW__{section}__{option}".upper()
        for section, content in described.items()
        for option in content["options"]
    }


def settings_in_docker():
    """By service; every variable of `.env` has the value `x`."""
    text = re.sub(r"\$\{[^}]*\}", "x", (ROOT / "docker-compose.yml").read_text())
    services = yaml.safe_load(text)["services"]
    return {name: service.get("environment", {}) for name, service in services.items()}


def read_connections(variables, home):
    """What a process of Airflow makes of them."""
    given = {name: text for name, text in variables.items() if name.startswith("AIRFLOW_CONN_")}
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={**os.environ, "AIRFLOW_HOME": str(home), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_airflow_knows_every_option_of_the_stack(layout, database):
    known = known_options()
    assert len(known) > 200
    given = airflow_services.settings(layout, database)
    assert {name for name in given if name.startswith("AIRFLOW__")} <= known


def test_airflow_knows_every_option_in_docker():
    given = {name for variables in settings_in_docker().values() for name in variables}
    options = {name for name in given if name.startswith("AIRFLOW__")}
    assert len(options) > 10
    assert options <= known_options()


def test_the_connections_can_be_read_here_and_in_docker(layout, tmp_path):
    here = read_connections(airflow_services.connections(layout), tmp_path)
    assert here["types"] == {
        "icechunk_default": "icechunk",
        "spark_default": "spark",
        "aws_default": "aws",
    }
    assert here["url"] == "s3://icechunk/default"
    assert here["secrets"] == ["key", "secret"]
    assert here.pop("spark") == "spark://127.0.0.1:7077"
    assert here["options"].pop("endpoint_url") == layout.url("s3")

    docker = read_connections(settings_in_docker()["init"], tmp_path)
    assert docker.pop("spark") == "spark://spark-master:7077"
    assert docker["options"].pop("endpoint_url") == "http://seaweedfs:8333"
    assert docker == here


def test_without_spark_and_s3_the_connections_are_local(layout, tmp_path):
    given = airflow_services.connections(replace(layout, airflow_only=True))
    here = read_connections(given, tmp_path)
    assert (here["spark"], here["secrets"], here["options"]) == ("local[2]", [], {})
    assert here["url"] == str(layout.folder / "repository")
    (service, *_) = airflow_services.services(replace(layout, airflow_only=True), "sqlite")
    assert not [name for name in service.environment if name.startswith("AWS_")]


def test_services_take_nothing_from_the_environment_that_changes_them(layout, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", "elsewhere")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("SPARK_MASTER_HOST", "0.0.0.0")
    for service in airflow_services.services(layout, "sqlite"):
        assert service.environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
        assert not {"AIRFLOW__CORE__PLUGINS_FOLDER", "AWS_PROFILE", "SPARK_MASTER_HOST"} & (
            service.environment.keys()
        )


def test_no_secret_is_on_a_command_line(layout):
    secrets = [getattr(layout.keys, name) for name in layout.keys.__slots__]
    for service in airflow_services.services(layout, "postgres"):
        assert not any(secret in word for secret in secrets for word in service.command)
