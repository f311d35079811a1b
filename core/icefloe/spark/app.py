"""A driver program for spark-submit: runs a function and stages what it wrote, once.

    spark-submit .../icefloe/spark/app.py --job package.module:function --url s3://bucket/repo \
        --write-key "daily 2026-11-18" --message "day 2026-11-18" --params '{"day": "2026-11-18"}'

The function is called as `job(spark, session, **params)`. The repository is the result channel: the
exit code is 0 only if a snapshot is registered there under the write key. Its id is printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # A script's folder comes first on the path: our modules must not hide those of the job.
    _folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _folder]

from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.options import import_function, public_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = _parser().parse_args(argv)
    repo = Repository.open(
        arguments.url,
        arguments.storage_options,
        credentials=arguments.credentials,
        authorize_virtual_chunk_access=dict.fromkeys(arguments.virtual_chunks),
    )
    found = repo.find_write(arguments.write_key)
    if found is None:
        try:
            _run(repo, arguments)
        except Exception:
            # The write may have landed all the same, or somebody else's attempt at it.
            if repo.find_write(arguments.write_key) is None:
                raise
        except SystemExit as left:
            # A job that ends the program has staged nothing, whatever it says.
            print(f"the job called sys.exit({left.code!r})", file=sys.stderr)
        found = repo.find_write(arguments.write_key)
    if found is None:
        print(f"no snapshot is registered as {arguments.write_key!r}", file=sys.stderr)
        return 1
    print(json.dumps({"snapshot_id": found, "write_key": arguments.write_key}), flush=True)
    return 0


def _run(repo: Repository, arguments: argparse.Namespace) -> None:
    branch = None if arguments.base else arguments.branch
    session = repo.writable_session(branch, snapshot_id=arguments.base)
    spark = SparkSession.builder.appName(f"icefloe: {arguments.write_key}").getOrCreate()
    try:
        arguments.job(spark, session, **arguments.params)
        session.flush(arguments.message, metadata=arguments.metadata, write_key=arguments.write_key)
    finally:
        spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="icefloe.spark.app", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    place = parser.add_mutually_exclusive_group()
    parser.add_argument(
        "--job", required=True, type=checked(import_function), metavar="MODULE:FUNCTION"
    )
    parser.add_argument("--url", required=True, help="of the repository")
    place.add_argument("--base", metavar="SNAPSHOT_ID", help="to write on")
    place.add_argument("--branch", default="main", help="whose tip to write on; it does not move")
    parser.add_argument("--write-key", required=True, help="names this write, in every attempt")
    parser.add_argument("--message", required=True, help="of the snapshot")
    parser.add_argument("--metadata", type=json_object, default={}, help="of the snapshot, as JSON")
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
