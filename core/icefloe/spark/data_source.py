"""The data sources `icechunk` (rows of arrays) and `icechunk-snapshots` (a stream of snapshots).

Spark finds them by itself where icefloe is installed: see `pyspark_icechunk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource

from icefloe.errors import InvalidInputError
from icefloe.spark.reading import ArrayReader, LongForm
from icefloe.spark.row_sink import RowSink
from icefloe.spark.snapshot_stream import SCHEMA, SnapshotStream
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class IcechunkDataSource(DataSource):
    """An array as a table: a column for each dimension, and one of values.

    Options, for reading: `url`, `array`; `branch` (main), `tag` or `snapshot_id`; `columns`, with
    commas; `value` (value), the name of that column; `coordinates` (true): whether dimensions show
    their coordinate; `filters` (true): whether filters leave chunks out, for which Spark wants
    `spark.sql.python.filterPushdown.enabled`; `storage_options` (JSON) and `credentials`
    (module:function); `virtual_chunks`, with commas: prefixes of containers to be read from.

    For writing, in mode append: `url`, `array`, `branch`, `storage_options`, `credentials`,
    `columns` (the dimensions', in order), `coordinates` (those of the columns that hold coordinate
    values), `value`, `on_duplicate` (error), `message`, `write_key`.
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
        wanted = self.options.get("filters", "true").lower() != "false"
        if not (wanted and hasattr(datasource, "Filter")):
            return ArrayReader(table)
        # Spark 4.0 has no filters to import.
        from icefloe.spark.filtering import FilteringReader

        return FilteringReader(table)

    @marked()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidInputError("rows are written over an array in mode append")
        return RowSink(dict(self.options))

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

        return RowStreamSink(dict(self.options))


class IcechunkSnapshotsDataSource(DataSource):
    """New snapshots of a branch, as a stream.

    Options: `url`, `branch` (main), `from` (latest, or earliest), `storage_options` (JSON) and
    `credentials` (module:function).
    """

    @classmethod
    def name(cls) -> str:
        return "icechunk-snapshots"

    def schema(self) -> str:
        return SCHEMA

    @marked()
    def streamReader(self, schema: StructType) -> SnapshotStream:  # noqa: N802
        return SnapshotStream(dict(self.options))
