"""Run all benchmarks: `python -m benchmarks [--check] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import metadata_files
from benchmarks.report import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    results = list(metadata_files.run())
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps([item.as_json() for item in results], indent=2))
    return 1 if arguments.check and not all(item.holds for item in results) else 0


if __name__ == "__main__":
    sys.exit(main())
