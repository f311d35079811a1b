"""Who may see what: the checks of Airflow's own API, which it does not promise to keep as is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    ConnectionDetails,
    DagAccessEntity,
)
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
)
from airflow.models.connection import Connection
from fastapi import Depends

if TYPE_CHECKING:
    from collections.abc import Iterable

User = GetUserDep
"""The type of a parameter: who asks. Nobody gets 401."""

reads_connection = Depends(requires_access_connection(method="GET"))
"""403 unless the user may read the connection in the path; its parameter is `connection_id`."""

reads_task = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))
"""403 unless the user may read the tasks of the Dag in the path; its parameter is `dag_id`."""


def readable(connection_ids: Iterable[str], user: User) -> list[str]:
    """Those connections that a user may read."""
    manager = get_auth_manager()
    return [
        conn_id
        for conn_id in connection_ids
        if manager.is_authorized_connection(
            method="GET",
            details=ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id)),
            user=user,
        )
    ]
