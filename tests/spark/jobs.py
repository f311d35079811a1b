"""Jobs that the driver program runs in tests, and values that tell where they are."""

import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import zarr
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer

from icefloe import InvalidInputError
from icefloe import spark as ice
from spark.kills import java_above, kill

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


def write_chunk_by_chunk(spark, session, tasks=None):
    """With more tasks than regions, the manifests are joined by a second job."""
    create(session)
    ice.write(spark, ice.plan(session, "a"), place, block_bytes=1, tasks=tasks)


def ingest_columns(spark, session):
    """A file for each column of chunks, which touches three regions."""

    def open_file(name):
        columns = slice(int(name), min(int(name) + 5, 23))
        for top in range(0, 17, 4):
            rows = slice(top, min(top + 4, 17))
            yield "a", [rows, columns], expected((17, 23))[rows, columns]

    create(session)
    ice.ingest(spark, session, [str(x) for x in range(0, 23, 5)], open_file, paths=["a"])


def write_all_rows(spark, session, marker=None, noisy=False):
    """The executor of a task of the first stage dies, once, if there is a marker to leave."""

    def give(batches):
        noise = 0.25 * random.random() if noisy else 0
        for batch in batches:
            if marker is not None and not Path(marker).exists():
                Path(marker).touch()
                kill(*java_above()[:1])
            y, x = np.divmod(batch.column(0).to_numpy(), 23)
            columns = [y, x, expected((17, 23))[y, x] + float(noise)]
            yield pa.RecordBatch.from_arrays([*map(pa.array, columns)], ["y", "x", "v"])

    create(session)
    numbers = spark.range(17 * 23, numPartitions=4)
    rows = numbers.mapInArrow(give, "y long, x long, v double")
    ice.write_rows(spark, session, rows, "a", value="v")


def keep_pickles(spark, session, folder):
    """Writes in every way there is, and keeps all that goes to executors."""
    plain = CloudPickleSerializer.dumps

    def dumps(serializer, value):
        data = plain(serializer, value)
        (Path(folder) / uuid.uuid4().hex).write_bytes(data)
        return data

    CloudPickleSerializer.dumps = dumps
    try:
        write_all_rows(spark, session)
        ice.write(spark, ice.plan(session, "a"), place)
    finally:
        CloudPickleSerializer.dumps = plain


def straggle(spark, session):
    """The first attempt at one region stops after a chunk; speculation starts another elsewhere."""

    def compute(block):
        starts = [part.start for part in block.slices]
        if starts == [8, 5] and TaskContext.get().attemptNumber() == 0:
            time.sleep(600)
        return place(block)

    create(session)
    ice.write(spark, ice.plan(session, "a"), compute, block_bytes=1, tasks=1)


def name_modules(spark, session, path):
    """Writes down the modules that a worker of Python has after its part of a write."""

    def compute(block):
        values = place(block)
        Path(path).write_text("\n".join(sorted(sys.modules)))
        return values

    create(session)
    ice.write(spark, ice.plan(session, "a"), compute)


def leave(spark, session):
    """Ends the program, as if all were well."""
    write_all(spark, session)
    sys.exit(0)


def reach_outside(spark, session):
    """Fails on an executor, with a mistake that stays one."""

    def compute(block):
        raise InvalidInputError("outside the grid", kind="row-outside-array")

    create(session)
    ice.write(spark, ice.plan(session, "a"), compute)


def read_outside_a_task(spark, session):
    """Fails in a data source, whose errors reach the driver as the text of Spark's own."""
    options = {"url": session.context.assets.storage.url, "array": "none"}
    spark.read.format("icechunk").options(**options).load().collect()


def fail_for_now(spark, session):
    raise ConnectionError("the source does not answer")


def do_nothing(spark, session):
    """A day without data."""
