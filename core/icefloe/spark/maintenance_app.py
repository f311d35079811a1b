"""A driver program for spark-submit: one maintenance task, and a report of what it did.

    spark-submit .../icefloe/spark/maintenance_app.py --task garbage_collect \
        --url s3://bucket/repo --report-key "weekly 2026-11-18" \
        --params '{"delete_object_older_than": "2026-11-11T00:00:00Z"}'

The report is stored in the repository (see `icefloe.job_reports`) under the report key, and the
exit code is 0 only if it is there. A key that has a report already has had its run: nothing is
done again. Why a run failed is told as `icefloe.job_reports` says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # A script's folder comes first on the path: our modules must not hide those of others.
    _folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _folder]

from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError
from icefloe.job_reports import find_report, store_report
from icefloe.repository import Repository
from icefloe.spark import maintain
from icefloe.spark.app import checked, json_object, storage_options
from icefloe.spark.driver_failures import TellingParser, failures_told, log_to_output
from icefloe.spark.job_log import logger
from icefloe.spark.options import import_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    type Task = Callable[[SparkSession, Repository, dict[str, Any]], dict[str, Any]]
    """Runs with the parameters; what it reports, as plain JSON."""

_FINDINGS = 100
"""Of a verification, in its report, unless a limit is given."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = _parser().parse_args(argv)
    log_to_output()
    with failures_told():
        repo = Repository.open(
            arguments.url, arguments.storage_options, credentials=arguments.credentials
        )
    report = find_report(repo.storage, arguments.report_key)
    if report is None:
        with failures_told(repo.storage, arguments.report_key):
            _check(arguments.task, arguments.params)
            logger.info("%s of %s, with %s", arguments.task, arguments.url, arguments.params)
            report = _run(repo, arguments)
            logger.info("%s is done: %.1000s", arguments.task, json.dumps(report["result"]))
            store_report(repo.storage, arguments.report_key, report)
    print(json.dumps(report), flush=True)
    return 0


def _run(repo: Repository, arguments: argparse.Namespace) -> dict[str, Any]:
    started_at = datetime.now(UTC)
    name = arguments.app_name or f"icefloe: {arguments.task}, {arguments.report_key}"
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        result = TASKS[arguments.task](spark, repo, _completed(arguments))
    finally:
        spark.stop()
    return {
        "task": arguments.task,
        "report_key": arguments.report_key,
        "started_at": started_at.isoformat(),
        "finished_at": datetime.now(UTC).isoformat(),
        "result": result,
    }


def _completed(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters; an attempt that committed but could not report must not do so again."""
    if arguments.task in {"rewrite_manifests", "repack"}:
        return {**arguments.params, "write_key": f"maintenance: {arguments.report_key}"}
    return dict(arguments.params)


def _collect(spark: SparkSession, repo: Repository, params: dict[str, Any]) -> dict[str, Any]:
    cutoff = _time(params.pop("delete_object_older_than"))
    if "safety_floor_seconds" in params:
        params["safety_floor"] = timedelta(seconds=params.pop("safety_floor_seconds"))
    return asdict(maintain.garbage_collect(spark, repo, cutoff, **params))


def _verify(spark: SparkSession, repo: Repository, params: dict[str, Any]) -> dict[str, Any]:
    findings = maintain.verify(spark, repo, **{"limit": _FINDINGS, **params})
    errors = sum(finding.severity == "error" for finding in findings)
    return {"errors": errors, "findings": [asdict(finding) for finding in findings]}


def _stats(spark: SparkSession, repo: Repository, params: dict[str, Any]) -> dict[str, Any]:
    return {"stats": [asdict(row) for row in maintain.stats(spark, repo, **params)]}


def _rewrite(spark: SparkSession, repo: Repository, params: dict[str, Any]) -> dict[str, Any]:
    return {"snapshot_id": maintain.rewrite_manifests(spark, repo, **params)}


def _repack(spark: SparkSession, repo: Repository, params: dict[str, Any]) -> dict[str, Any]:
    return asdict(maintain.repack(spark, repo, **params))


TASKS: dict[str, Task] = {
    "garbage_collect": _collect,
    "verify": _verify,
    "stats": _stats,
    "rewrite_manifests": _rewrite,
    "repack": _repack,
}
PARAMETERS = {
    "garbage_collect": (
        {"delete_object_older_than"},
        {"dry_run", "force", "safety_floor_seconds", "staging"},
    ),
    "verify": (set[str](), {"level", "limit", "staging"}),
    "stats": (set[str](), {"by", "staging"}),
    "rewrite_manifests": ({"message", "branch"}, {"metadata", "commit_method"}),
    "repack": ({"branch"}, {"arrays", "message", "metadata", "staging"}),
}
"""Those that a task needs, and those that it takes."""


def _check(task: str, params: dict[str, Any]) -> None:
    needed, taken = PARAMETERS[task]
    for name in sorted(needed - params.keys()):
        raise InvalidInputError(f"{task} needs the parameter {name!r}", kind="missing-parameter")
    for name in sorted(params.keys() - needed - taken):
        raise InvalidInputError(f"{task} has no parameter {name!r}", kind="unknown-parameter")


def _time(text: str) -> datetime:
    """A time with its offset: a driver may run in any time zone."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{text!r} is not a time like 2026-11-18T00:00:00Z") from error
    if found.tzinfo is None:
        raise InvalidInputError(f"{text!r} has no offset: write 2026-11-18T00:00:00Z, or +01:00")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = TellingParser(prog="icefloe.spark.maintenance_app", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--url", required=True, help="of the repository")
    parser.add_argument("--report-key", required=True, help="names this run, in every attempt")
    parser.add_argument("--app-name", help="of the Spark application; made of the key without it")
    parser.add_argument(
        "--params", type=json_object, default={}, help="arguments of the task, as JSON"
    )
    parser.add_argument(
        "--storage-options",
        type=checked(storage_options),
        default={},
        help="as JSON; none that is secret",
    )
    parser.add_argument(
        "--credentials",
        type=checked(import_function),
        metavar="MODULE:FUNCTION",
        help="gives secret storage options, on the driver and on executors",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
