"""A driver program for spark-submit: runs a function and stages what it wrote, once.

    spark-submit .../icefloe/spark/app.py --job package.module:function --url s3://bucket/repo \
        --write-key "daily 2026-11-18" --message "day 2026-11-18" --params '{"day": "2026-11-18"}'

The function is called as `job(spark, session, **params)`. The repository is the result channel: the
exit code is 0 only if a snapshot is registered there under the write key. Its id is printed, too.
Why it failed is told as `icefloe.job_reports` says. A job that changed nothing fails, unless
`--allow-empty` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from inspect import signature
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # A script's folder comes first on the path: our modules must not hide those of the job.
    _folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _folder]

from pyspark.sql import SparkSession

from icefloe.descriptions import check_message, check_metadata
from icefloe.errors import InvalidInputError, SessionStateError
from icefloe.repository import Repository
from icefloe.spark.driver_failures import TellingParser, failures_told, log_to_output
from icefloe.spark.job_log import logger
from icefloe.spark.options import import_function, public_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = _parser().parse_args(argv)
    log_to_output()
    with failures_told():
        repo = Repository.open(
            arguments.url,
            arguments.storage_options,
            credentials=arguments.credentials,
            authorize_virtual_chunk_access=dict.fromkeys(arguments.virtual_chunks),
        )
    key = arguments.write_key
    found = repo.find_write(key)
    if found is None:
        with failures_told(repo.storage, key):
            try:
                _run(repo, arguments)
            except Exception:
                # The write may have landed all the same, or somebody else's attempt at it.
                if repo.find_write(key) is None:
                    raise
            except SystemExit as left:
                # A job that ends the program has staged nothing, whatever it says.
                if repo.find_write(key) is None:
                    raise SessionStateError(
                        f"the job called sys.exit({left.code!r}), and no snapshot is registered "
                        f"as {key!r}",
                        kind="job-left",
                    ) from left
            found = repo.find_write(key)
    logger.info("snapshot %s is staged as %r", found, key)
    print(json.dumps({"snapshot_id": found, "write_key": key}), flush=True)
    return 0


def _run(repo: Repository, arguments: argparse.Namespace) -> None:
    # What the flush would refuse must not cost the job.
    check_message(arguments.message)
    check_metadata(arguments.metadata)
    job = import_function(arguments.job)
    _check_parameters(job, arguments)
    branch = None if arguments.base else arguments.branch
    session = repo.writable_session(branch, snapshot_id=arguments.base)
    name = arguments.app_name or f"icefloe: {arguments.write_key}"
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        job(spark, session, **arguments.params)
        if not (session.has_uncommitted_changes or session.read_only or arguments.allow_empty):
            raise SessionStateError(
                f"the job {arguments.job} changed nothing: if it may, say "
                "allow_empty=True to the task, or --allow-empty to this program",
                kind="nothing-written",
            )
        session.flush(arguments.message, metadata=arguments.metadata, write_key=arguments.write_key)
    finally:
        spark.stop()


def _check_parameters(job: Callable[..., Any], arguments: argparse.Namespace) -> None:
    """Raises InvalidInputError if the job cannot be called so: before Spark starts."""
    try:
        known = signature(job)
    except ValueError:
        # Some functions that are not written in Python do not tell.
        return
    try:
        known.bind(None, None, **arguments.params)
    except TypeError as error:
        raise InvalidInputError(
            f"{arguments.job}{known} cannot be called with (spark, session, "
            f"**{arguments.params}): {error}",
            kind="wrong-job-parameters",
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = TellingParser(prog="icefloe.spark.app", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    place = parser.add_mutually_exclusive_group()
    parser.add_argument("--job", required=True, metavar="MODULE:FUNCTION")
    parser.add_argument("--url", required=True, help="of the repository")
    place.add_argument("--base", metavar="SNAPSHOT_ID", help="to write on")
    place.add_argument("--branch", default="main", help="whose tip to write on; it does not move")
    parser.add_argument("--write-key", required=True, help="names this write, in every attempt")
    parser.add_argument("--app-name", help="of the Spark application; made of the key without it")
    parser.add_argument("--message", required=True, help="of the snapshot")
    parser.add_argument("--metadata", type=json_object, default={}, help="of the snapshot, as JSON")
    parser.add_argument(
        "--allow-empty", action="store_true", help="a job that changes nothing succeeds, too"
    )
    parser.add_argument("--params", type=json_object, default={}, help="for the job, as JSON")
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
    parser.add_argument(
        "--virtual-chunks",
        action="append",
        default=[],
        metavar="PREFIX",
        help="of a container whose virtual chunks may be read, with credentials that are found "
        "there; can be given several times",
    )
    return parser


def json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def storage_options(text: str) -> dict[str, Any]:
    # Arguments are shown by `ps`, in logs and in Spark's user interface.
    return public_options(json_object(text))


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse tell what is wrong with an argument: it hides the text of other errors."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InvalidInputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


if __name__ == "__main__":
    sys.exit(main())
