"""Fill an archive region by region: each run writes one day, each mapped task one region of it."""

from datetime import datetime

import numpy as np
import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.retries import icechunk_default_args
from airflow_icechunk.task_groups import icechunk_transaction

START = datetime(2026, 1, 1)
REGIONS = {"north": slice(0, 90), "south": slice(90, 180)}

with DAG(
    "example_backfill_regions",
    schedule="@daily",
    start_date=START,
    end_date=datetime(2026, 12, 31),
    catchup=False,
    # Runs of different days write different chunks: they commit side by side.
    max_active_runs=4,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:

    def day_of(data_interval_start):
        return (data_interval_start.date() - START.date()).days

    @task.icechunk
    def make_room(store):
        """A commit of its own: archives of all runs share the shape."""
        group = zarr.group(store)
        if "rain" not in group:
            group.create_array("rain", shape=(365, 180), chunks=(1, 90), dtype="f4")

    @task.icechunk(stage=True, key="{{ ds }} {{ task.op_kwargs['region'] }}")
    def write_region(region, store, data_interval_start=None):
        rows = REGIONS[region]
        values = np.full(rows.stop - rows.start, day_of(data_interval_start) + 1.0)
        zarr.open_array(store, path="rain")[day_of(data_interval_start), rows] = values

    transaction = icechunk_transaction(
        write=lambda base: write_region.override(base=base).expand(region=[*REGIONS]),
        message="Rain of {{ ds }}",
        metadata={"day": "{{ ds }}"},
    )
    make_room() >> transaction.group
