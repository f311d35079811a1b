"""Writing a DataFrame into an array: rows are hashed to regions, and written in the last stage."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]

from icefloe.errors import InvalidInputError
from icefloe.spark.context import spark_context
from icefloe.spark.planning import carried_cells, plan_array, planned_manifests
from icefloe.spark.regions import write_region
from icefloe.spark.rows import (
    CHUNK,
    REGION,
    VALUE,
    RowTarget,
    RowWriter,
    by_chunk,
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
    coordinates: Collection[str] = (),
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
        coordinates: those of the columns that hold values of the dimension's coordinate (the
            one-dimensional array of its name beside the array). The others hold positions.
        on_duplicate: where several rows have one place: `error`, or `any` of them counts.

    Raises:
        InvalidInputError: the columns do not fit the array. What is wrong with a row fails its
            task, and so the job, with the same error as text.
    """
    context = spark_context(spark)
    path = "/" + path.strip("/")
    array = plan_array(session, path, None)
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    target = RowTarget(
        source,
        replace(array, cells=(), carried=()),
        columns_of(array, columns),
        frozenset(coordinates),
        value,
        on_duplicate,
    )
    if unknown := set(coordinates) - set(target.columns):
        raise InvalidInputError(f"{', '.join(sorted(unknown))}: no dimension has such a column")
    regions = _write(context, rows, target, len(array.cells))
    cells = sorted(region.cell for region in regions)
    carried = carried_cells(planned_manifests(session, path), array.sizes, cells)
    array = replace(array, cells=tuple(cells), carried=tuple(carried))
    regions += run(
        context,
        partial(carry_region, source, target.array),
        carried,
        f"icefloe: carry regions of {path} over",
    )
    return Staged(session, base, (adopt(session, array, regions),))


def _write(
    context: SparkContext, rows: DataFrame, target: RowTarget, regions: int
) -> list[WrittenRegion]:
    chosen = rows.select(*target.columns, target.value)
    kind = chosen.schema[target.value].dataType.simpleString()
    places = ", ".join(f"_{axis} long" for axis in range(len(target.columns)))
    located = chosen.mapInArrow(
        partial(_locate, target), f"{REGION} long, {CHUNK} long, {places}, {VALUE} {kind}"
    )
    count = max(min(regions, context.defaultParallelism * _TASKS_PER_CORE), 1)
    # By hash, never by range: that would run everything above it twice.
    sorted_rows = located.repartition(count, REGION).sortWithinPartitions(REGION, CHUNK)
    written = sorted_rows.mapInArrow(partial(_write_sorted, target), "region binary")
    told = f"icefloe: write rows to {target.array.path}"
    with described(context, told), task_errors_raised():
        return [pickle.loads(row.region) for row in written.collect()]


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
    found = [name for name in array.grid.names if name] if columns is None else list(columns)
    if len(found) != len(array.grid.axes):
        raise InvalidInputError(
            f"name a column for each of the {len(array.grid.axes)} dimensions of {array.path}"
        )
    return tuple(found)
