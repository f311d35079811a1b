"""Write in parallel, look at the merged result, have somebody approve it, then publish it."""

from datetime import timedelta

import zarr
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task

from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.retries import icechunk_default_args
from airflow_icechunk.task_groups import icechunk_transaction

STATIONS = ["Berlin", "Nairobi", "Quito"]

with DAG(
    "example_write_audit_publish",
    schedule=None,
    catchup=False,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:

    @task.icechunk(stage=True)
    def create_arrays(store):
        """Seen by the writers, and by nobody else before the run is published."""
        group = zarr.group(store)
        if "temperature" not in group:
            group.create_array("temperature", shape=(3, 24), chunks=(1, 24), dtype="f4")

    @task.icechunk(stage=True, key="{{ task.op_kwargs['station'] }}")
    def write_station(station, store):
        row = STATIONS.index(station)
        zarr.open_array(store, path="temperature")[row] = 10.0 + row
        return {"station": station}

    @task
    def check_values(snapshot_id):
        session = IcechunkHook().get_conn().readonly_session(snapshot_id=snapshot_id)
        values = zarr.open_array(session.store, path="temperature", mode="r")[...]
        if not ((values > -90) & (values < 60)).all():
            raise ValueError("temperatures that no place on Earth has")

    def audit(snapshot_id):
        approve = ApprovalOperator(
            task_id="approve",
            subject="Publish the temperatures?",
            response_timeout=timedelta(days=1),
        )
        check_values(snapshot_id) >> approve
        return approve

    icechunk_transaction(
        prepare=lambda tip: create_arrays.override(base=tip)(),
        write=lambda base: write_station.override(base=base).expand(station=STATIONS),
        audit=audit,
        guards={"allowed_arrays": ["/temperature"], "forbid_shrink": True},
        tag="temperature-{{ run_id | replace(':', '') | replace('+', '') }}",
        # Cleared, the run publishes again: that gets a tag of its own.
        if_exists="suffix",
        message="Temperatures of three stations",
        outlets=[icechunk_asset()],
    )
