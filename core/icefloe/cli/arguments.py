"""What the command line takes: commands, options, and how ages and store options are written."""

from __future__ import annotations

import argparse
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from icefloe.version import __version__

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str) -> datetime:
    """A time in ISO 8601, or an age before now: `90m`, `36h`, `30d`, `8w`."""
    age = re.fullmatch(r"(\d+)([mhdw])", text)
    try:
        if age:
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        return datetime.fromisoformat(text)
    # An age may reach back before the year 1.
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an age such as 30d or 36h nor a time such as 2026-11-18"
        ) from None


def store_options(text: str) -> dict[str, Any]:
    """JSON, or the name of a file with JSON behind `@`, which keeps secrets out of `ps`."""
    # Secrets may stand in the text: it is not repeated.
    place = repr(text) if text.startswith("@") else "the text"
    try:
        found = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{place} holds no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{place} is not a JSON object")
    return found


def count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: 0 or more")
    return number


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="icefloe", description="Look after Icechunk repositories.", allow_abbrev=False
    )
    root.add_argument("--version", action="version", version=f"icefloe {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.add_argument("url", help="the repository: a path or a URL")
        added.add_argument(
            "--storage-options",
            type=store_options,
            metavar="JSON|@FILE",
            help="options of the URL's file system; credentials are better in the environment",
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        return added

    _add_reading(command)
    _add_upkeep(command)
    return root


def _add_reading(command: Any) -> None:
    log = command("log", "Print the history of a branch, newest first.")
    log.add_argument("--branch", default="main")
    log.add_argument("-n", type=count, default=20, dest="count", help="how many (default 20)")
    graph = command("graph", "Draw all branches and tags.")
    graph.add_argument("-n", type=count, default=None, dest="count", help="how many snapshots")
    command("refs", "Print branches and tags.")
    ops = command("ops", "Print what was done to the repository, newest first.")
    ops.add_argument("-n", type=count, default=20, dest="count", help="how many (default 20)")
    stats = command("stats", "Print how many bytes of chunks there are, and who needs them.")
    stats.add_argument(
        "--by", choices=["repository", "array", "snapshot", "branch"], default="array"
    )
    verify = command("verify", "Check the repository; exit with 1 if something is wrong.")
    verify.add_argument("--level", choices=["metadata", "objects", "data"], default="metadata")


def _add_upkeep(command: Any) -> None:
    expire = command("expire", "Let go of old snapshots.")
    _add_cutoff(expire)
    expire.add_argument("--keep-last", type=count, help="snapshots that every branch keeps")
    expire.add_argument("--branch", action="append", dest="branches", help="only this branch")
    expire.add_argument("--delete-branches", action="store_true", help="whose tip is that old")
    expire.add_argument("--delete-tags", action="store_true", help="whose snapshot is that old")
    gc = command("gc", "Delete objects that nothing needs any more.")
    _add_cutoff(gc)
    gc.add_argument("--force", action="store_true", help="take a cutoff younger than a day")
    trim = command("trim", "Delete old backups of the repo object.")
    trim.add_argument(
        "--keep", type=count, default=1000, help="operations (default and least: 1000)"
    )
    trim.add_argument("--dry-run", action="store_true", help="change nothing")
    rewrite = command("rewrite-manifests", "Cut manifests as the configuration says.")
    rewrite.add_argument("--branch", default="main")
    rewrite.add_argument("--message", default="Rewrite manifests")
    rewrite.add_argument("--amend", action="store_true", help="replace the tip")
    repack = command("repack", "Move chunks from small objects into packs.")
    repack.add_argument("--branch", default="main")
    repack.add_argument("--array", action="append", dest="arrays", help="only this array")
    status = command("status", "Print or set whether the repository takes reads and writes.")
    status.add_argument("--set", choices=["online", "read-only", "offline"], dest="availability")
    status.add_argument("--reason", help="why")


def _add_cutoff(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--older-than",
        type=moment,
        required=True,
        metavar="AGE|TIME",
        help="an age such as 30d or 36h, or a time such as 2026-11-18",
    )
    command.add_argument("--dry-run", action="store_true", help="change nothing")
