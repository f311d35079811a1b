"""The folder of one demonstration, and the environment of everything that runs in it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DAGS = ROOT / "demo" / "dags"
MARK = "ICEFLOE_DEMO_FOLDER"
"""An environment variable that every process of a demonstration has."""

_SIGN = ".icefloe-demo"
_FOREIGN = ("AIRFLOW", "SPARK_", "PYSPARK_", "PYTHON")


class FolderInUseError(Exception):
    """The folder holds something that is not ours to delete."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are."""

    folder: Path

    @property
    def repo(self) -> Path:
        return self.folder / "archive"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"

    @property
    def log(self) -> Path:
        return self.folder / "airflow-and-spark.log"

    @property
    def task_logs(self) -> Path:
        return self.folder / "airflow" / "logs"

    @property
    def database(self) -> Path:
        return self.folder / "airflow" / "airflow.db"

    @property
    def hold(self) -> Path:
        """While this file is there, one writer waits halfway."""
        return self.folder / "hold-the-writer"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"


def make_folder(folder: Path) -> Layout:
    """An empty folder; what an earlier demonstration left in it is deleted.

    Raises:
        FolderInUseError: it holds something else.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise FolderInUseError(f"{folder} is a file: choose another folder with --folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / _SIGN).is_file():
            raise FolderInUseError(
                f"{folder} is not empty, and no earlier demo made it: choose another --folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SIGN).write_text("Made by `python -m demo`, which deletes this folder next time.\n")
    layout = Layout(folder)
    for path in (layout.plots, folder / "tmp", folder / "spark"):
        path.mkdir()
    return layout


def environment(layout: Layout, *, parallel: int) -> dict[str, str]:
    """For Airflow, its tasks and their Spark drivers; settings of other installations left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    temporary = layout.folder / "tmp"
    airflow = {
        "core__dags_folder": str(DAGS),
        "core__executor": "demo.executor.EmbeddedExecutor",
        "core__parallelism": str(parallel),
        "core__load_examples": "False",
        "database__sql_alchemy_conn": f"sqlite:///{layout.database}?timeout=30",
        "api_auth__jwt_secret": secrets.token_hex(32),
        "logging__base_log_folder": str(layout.task_logs),
        "usage_data_collection__enabled": "False",
    }
    connections = {
        "icechunk_default": {"conn_type": "icechunk", "host": str(layout.repo)},
        # One core for each driver: the parallel work is that of the tasks.
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
    }
    return {
        **kept,
        MARK: str(layout.folder),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "AIRFLOW_HOME": str(layout.folder / "airflow"),
        **{f"AIRFLOW__{name.upper()}": value for name, value in airflow.items()},
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(it) for name, it in connections.items()},
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(layout.folder / "spark"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Short-lived JVMs: the fast compiler, one thread for garbage, no file in /tmp.
        "JDK_JAVA_OPTIONS": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
            f'"-Djava.io.tmpdir={temporary}"'
        ),
    }
