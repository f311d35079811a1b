"""A standalone Spark cluster of one master and two workers."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stack.component import Component, fetch_json
from stack.ports import LOOPBACK

if TYPE_CHECKING:
    from stack.layout import Layout

WORKERS = 2


def cluster(layout: Layout) -> list[Component]:
    return [_master(layout), *(_worker(layout, number + 1) for number in range(WORKERS))]


def master_url(layout: Layout) -> str:
    return f"spark://{LOOPBACK}:{layout.ports['spark-master']}"


def spark_environment(layout: Layout) -> dict[str, str]:
    """For master, workers and drivers: this Python, on loopback."""
    return {
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(layout.folder / "spark"),
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Else Spark moves to another port, without a word, if one is taken; and the master's REST
        # server, which nobody uses here, wants port 6066.
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false",
    }


def spark_home() -> str:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RuntimeError("Spark is not installed: pip install pyspark")
    return str(Path(found.origin).parent)


def _master(layout: Layout) -> Component:
    port, ui = layout.ports["spark-master"], layout.ports["spark-master-ui"]
    return Component(
        name="spark-master",
        command=[
            *_spark_class("org.apache.spark.deploy.master.Master"),
            *("--host", LOOPBACK, "--port", str(port), "--webui-port", str(ui)),
        ],
        environment=layout.environment(**spark_environment(layout)),
        is_healthy=lambda: _report(layout).get("status") == "ALIVE",
        port=ui,
    )


def _worker(layout: Layout, number: int) -> Component:
    name = f"spark-worker-{number}"
    port, ui = layout.ports[name], layout.ports[f"{name}-ui"]
    folder = layout.folder / "spark" / name
    return Component(
        name=name,
        command=[
            *_spark_class("org.apache.spark.deploy.worker.Worker"),
            *("--host", LOOPBACK, "--port", str(port), "--webui-port", str(ui)),
            *("--cores", "1", "--memory", "2g", "--work-dir", str(folder), master_url(layout)),
        ],
        # Executors inherit the credentials from their worker.
        environment=layout.environment(**spark_environment(layout), **layout.s3_environment()),
        is_healthy=partial(_is_registered, layout, port),
        port=ui,
        rank=1,
    )


def _spark_class(name: str) -> list[str]:
    return [str(Path(spark_home()) / "bin" / "spark-class"), name]


def _report(layout: Layout) -> dict[str, object]:
    return fetch_json(f"{layout.url('spark-master-ui')}/json/")


def _is_registered(layout: Layout, port: int) -> bool:
    workers = _report(layout).get("workers")
    return isinstance(workers, list) and any(
        worker.get("port") == port and worker.get("state") == "ALIVE" for worker in workers
    )
