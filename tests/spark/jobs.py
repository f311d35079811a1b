"""Jobs that the driver program runs in tests, and values that tell where they are."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import zarr
from pyspark import TaskContext

from icefloe import spark as ice

PLACE = [10_000, 100, 1]


def place(block):
    return sum(n * at for n, at in zip(PLACE, block.mesh(), strict=False)) + 1


def expected(shape):
    return sum(n * at for n, at in zip(PLACE, np.ix_(*map(np.arange, shape)), strict=False)) + 1


def create(session, name="a", shape=(17, 23), chunks=(4, 5), **options):
    options = {"dtype": "f8", "dimension_names": ["y", "x"][: len(shape)]} | options
    return zarr.create_array(session.store, name=name, shape=shape, chunks=chunks, **options)


def write_all(spark, session, path="a"):
    """Create an array and write it."""
    create(session, path)
    ice.write(spark, ice.plan(session, path), place)


def fail_before_flush(spark, session, marker):
    """Dies once, when everything is written."""
    write_all(spark, session)
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def lose_executor(spark, session, marker):
    """One executor dies in the middle of its task, once."""

    def compute(block):
        if block.slices[0].start >= 8 and not Path(marker).exists():
            Path(marker).touch()
            jvm = next(each for each in psutil.Process().parents() if each.name() == "java")
            jvm.kill()
            time.sleep(60)
        return place(block)

    create(session)
    ice.write(spark, ice.plan(session, "a"), compute, block_bytes=1)


def straggle(spark, session):
    """The first attempt at one region takes for ever; speculation starts another elsewhere."""

    def compute(block):
        starts = [part.start for part in block.slices]
        if starts == [8, 0] and TaskContext.get().attemptNumber() == 0:
            time.sleep(600)
        return place(block)

    create(session)
    ice.write(spark, ice.plan(session, "a"), compute, tasks=1)
