"""What the Spark jobs of the daily ingest do; runs on Spark, and knows nothing of the scheduler."""

import numpy as np

from icefloe.spark import plan, write


def write_rows(spark, session, *, first, last):
    """Write rows of the field: executors compute and write them, chunk by chunk."""
    write(spark, plan(session, "field", (slice(first, last), slice(None))), compute)


def compute(block):
    """The values of one block; here the number of the row."""
    rows, columns = block.slices
    return np.repeat(np.arange(rows.start, rows.stop), columns.stop - columns.start).reshape(
        block.shape
    )
