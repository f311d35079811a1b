"""Run the demonstration: `python -m demo`, or `make demo`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from demo.console import Console
from demo.layout import FolderInUseError, Layout, make_folder
from demo.runner import Airflow

if TYPE_CHECKING:
    from types import FrameType

_SHOWN_LINES = 40


def main() -> int:
    """Run it; the exit code."""
    arguments = _parser().parse_args()
    for stopping in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stopping, _interrupt)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        layout = make_folder(arguments.folder)
    except FolderInUseError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    console.line(
        "icefloe and airflow-icechunk: a weather archive, from nothing to yesterday's version"
    )
    try:
        # Else it writes its cache into the home folder.
        os.environ["MPLCONFIGDIR"] = str(layout.folder / "tmp")
        with Airflow(layout) as airflow:
            # Imported while Airflow starts.
            from demo.ending import end
            from demo.story import Story

            story = Story(layout, airflow, console)
            story.tell()
            saved = end(story)
        if arguments.picture:
            shutil.copyfile(saved[-1], arguments.picture)
    except KeyboardInterrupt:
        console.line()
        console.line(f"Stopped. What there was is in {layout.folder}")
        return 130
    except Exception as error:
        console.line()
        console.line(f"The demo failed: {error}")
        _show_log(console, layout)
        return 1
    return 0


def _show_log(console: Console, layout: Layout) -> None:
    lines = layout.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
    for line in lines:
        console.line(f"  | {line}")
    console.line(f"More of it is in {layout.log}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("demo-output"),
        help="where everything goes; an earlier demo in it is replaced (demo-output)",
    )
    parser.add_argument("--picture", type=Path, help="also save the overview here, as PNG")
    return parser


if __name__ == "__main__":
    sys.exit(main())
