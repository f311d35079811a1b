"""Run whenever somebody commits to a branch, from wherever they do it."""

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.events import snapshot_id_from_event
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger

rain = icechunk_asset(path="/rain", trigger=IcechunkBranchTrigger(path="/rain"))

with DAG(
    "example_react_to_snapshots",
    schedule=[rain],
    catchup=False,
    tags=["icechunk", "example"],
) as dag:

    @task
    def new_snapshot(triggering_asset_events=None):
        """Several events may start one run; the last one tells of the newest snapshot."""
        events = [event for events in (triggering_asset_events or {}).values() for event in events]
        # Started by hand, there is no event.
        return snapshot_id_from_event(events[-1]) if events else IcechunkHook().branch_head("main")

    @task
    def total(snapshot_id):
        session = IcechunkHook().get_conn().readonly_session(snapshot_id=snapshot_id)
        return float(zarr.open_array(session.store, path="rain", mode="r")[...].sum())

    total(new_snapshot())
