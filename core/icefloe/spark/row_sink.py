"""Writing rows through the data source: tasks write chunks, one commit publishes them.

Spark hands over partitions as they are, so rows of one chunk must be in one partition: repartition
by what the chunks are cut by, or use `write_rows`, which does. A chunk in two partitions is an
error, never a lost value.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from icefloe.chunk_edits import common_rows, rows_in
from icefloe.conflicts import ConflictDetector
from icefloe.errors import InvalidInputError
from icefloe.spark.options import names_in, open_repository, open_session, required
from icefloe.spark.planning import plan_array
from icefloe.spark.regions import base_refs, read_manifest, write_manifest
from icefloe.spark.row_writing import columns_of
from icefloe.spark.rows import RowTarget, RowWriter, by_chunk, joined, locate
from icefloe.spark.source import Source
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from numpy.typing import NDArray

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.options import Options
    from icefloe.spark.regions import WrittenManifest
    from icefloe.spark.rows import OnDuplicate

QUERY_ID = "sql.streaming.queryId"
"""What Spark calls the id of a streaming query in the properties of its tasks."""


@dataclass(frozen=True, eq=False)
class WrittenRows(WriterCommitMessage):
    """Chunks that a task wrote. Their references wait in a manifest."""

    base: str
    """The snapshot that they were written over."""
    manifest: WrittenManifest | None
    emptied: NDArray[np.uint32]
    """Chunks that were there, and are all fill value now."""
    query_id: str | None


def row_target(options: Options) -> RowTarget:
    """Where rows go, on the branch's tip as it is now."""
    session = open_session({"branch": "main", **options})
    path = "/" + required(options, "array").strip("/")
    array = plan_array(session, path, None)
    columns = columns_of(array, names_in(options, "columns") or None)
    on_duplicate = options.get("on_duplicate", "error")
    if on_duplicate not in ("error", "any"):
        raise InvalidInputError(f"on_duplicate is 'error' or 'any', not {on_duplicate!r}")
    return RowTarget(
        Source.of(session.context, session.snapshot_id),
        replace(array, cells=(), carried=()),
        columns,
        frozenset(names_in(options, "coordinates")),
        options.get("value", "value"),
        cast("OnDuplicate", on_duplicate),
    )


def write_partition(target: RowTarget, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    """Write the rows of a partition, which have to fit into memory."""
    parts = [locate(target, batch) for batch in batches]
    parts = [part for part in parts if len(part)]
    if not parts:
        return WriterCommitMessage()
    rows = joined(parts)
    writer = RowWriter(target)
    for chunk in by_chunk([rows.take(np.argsort(rows.chunk, kind="stable"))]):
        writer.write(chunk)
    edits, session, path = writer.finish(), writer.session, target.array.path
    context = TaskContext.get()
    return WrittenRows(
        session.snapshot_id,
        write_manifest(session, path, edits.live()),
        _present(session, path, edits.index[edits.deleted]),
        None if context is None else context.getLocalProperty(QUERY_ID),
    )


def _present(session: Session, path: str, index: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Those of the chunks that a session has."""
    if not len(index):
        return index
    low, high = index.min(axis=0).tolist(), index.max(axis=0).tolist()
    box = tuple((a, b + 1) for a, b in zip(low, high, strict=True))
    return index[rows_in(index, base_refs(session, path, box).index)]


def publish(
    repo: Repository,
    branch: str,
    path: str,
    written: Sequence[WrittenRows],
    message: str,
    write_key: str,
) -> None:
    """Commit what tasks wrote, unless a commit with this key is in the branch's history.

    Raises:
        InvalidInputError: two tasks wrote one chunk.
        ConflictError: so did somebody who committed meanwhile.
    """
    if not written or repo.find_write(write_key, branch):
        return
    session = repo.writable_session(branch)
    if {item.base for item in written} == {session.snapshot_id}:
        _take_over(session, path, written)
        session.commit(
            message, write_key=write_key, rebase_with=ConflictDetector(), allow_empty=True
        )
        return
    # Somebody committed since the tasks began, or between them.
    staged: list[str] = []
    for base, group in groupby(sorted(written, key=lambda item: item.base), key=lambda i: i.base):
        session = repo.writable_session(snapshot_id=base)
        _take_over(session, path, list(group))
        # Without a key: what an earlier attempt staged on this base may be other tasks' rows.
        staged.append(session.flush(message))
    repo.merge_snapshots(branch, staged, message, write_key=write_key)


def _take_over(session: Session, path: str, written: Sequence[WrittenRows]) -> None:
    seen: NDArray[np.uint32] | None = None
    for item in written:
        refs = read_manifest(session, path, item.manifest)
        chunks = np.concatenate([refs.index, item.emptied])
        twice = chunks[:0] if seen is None else common_rows(chunks, seen)
        if len(twice):
            raise InvalidInputError(
                f"rows of chunk {min(map(tuple, twice.tolist()))} of {path} are in several "
                "partitions: repartition the rows so that a chunk's are together, or use "
                "icefloe.spark.write_rows",
                kind="chunk-in-several-partitions",
            )
        seen = chunks if seen is None else np.concatenate([seen, chunks])
        if len(refs):
            session.set_refs(path, refs)
        if len(item.emptied):
            session.delete_chunks(path, item.emptied)


@dataclass
class RowSink(DataSourceArrowWriter):
    """A batch write: one commit."""

    options: dict[str, str]

    def __post_init__(self) -> None:
        self.target = row_target(self.options)
        self.write_key = self.options.get("write_key") or uuid.uuid4().hex

    @marked()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_partition(self.target, iterator)

    @marked()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(
            open_repository(self.options),
            self.options.get("branch", "main"),
            self.target.array.path,
            written_rows(messages),
            self.options.get("message", f"write rows to {self.target.array.path}"),
            self.write_key,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: Spark aborts after a commit that landed, too, if its answer was lost."""


def written_rows(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenRows]:
    """What tasks that had rows answered."""
    return [message for message in messages if isinstance(message, WrittenRows)]
