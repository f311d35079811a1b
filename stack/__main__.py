"""The command line: `python -m stack up|status|down`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stack import commands

_PROJECT = Path(__file__).parents[1]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stack", description=__doc__)
    parser.add_argument("command", choices=["up", "status", "down"])
    parser.add_argument(
        "--folder",
        type=Path,
        default=_PROJECT / ".stack",
        help="where the stack keeps all it has, .stack unless given",
    )
    parser.add_argument(
        "--dags", type=Path, default=_PROJECT / "dags", help="a folder of Dags, for up"
    )
    parser.add_argument(
        "--airflow-only",
        action="store_true",
        help="for up: no Spark cluster and no S3 server; the repository is a folder",
    )
    arguments = parser.parse_args(argv)
    folder = arguments.folder.resolve()
    try:
        if arguments.command == "up":
            dags = arguments.dags.resolve()
            return commands.up(folder, dags, airflow_only=arguments.airflow_only)
        return {"status": commands.status, "down": commands.down}[arguments.command](folder)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
