"""The data sources `icechunk` (rows of arrays) and `icechunk-snapshots` (a stream of snapshots).

Spark finds them by itself where icefloe is installed: see `pyspark_icechunk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource

from icefloe.errors import InvalidInputError
from icefloe.spark.option_list import Use, check_options
from icefloe.spark.options import flag
from icefloe.spark.reading import ArrayReader, LongForm
from icefloe.spark.row_sink import RowSink
from icefloe.spark.snapshot_stream import SCHEMA, SnapshotStream, begin_of
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class IcechunkDataSource(DataSource):
    """An array as a table: a column for each dimension, and one of values.

    A row says where its value is in the same words, read or written. `icefloe.spark.option_list`
    has the options.
    """

    @classmethod
    def name(cls) -> str:
        return "icechunk"

    @marked()
    def schema(self) -> str:
        return LongForm.of(self.options).schema()

    @marked()
    def reader(self, schema: StructType) -> ArrayReader:
        table = LongForm.of(self.options)
        if not (flag(self.options, "filters", True) and hasattr(datasource, "Filter")):
            return ArrayReader(table)
        # Spark 4.0 has no filters to import.
        from icefloe.spark.filtering import FilteringReader

        return FilteringReader(table)

    @marked()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidInputError("rows are written over an array in mode append")
        check_options(self.options, Use.WRITE)
        return RowSink(dict(self.options), schema)

    @marked()
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise InvalidInputError(
                "streams of rows are written by Spark 4.1 or newer", kind="spark-too-old"
            )
        # Spark 4.0 has no such writer to import.
        from icefloe.spark.row_stream_sink import RowStreamSink

        check_options(self.options, Use.WRITE_STREAM)
        return RowStreamSink(dict(self.options), schema)


class IcechunkSnapshotsDataSource(DataSource):
    """New snapshots of a branch, as a stream. `icefloe.spark.option_list` has the options."""

    @classmethod
    def name(cls) -> str:
        return "icechunk-snapshots"

    @marked()
    def schema(self) -> str:
        check_options(self.options, Use.READ_STREAM)
        # An error of the reader itself would be hidden behind one of Spark.
        begin_of(self.options)
        return SCHEMA

    @marked()
    def streamReader(self, schema: StructType) -> SnapshotStream:  # noqa: N802
        check_options(self.options, Use.READ_STREAM)
        return SnapshotStream(dict(self.options))
