"""How far Spark jobs are: a bar where somebody is looking, a line of the log now and then."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO

from icefloe.spark.job_log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

_SECONDS = 0.5
_LOG_SECONDS = 30.0
"""Between two lines of the log."""
_WIDTH = 30


@contextmanager
def shown(context: SparkContext, description: str) -> Iterator[None]:
    """Show how far the jobs that start in here are, on a terminal or in a notebook, and log it."""
    stream = sys.stderr
    out = stream if stream.isatty() or hasattr(sys, "ps1") else None
    over = Event()
    watcher = Thread(target=_watch, args=(context, description, over, out), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(context: SparkContext, description: str, over: Event, out: TextIO | None) -> None:
    tracker = context.statusTracker()
    earlier = {*tracker.getActiveJobsIds()}
    stages: dict[int, tuple[int, int]] = {}
    logged = time.monotonic()
    while not over.wait(_SECONDS):
        for job_id in {*tracker.getActiveJobsIds()} - earlier:
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                if stage := tracker.getStageInfo(stage_id):
                    stages[stage_id] = stage.numCompletedTasks, stage.numTasks
        done = sum(completed for completed, _ in stages.values())
        count = sum(total for _, total in stages.values())
        if time.monotonic() - logged >= _LOG_SECONDS:
            logged = time.monotonic()
            logger.info("%s: %s of %s tasks are done", description, f"{done:,}", f"{count:,}")
        if out is not None:
            out.write(f"\r{bar(done, count)} {description}")
            out.flush()
    if out is not None:
        # The next line of output starts on a clear line.
        out.write("\r\033[K")
        out.flush()


def bar(done: int, count: int) -> str:
    filled = _WIDTH * done // max(count, 1)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {count:,} tasks"
