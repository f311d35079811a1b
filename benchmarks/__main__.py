"""Run benchmarks: `python -m benchmarks [NAME ...] [--check] [--json FILE]`.

Without a name, all but the one of Spark, which takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import garbage_collection, metadata_files, spark_scaling
from benchmarks.report import table

USUAL = ("metadata", "gc")
SUITES = {
    "metadata": metadata_files.run,
    "gc": garbage_collection.run,
    "spark": spark_scaling.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - SUITES.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    names = arguments.names or USUAL
    results = [item for name in names for item in SUITES[name]()]
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps([item.as_json() for item in results], indent=2))
    return 1 if arguments.check and not all(item.holds for item in results) else 0


if __name__ == "__main__":
    sys.exit(main())
