"""Every day: Spark jobs write side by side, one commit publishes all of it, a tag names it."""

from pathlib import Path

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator
from airflow_icechunk.retries import icechunk_default_args

JOBS = Path(__file__).with_name("ingest_jobs.py")

with DAG(
    "example_daily_ingest",
    schedule="@daily",
    catchup=False,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create_repository")

    @task.icechunk
    def create_arrays(store):
        group = zarr.group(store)
        if "field" not in group:
            group.create_array("field", shape=(100, 50), chunks=(10, 50), dtype="f4")

    write = IcechunkSparkSubmitOperator.partial(
        task_id="write",
        job="ingest_jobs:write_rows",
        py_files=str(JOBS),
        # Ten writers at a time are plenty for most stores.
        max_active_tis_per_dag=10,
    ).expand(job_params=[{"first": 0, "last": 50}, {"first": 50, "last": 100}])

    commit = IcechunkCommitOperator(
        task_id="commit",
        snapshot_ids=write.output,
        writer_task_ids=["write"],
        message="Ingest of {{ run_id }}",
        outlets=[icechunk_asset()],
    )

    tag = IcechunkCreateTagOperator(
        task_id="tag",
        tag="ingest-{{ run_id | replace(':', '') | replace('+', '') }}",
        snapshot_id=commit.output,
        # Cleared, the run commits again: that gets a tag of its own.
        if_exists="suffix",
    )

    create >> create_arrays() >> write
