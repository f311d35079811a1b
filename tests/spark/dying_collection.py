"""A driver whose executor dies: given path, cutoff, folder, and a file for its summary."""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

from icefloe import Repository
from icefloe import spark as ice
from spark.maintaining import Dying

if __name__ == "__main__":
    path, cutoff, folder, answer = sys.argv[1:]
    repo = Repository.open(Dying(path, "delete", folder))
    spark = SparkSession.builder.getOrCreate()
    summary = ice.maintain.garbage_collect(spark, repo, datetime.fromisoformat(cutoff), force=True)
    spark.stop()
    Path(answer).write_text(json.dumps(asdict(summary)))
