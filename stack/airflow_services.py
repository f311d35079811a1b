"""The four services of Airflow, their settings, and their connections to the other servers."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from stack import postgres, spark
from stack.component import Component, fetch_json
from stack.layout import BUCKET, REGION
from stack.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stack.layout import Layout

USER = "admin"
RANK = 2
"""Of the services, which need all other components."""

_SERVICES: Mapping[str, tuple[list[str], str]] = {
    "api-server": (["api-server"], "metadatabase"),
    # Logs are read from the folder they share: the servers for them would listen everywhere.
    "scheduler": (["scheduler", "--skip-serve-logs"], "scheduler"),
    "dag-processor": (["dag-processor"], "dag_processor"),
    "triggerer": (["triggerer", "--skip-serve-logs"], "triggerer"),
}
"""By name: the command, and what the health report calls it."""


def services(layout: Layout, database: str) -> list[Component]:
    # Drivers of Spark jobs are children of the scheduler.
    environment = layout.environment(
        **settings(layout, database),
        **spark.spark_environment(layout),
        **({} if layout.airflow_only else layout.s3_environment()),
    )
    return [
        Component(
            name=name,
            command=[sys.executable, "-m", "airflow", *command],
            environment=environment,
            is_healthy=partial(_is_healthy, layout, report),
            port=layout.ports["api"] if name == "api-server" else None,
            rank=RANK,
        )
        for name, (command, report) in _SERVICES.items()
    ]


def settings(layout: Layout, database: str) -> dict[str, str]:
    """Airflow's configuration, as its environment variables."""
    home, url = layout.folder / "airflow", layout.url("api")
    database_url = f"sqlite:///{home / 'airflow.db'}"
    if database == "postgres":
        database_url = postgres.database_url(layout)
    options = {
        "core__dags_folder": str(layout.dags),
        "core__executor": "LocalExecutor",
        "core__parallelism": "4",
        "core__load_examples": "False",
        "core__fernet_key": layout.keys.fernet_key,
        "core__execution_api_server_url": f"{url}/execution/",
        "core__test_connection": "Enabled",
        "core__simple_auth_manager_users": f"{USER}:admin",
        "core__simple_auth_manager_passwords_file": str(home / "passwords.json"),
        "database__sql_alchemy_conn": database_url,
        "api__host": LOOPBACK,
        "api__port": str(layout.ports["api"]),
        "api__base_url": url,
        "api__secret_key": layout.keys.api_secret_key,
        "api_auth__jwt_secret": layout.keys.jwt_secret,
        "dag_processor__refresh_interval": "10",
        "logging__base_log_folder": str(layout.logs / "tasks"),
    }
    if database == "postgres":
        options["database__sql_alchemy_conn_async"] = database_url
    named = {f"AIRFLOW__{name.upper()}": value for name, value in options.items()}
    return {"AIRFLOW_HOME": str(home), **named}


def connections(layout: Layout) -> dict[str, str]:
    """What the Dags connect to: JSON, as values of the variables that Airflow reads."""
    found = _local_places(layout) if layout.airflow_only else _places(layout)
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in found.items()}


def _local_places(layout: Layout) -> dict[str, dict[str, Any]]:
    return {
        "icechunk_default": {"conn_type": "icechunk", "host": str(layout.folder / "repository")},
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
    }


def _places(layout: Layout) -> dict[str, dict[str, Any]]:
    keys, endpoint = layout.keys, layout.url("s3")
    account = {"login": keys.s3_access_key, "password": keys.s3_secret_key}
    return {
        "icechunk_default": {
            "conn_type": "icechunk",
            "host": f"s3://{BUCKET}/default",
            **account,
            "extra": {"endpoint_url": endpoint, "region": REGION, "path_style": True},
        },
        "aws_default": {
            "conn_type": "aws",
            **account,
            "extra": {"endpoint_url": endpoint, "region_name": REGION},
        },
        "spark_default": {
            "conn_type": "spark",
            "host": spark.master_url(layout),
            "extra": {"deploy-mode": "client"},
        },
    }


def _is_healthy(layout: Layout, name: str) -> bool:
    report = fetch_json(f"{layout.url('api')}/api/v2/monitor/health")
    return bool(report.get(name, {}).get("status") == "healthy")
