"""The Spark job of the demonstration: one day of weather; knows nothing of Airflow."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from demo import fields
from icefloe import spark as ice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe import Session

VARIABLES = ("t2m", "tp")
_LONGEST_HOLD = 60.0


def write_day(
    spark: SparkSession,
    session: Session,
    *,
    day: str,
    source: fields.Source,
    hold: str | None = None,
) -> None:
    """Write both variables of a day; executors compute the values and write the chunks.

    Args:
        spark: where to run.
        session: where to write.
        day: 2026-07-02, say; the arrays have room for it.
        source: where it comes from.
        hold: a file. Once half of the day is written it gets the text "halfway", and the job waits
            as long as it is there: the demonstration kills a writer at just this point.
    """
    for variable in VARIABLES:
        plan = ice.plan(session, f"/{variable}", region={"time": fields.hours_of(day)})
        ice.write(spark, plan, partial(compute, source=source))
        if hold and variable == VARIABLES[0]:
            _wait_at(Path(hold))


def compute(block: ice.Block, source: fields.Source) -> fields.Field:
    """The values of one block, on an executor."""
    hours = block.indices("time")
    if block.path == "/tp":
        values = fields.precipitation(hours)
    else:
        values = fields.temperature(hours, source)
    return values[:, *block.slices[1:]]


def _wait_at(mark: Path) -> None:
    end = time.monotonic() + _LONGEST_HOLD
    if mark.exists():
        mark.write_text("halfway")
    while mark.exists() and time.monotonic() < end:
        time.sleep(0.05)
