"""Maintenance on Spark: what `Repository` does on one machine, with executors doing the reading."""

from icefloe.spark.maintain.collecting import garbage_collect
from icefloe.spark.maintain.measuring import stats
from icefloe.spark.maintain.repacking import repack
from icefloe.spark.maintain.resplitting import rewrite_manifests
from icefloe.spark.maintain.verifying import verify

__all__ = ["garbage_collect", "repack", "rewrite_manifests", "stats", "verify"]
