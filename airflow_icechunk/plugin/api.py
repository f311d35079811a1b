"""The JSON API behind the pages. It only reads."""

from typing import Any

from fastapi import APIRouter
from fastapi.encoders import jsonable_encoder

from airflow_icechunk.plugin import commits, contents, summaries
from airflow_icechunk.plugin.errors import ViewError
from airflow_icechunk.plugin.parameters import (
    After,
    Branch,
    ConnectionId,
    From,
    Limit,
    Reader,
    SnapshotId,
    To,
)
from airflow_icechunk.plugin.repositories import OpenRepository
from airflow_icechunk.plugin.security import reads_repository

router = APIRouter(prefix="/api")
one = APIRouter(prefix="/repos/{connection_id}", dependencies=[reads_repository])


@router.get("/repos")
def list_repositories(repositories: Reader) -> Any:
    found = repositories.read_all(repositories.listed(), summaries.summarize_now)
    return {"repos": [_listed(conn_id, item) for conn_id, item in found.items()]}


@one.get("")
def get_repository(
    connection_id: ConnectionId,
    repositories: Reader,
) -> Any:
    def look(opened: OpenRepository) -> Any:
        info = opened.info()
        return {
            "connection_id": connection_id,
            **jsonable_encoder(summaries.summarize(opened, info)),
            "branch_names": commits.names(info, info.branches),
            "tag_names": commits.names(info, info.tags),
            "settings": summaries.settings(info),
        }

    return jsonable_encoder(repositories.read(connection_id, look))


@one.get("/history")
def get_history(
    connection_id: ConnectionId,
    repositories: Reader,
    branch: Branch = None,
    limit: Limit = 50,
    after: After = None,
) -> Any:
    found = repositories.read(
        connection_id,
        lambda opened: commits.history(opened.info(), branch=branch, limit=limit, after=after),
    )
    return jsonable_encoder(
        {"snapshots": found.commits, "total": found.total, "after": found.after}
    )


@one.get("/snapshots/{snapshot_id}")
def get_snapshot(
    connection_id: ConnectionId,
    snapshot_id: SnapshotId,
    repositories: Reader,
) -> Any:
    def look(opened: OpenRepository) -> Any:
        info = opened.info()
        branches, tags = commits.containing(info, snapshot_id)
        return {
            "snapshot": commits.commit(info, snapshot_id),
            "contents": contents.contents(opened, info, snapshot_id),
            "in_branches": branches,
            "in_tags": tags,
        }

    return jsonable_encoder(repositories.read(connection_id, look))


@one.get("/diff")
def get_diff(
    connection_id: ConnectionId,
    to: To,
    repositories: Reader,
    start: From = None,
) -> Any:
    def look(opened: OpenRepository) -> Any:
        info = opened.info()
        old = start or commits.commit(info, to).parent_id
        if old is None:
            raise ViewError(422, f"Snapshot {to} has no parent to compare it with.")
        changes = contents.changes(opened, info, old, to)
        return {"from": old, "to": to, "changes": changes}

    return jsonable_encoder(repositories.read(connection_id, look))


@one.get("/ops")
def get_operations(
    connection_id: ConnectionId,
    repositories: Reader,
    limit: Limit = 50,
) -> Any:
    found = repositories.read(connection_id, lambda opened: summaries.operations(opened, limit))
    return jsonable_encoder({"operations": found})


router.include_router(one)


def _listed(connection_id: str, found: summaries.Summary | ViewError) -> dict[str, Any]:
    if isinstance(found, ViewError):
        return {"connection_id": connection_id, "error": found.text}
    return {"connection_id": connection_id, "error": None, **jsonable_encoder(found)}
