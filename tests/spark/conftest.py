"""One local Spark session for the whole suite."""

import os
import sys

import pytest


@pytest.fixture(scope="session")
def spark():
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        # Workers would take the first python3 of PATH, and look the machine's name up.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("icefloe-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.sql.shuffle.partitions", "4")
            # Rows of one chunk come in several batches.
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
            .config("spark.executorEnv.ZARR_ARRAY__RECTILINEAR_CHUNKS", "True")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
