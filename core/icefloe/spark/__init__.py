"""The data pipeline on Spark: executors write chunks and manifests, the driver commits."""

from icefloe.spark import maintain
from icefloe.spark.block import Block
from icefloe.spark.data_source import IcechunkDataSource, IcechunkSnapshotsDataSource
from icefloe.spark.ingesting import ingest
from icefloe.spark.planning import Plan, plan
from icefloe.spark.pyramids import pyramid
from icefloe.spark.rechunking import rechunk
from icefloe.spark.row_writing import write_rows
from icefloe.spark.slicing import write_sliced
from icefloe.spark.transforming import transform
from icefloe.spark.virtualizing import virtualize
from icefloe.spark.writing import Staged, write

__all__ = [
    "Block",
    "IcechunkDataSource",
    "IcechunkSnapshotsDataSource",
    "Plan",
    "Staged",
    "ingest",
    "maintain",
    "plan",
    "pyramid",
    "rechunk",
    "transform",
    "virtualize",
    "write",
    "write_rows",
    "write_sliced",
]
