"""The driver that jobs need: where Spark Connect is used, there is none in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkAttributeError

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def spark_context(spark: SparkSession) -> SparkContext:
    """What runs jobs of our own.

    Raises:
        InvalidInputError: the session is one of Spark Connect, which runs data sources only.
    """
    try:
        return spark.sparkContext
    except PySparkAttributeError as error:
        raise InvalidInputError(
            "this needs a Spark driver in its own process, and Spark Connect has none: write rows "
            'through the data source (df.write.format("icechunk")), or run the job with '
            "spark-submit (icefloe.spark.app)",
            kind="spark-connect",
        ) from error
