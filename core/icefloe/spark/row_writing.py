"""Writing a DataFrame into an array: rows are hashed to regions, and written in the last stage."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]

from icefloe.errors import InvalidInputError
from icefloe.spark.columns import dimension_columns
from icefloe.spark.context import spark_context
from icefloe.spark.coordinates import labelled_axes
from icefloe.spark.job_log import JobLog
from icefloe.spark.planning import carried_cells, plan_array, planned_manifests
from icefloe.spark.regions import write_region
from icefloe.spark.row_columns import check_target
from icefloe.spark.rows import (
    CHUNK,
    REGION,
    VALUE,
    RowTarget,
    RowWriter,
    by_chunk,
    carried,
    from_batch,
    locate,
    to_batch,
)
from icefloe.spark.source import Source
from icefloe.spark.task_errors import marked, task_errors_raised
from icefloe.spark.tasks import carry_region
from icefloe.spark.writing import Staged, adopt, described, run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.session import Session
    from icefloe.spark.planning import ArrayPlan
    from icefloe.spark.regions import WrittenRegion
    from icefloe.spark.rows import OnDuplicate

_TASKS_PER_CORE = 3


def write_rows(
    spark: SparkSession,
    session: Session,
    rows: DataFrame,
    path: str,
    *,
    value: str,
    columns: Sequence[str] | None = None,
    coordinates: bool | Collection[str] = True,
    decode: bool = True,
    on_duplicate: OnDuplicate = "error",
) -> Staged:
    """Write the values of rows to their places in an array, now, and let the session adopt them.

    Elements that no row has keep their values.

    Args:
        spark: see `write`.
        session: a writable one.
        rows: with a column for each dimension, and one of values.
        path: of the array.
        value: the column of values.
        columns: those of the dimensions, in order; None means that they have the dimensions' names.
        coordinates: True: dimensions that have a coordinate (the one-dimensional array of their
            name beside the array) are told by its labels, as the data source tells them; the others
            by position. False: all by position. Or the columns that hold labels.
        decode: what is written is what `scale_factor`, `add_offset`, `_FillValue` and the like make
            of stored values; False: it is stored as it is.
        on_duplicate: where several rows have one place: `error`, or `any` of them counts.

    Raises:
        InvalidInputError: the columns do not fit the array, or a row has no place in it, such as a
            label that the coordinate does not have. Nothing is adopted then.
    """
    context = spark_context(spark)
    path = "/" + path.strip("/")
    if on_duplicate not in ("error", "any"):
        raise InvalidInputError(f"on_duplicate is 'error' or 'any', not {on_duplicate!r}")
    array = plan_array(session, path, None)
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    names = columns_of(array, columns)
    target = RowTarget(
        source,
        replace(array, cells=(), carried=()),
        names,
        labelled_axes(session, path, names, coordinates),
        value,
        decode,
        on_duplicate,
    )
    check_target(target, rows.schema)
    count = _tasks(context, len(array.cells))
    log = JobLog(
        f"write rows to {path}, to {array.chunks:,} chunks in {len(array.cells):,} regions at "
        f"most, by {count:,} tasks"
    )
    regions = _write(context, rows, target, count)
    cells = sorted(region.cell for region in regions)
    untouched = carried_cells(planned_manifests(session, path), array.sizes, cells)
    array = replace(array, cells=tuple(cells), carried=tuple(untouched))
    regions += run(
        context,
        partial(carry_region, source, target.array),
        untouched,
        f"icefloe: carry regions of {path} over",
    )
    staged = adopt(session, array, regions)
    log.done([staged], base)
    return Staged(session, base, (staged,))


def _write(
    context: SparkContext, rows: DataFrame, target: RowTarget, count: int
) -> list[WrittenRegion]:
    names = (*target.columns, target.value)
    chosen = rows.select(*(f"`{name.replace('`', '``')}`" for name in names))
    kind = carried(target.packing.stored)[0]
    places = ", ".join(f"_{axis} long" for axis in range(len(target.columns)))
    located = chosen.mapInArrow(
        partial(_locate, target), f"{REGION} long, {CHUNK} long, {places}, {VALUE} {kind}"
    )
    # By hash, never by range: that would run everything above it twice.
    sorted_rows = located.repartition(count, REGION).sortWithinPartitions(REGION, CHUNK)
    written = sorted_rows.mapInArrow(partial(_write_sorted, target), "region binary")
    told = f"icefloe: write rows to {target.array.path}"
    with described(context, told), task_errors_raised():
        return [pickle.loads(row.region) for row in written.collect()]


def _tasks(context: SparkContext, regions: int) -> int:
    return max(min(regions, context.defaultParallelism * _TASKS_PER_CORE), 1)


def _locate(target: RowTarget, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with marked():
        for batch in batches:
            yield to_batch(locate(target, batch))


def _write_sorted(target: RowTarget, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the regions of one partition; a batch with a report for each."""
    chunks = by_chunk(from_batch(target, batch) for batch in batches)
    with marked():
        for region, group in groupby(chunks, key=lambda rows: int(rows.region[0])):
            writer = RowWriter(target)
            for rows in group:
                writer.write(rows)
            cell, array = target.cell(region), target.array
            written = write_region(
                writer.session, array.path, cell, array.cell_box(cell), writer.finish()
            )
            yield pa.RecordBatch.from_pydict({"region": [pickle.dumps(written)]})


def columns_of(array: ArrayPlan, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The column of each dimension; by default, what the data source calls it."""
    known = dimension_columns(array.grid)
    if isinstance(columns, str):
        raise InvalidInputError(f"columns is a list of names: {columns.split(',')}")
    found = known if columns is None else tuple(columns)
    if len(found) != len(known):
        raise InvalidInputError(
            f"name a column for each of the {len(known)} dimensions of {array.path}, which are "
            f"{', '.join(known)}: {', '.join(found)}"
        )
    return found
