"""Where the things of a stack are: folders, ports, keys, and the environment of its processes."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stack.ports import LOOPBACK
from stack.processes import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stack.keys import Keys

BUCKET = "icechunk"
REGION = "us-east-1"

_FOREIGN = ("AIRFLOW", "AWS_", "PG", "PYSPARK_", "PYTHON", "SPARK_")
"""Prefixes of variables that would change what a component does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    folder: Path
    dags: Path
    ports: Mapping[str, int]
    keys: Keys
    airflow_only: bool = False
    """Without Spark and S3: the repository is a folder, and Spark runs inside its jobs."""

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def url(self, port: str) -> str:
        return f"http://{LOOPBACK}:{self.ports[port]}"

    def environment(self, **more: str) -> dict[str, str]:
        """Ours, without what would change a component, with the mark of this stack and `more`."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        scripts = sysconfig.get_path("scripts")
        return {
            **ours,
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
            MARK: str(self.folder),
            # Else setproctitle writes a title over the environment, and the mark is lost.
            "SPT_NOENV": "1",
            **more,
        }

    def s3_environment(self) -> dict[str, str]:
        """For clients of the S3 server."""
        return {
            "AWS_ACCESS_KEY_ID": self.keys.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.s3_secret_key,
            "AWS_ENDPOINT_URL": self.url("s3"),
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
