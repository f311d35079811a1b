"""A client of Spark Connect that uses the data sources; says as JSON what it got."""

import json
import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import icefloe
from icefloe import InvalidInputError, Repository
from icefloe import spark as ice

PAGE = Path(__file__).parents[2] / "docs" / "spark-operations.md"


def example():
    """What the documentation says of Connect."""
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "SparkSession.builder.remote" in block)


def refused(work):
    """The kind and text of the error that a call ends in."""
    try:
        work()
    except InvalidInputError as error:
        return error.kind, str(error)
    return None


def main(folder):
    url, place = str(folder / "repo"), folder / "stream"
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(ice.IcechunkDataSource)
    spark.dataSource.register(ice.IcechunkSnapshotsDataSource)
    options = {"url": url, "array": "/a"}
    table = spark.read.format("icechunk").options(**options).load()
    answers = {"class": type(spark).__module__}
    answers["read"] = [row.value for row in table.where("y = 3 and x < 4").orderBy("x").collect()]

    row = spark.createDataFrame([(0, 0, -5.0)], "y long, x long, value double").coalesce(1)
    for _ in range(2):
        row.write.format("icechunk").mode("append").options(write_key="once", **options).save()

    place.mkdir()
    (place / "0.json").write_text('{"y": 1, "x": 1, "value": -7}')
    stream = spark.readStream.schema("y long, x long, value double").json(str(place)).coalesce(1)
    sink = stream.writeStream.format("icechunk").options(**options)
    sink = sink.option("checkpointLocation", str(folder / "rows")).trigger(availableNow=True)
    sink.start().awaitTermination()

    commits = spark.readStream.format("icechunk-snapshots").option("url", url)
    sink = commits.option("from", "earliest").load().writeStream.format("parquet")
    sink = sink.option("path", str(folder / "out")).option(
        "checkpointLocation", str(folder / "log")
    )
    sink.trigger(availableNow=True).start().awaitTermination()
    seen = spark.read.parquet(str(folder / "out")).orderBy("written_at").collect()
    answers["snapshots"] = [item.message for item in seen]

    session = Repository.open(url).writable_session("main")
    plan = ice.plan(session, "a")
    repo = Repository.open(url)
    answers["refused"] = {
        "write": refused(lambda: ice.write(spark, plan, len)),
        "write_rows": refused(lambda: ice.write_rows(spark, session, row, "a", value="value")),
        "ingest": refused(lambda: ice.ingest(spark, session, [], len, paths=["a"])),
        "write_sliced": refused(
            lambda: ice.write_sliced(spark, repo, "main", "a", len, message="all", write_key="all")
        ),
    }
    print(json.dumps(answers), flush=True)
    names = {"SparkSession": SparkSession, "icefloe": icefloe, "repo": repo, "compute": len}
    exec(compile(example(), PAGE.name, "exec"), names)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
