"""Lets Spark find the data source `icechunk` without registering it."""

# Spark imports every module named pyspark_* whenever it looks a Python data source up, also where
# icefloe has been installed without its extra `spark`. An error would hide all of them.
try:
    from icefloe.spark.data_source import IcechunkDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ = ["DefaultSource"]
