"""Writing a stream of rows: one commit for each batch. Spark has what it takes since 4.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from icefloe.errors import InvalidInputError
from icefloe.spark.options import open_repository, required
from icefloe.spark.row_sink import publish, row_target, write_partition, written_rows
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import WriterCommitMessage


@dataclass
class RowStreamSink(DataSourceStreamArrowWriter):
    """A streaming write: one commit for each batch, whatever is replayed."""

    options: dict[str, str]

    @marked()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_partition(row_target(self.options), iterator)

    @marked()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = written_rows(messages)
        path = "/" + required(self.options, "array").strip("/")
        ids = {item.query_id for item in written}
        if written and (len(ids) != 1 or None in ids):
            raise InvalidInputError(f"one streaming query has the ids {ids}: it has to have one")
        publish(
            open_repository(self.options),
            self.options.get("branch", "main"),
            path,
            written,
            self.options.get("message", f"write batch {batchId} to {path}"),
            f"streaming query {ids.pop() if ids else None} batch {batchId} {path}",
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing, for the reason that `RowSink.abort` gives."""
