"""Lets Spark find the data source `icechunk-snapshots` without registering it."""

# See pyspark_icechunk.
try:
    from icefloe.spark.data_source import IcechunkSnapshotsDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ = ["DefaultSource"]
