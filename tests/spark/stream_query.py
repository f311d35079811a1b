"""Streams that count once: rows of files, or snapshots of a repository, into an array.

As a program, `stream_query JSON`, it runs one until there is no more, or until it is killed.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from icefloe.spark import IcechunkSnapshotsDataSource
from spark.doomed_source import DoomedDataSource
from spark.kills import kill


def start(spark, source, url, checkpoint, **fate):
    """Begin a query: `source` is a folder of files, or the URL of a repository of commits."""
    spark.dataSource.register(DoomedDataSource)
    spark.dataSource.register(IcechunkSnapshotsDataSource)
    if (Path(source) / "repo").exists():
        snapshots = spark.readStream.format("icechunk-snapshots").option("url", source)
        number = "cast(message as long)"
        frame = snapshots.option("from", "earliest").load().where("message rlike '^[0-9]+$'")
        frame = frame.selectExpr("0L as y", f"{number} as x", f"double(1 + {number}) as value")
    else:
        schema = "y long, x long, value double"
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
    stream = frame.coalesce(1).writeStream.format("doomed").options(url=url, array="a", **fate)
    stream = stream.option("checkpointLocation", str(checkpoint))
    return stream.trigger(availableNow=True).start()


def die_when_there(mark, machine):
    while not mark.exists():
        time.sleep(0.002)
    kill(machine)


def main():
    given = json.loads(sys.argv[1])
    mark = given.pop("mark", None)
    spark = SparkSession.builder.getOrCreate()
    if mark is not None:
        machine = spark.sparkContext._gateway.proc.pid
        threading.Thread(target=die_when_there, args=(Path(mark), machine), daemon=True).start()
    start(spark, **given).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
