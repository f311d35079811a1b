"""What may stand in a URL of the pages and the API."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from airflow_icechunk.plugin.access import UserRepositories
from airflow_icechunk.plugin.security import User


def _repositories(request: Request, user: User) -> UserRepositories:
    return UserRepositories(request.app.state.repositories, user)


_SNAPSHOT_ID = "^[0-9A-HJKMNP-TV-Z]{20}$"

ConnectionId = Annotated[str, Path(max_length=250, pattern=r"^[\w#!()\-.:@\\ ]+$")]
SnapshotId = Annotated[str, Path(pattern=_SNAPSHOT_ID)]
Branch = Annotated[str | None, Query(min_length=1, max_length=1024)]
After = Annotated[str | None, Query(pattern=_SNAPSHOT_ID)]
Limit = Annotated[int, Query(ge=1, le=200)]
From = Annotated[str | None, Query(alias="from", pattern=_SNAPSHOT_ID)]
To = Annotated[str, Query(pattern=_SNAPSHOT_ID)]
Text = Annotated[str, Path(max_length=250)]

Reader = Annotated[UserRepositories, Depends(_repositories)]
"""How repositories are read: no part of the URL."""
