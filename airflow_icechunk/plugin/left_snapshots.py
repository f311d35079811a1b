"""The snapshots that the tasks of a run left for their links, as Airflow's database has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_icechunk.links import XCOM_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftSnapshot:
    """What a task made, published, tagged or found."""

    task_id: str
    map_index: int
    connection_id: str
    snapshot_id: str


def left_by_run(dag_id: str, run_id: str) -> list[LeftSnapshot]:
    """All of a run; tells also which repositories the run has to do with."""
    with create_session() as session:
        rows = session.execute(
            select(XComModel.task_id, XComModel.map_index, XComModel.value).where(
                XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == XCOM_KEY
            )
        ).all()
    found = []
    for row in rows:
        about = XComModel.deserialize_value(row)
        if not isinstance(about, Mapping):
            # Kept elsewhere by a backend of the user's own.
            continue
        connection_id, snapshot_id = about.get("icechunk_conn_id"), about.get("snapshot_id")
        if isinstance(connection_id, str) and isinstance(snapshot_id, str):
            found.append(
                LeftSnapshot(
                    task_id=row.task_id,
                    map_index=row.map_index,
                    connection_id=connection_id,
                    snapshot_id=snapshot_id,
                )
            )
    return found
