"""Who may see what: the checks of Airflow's own API, which it does not promise to keep as is."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models import resource_details
from airflow.api_fastapi.auth.managers.models.resource_details import (
    ConnectionDetails,
    DagAccessEntity,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.connection import Connection
from fastapi import Depends, HTTPException, Path

User = GetUserDep
"""The type of a parameter: who asks. Nobody gets 401."""

RESOURCE = "Icechunk Repositories"
"""What auth managers call the pages: reading it is a permission of its own."""

reads_task = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))
"""403 unless the user may read the tasks of the Dag in the path; its parameter is `dag_id`."""


def reads_connection(connection_id: str, user: User) -> bool:
    """Whether a user may read a connection."""
    team = Connection.get_team_name(connection_id)
    details = ConnectionDetails(conn_id=connection_id, team_name=team)
    allowed: bool = get_auth_manager().is_authorized_connection(
        method="GET", details=details, user=user
    )
    return allowed


def sees_repository(connection_id: str, user: User) -> bool:
    """Whether a user may see what is in a repository: by its connection, or by the pages."""
    if reads_connection(connection_id, user):
        return True
    manager = get_auth_manager()
    if not manager.is_authorized_custom_view(method="GET", resource_name=RESOURCE, user=user):
        return False
    team = Connection.get_team_name(connection_id)
    if team is None:
        return True
    details = resource_details.TeamDetails(name=team)
    allowed: bool = manager.is_authorized_team(method="GET", details=details, user=user)
    return allowed


def _check_repository(connection_id: Annotated[str, Path()], user: User) -> None:
    if not sees_repository(connection_id, user):
        raise HTTPException(403)


reads_repository = Depends(_check_repository)
"""403 unless the user may see the repository in the path; its parameter is `connection_id`."""
