"""Dags for the test of Airflow's services: a deferred sensor, a dying commit, and a watcher."""

from datetime import timedelta

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.events import snapshot_ids_from_event
from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator
from airflow_icechunk.sensors.icechunk import IcechunkTagSensor
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger

with DAG("check_services", schedule=None) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create_repository")
    wait = IcechunkTagSensor(task_id="wait", tag="go", deferrable=True, poke_interval=1)

    @task.icechunk(stage=True)
    def write(row, store):
        group = zarr.group(store)
        if "rows" not in group:
            group.create_array("rows", shape=(3,), chunks=(1,), dtype="i4")
        group["rows"][row] = row + 1

    class DyingCommitOperator(IcechunkCommitOperator):
        """Its first attempt dies between the swap and the report."""

        def report(self, context, snapshot_id, **about):
            if context["ti"].try_number == 1:
                raise RuntimeError("killed")
            return super().report(context, snapshot_id, **about)

    staged = write(1)
    DyingCommitOperator(task_id="commit", snapshot_ids=staged, retries=1, retry_delay=timedelta(0))
    create >> wait >> staged

watched = icechunk_asset(
    icechunk_conn_id="watched",
    trigger=IcechunkBranchTrigger(icechunk_conn_id="watched", initial="all", poll_interval=1),
)

with DAG("check_watcher", schedule=[watched], is_paused_upon_creation=False):

    @task
    def told(triggering_asset_events=None):
        return [snapshot_ids_from_event(event) for event in triggering_asset_events[watched]]

    told()
