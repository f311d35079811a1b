"""The driver program with a fate: `die NUMBER ARGUMENTS` or `meet FOLDER ARGUMENTS`."""

import os
import signal
import sys
import time
from pathlib import Path

from icefloe.spark import app
from spark.kills import At, watch_writes

PATIENCE = 90


def die():
    """End this process and its virtual machine, which are a group of their own."""
    os.killpg(0, signal.SIGKILL)


class Meeting:
    """Lets two drivers wait for each other just before their first swap of the repo object."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._is_over = False

    def __call__(self, when, key):
        if self._is_over or (when, key) != ("before", "repo"):
            return
        self._is_over = True
        (self._folder / str(os.getpid())).touch()
        deadline = time.monotonic() + PATIENCE
        while len(list(self._folder.iterdir())) < 2:
            assert time.monotonic() < deadline, "the other driver does not come"
            time.sleep(0.01)


def main():
    fate, detail, *given = sys.argv[1:]
    watch_writes(Meeting(detail) if fate == "meet" else At(int(detail), die))
    return app.main(given)


if __name__ == "__main__":
    sys.exit(main())
