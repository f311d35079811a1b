"""Dags for the test of the whole stack: one uses every component, one is killed, one never ends."""

import subprocess
from datetime import timedelta
from pathlib import Path

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator
from airflow_icechunk.sensors.icechunk import IcechunkTagSensor

HERE = Path(__file__).parent
# What Spark knows of an application is kept, to be searched for secrets.
EVENTS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": str(HERE / "events"),
}

with DAG("check_components", schedule=None):
    create = IcechunkCreateRepositoryOperator(task_id="create_repository")

    @task.icechunk
    def create_arrays(store):
        group = zarr.group(store)
        if "field" not in group:
            group.create_array("field", shape=(100, 50), chunks=(10, 50), dtype="f4")

    write = IcechunkSparkSubmitOperator(
        task_id="write",
        job="ingest_jobs:write_rows",
        job_params={"first": 0, "last": 100},
        py_files=str(HERE / "ingest_jobs.py"),
        conf=EVENTS,
    )
    commit = IcechunkCommitOperator(
        task_id="commit", snapshot_ids=write.output, message="Written by the stack"
    )
    create >> create_arrays() >> write

with DAG("check_kill", schedule=None):
    IcechunkSparkSubmitOperator(
        task_id="write",
        job="stack_jobs:wait_for_the_test",
        job_params={"folder": "{{ dag_run.conf['folder'] }}"},
        py_files=str(HERE / "stack_jobs.py"),
        conf=EVENTS,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )

with DAG("check_wait", schedule=None):
    IcechunkTagSensor(task_id="wait", tag="go", deferrable=True, poke_interval=1)

with DAG("check_stop", schedule=None):

    @task
    def never_ends():
        # Out of the group and the session of its task, as the drivers of Spark jobs are.
        subprocess.run(["sleep", "987654"], start_new_session=True, check=True)

    never_ends()
