"""Two Dags for the test of the whole stack: one that uses every component, one that never ends."""

import subprocess
from pathlib import Path

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator

with DAG("check_components", schedule=None, is_paused_upon_creation=False):
    create = IcechunkCreateRepositoryOperator(task_id="create_repository")

    @task.icechunk
    def create_arrays(store):
        zarr.group(store).create_array("field", shape=(100, 50), chunks=(10, 50), dtype="f4")

    write = IcechunkSparkSubmitOperator(
        task_id="write",
        job="ingest_jobs:write_rows",
        job_params={"first": 0, "last": 100},
        py_files=str(Path(__file__).with_name("ingest_jobs.py")),
    )
    commit = IcechunkCommitOperator(
        task_id="commit", snapshot_ids=write.output, message="Written by the stack"
    )
    create >> create_arrays() >> write

with DAG("check_stop", schedule=None, is_paused_upon_creation=False):

    @task
    def never_ends():
        # Out of the group and the session of its task, as the drivers of Spark jobs are.
        subprocess.run(["sleep", "987654"], start_new_session=True, check=True)

    never_ends()
