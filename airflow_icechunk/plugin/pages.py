"""The pages, rendered on the server."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from airflow_icechunk.plugin import commits, contents, summaries
from airflow_icechunk.plugin.commits import Commit
from airflow_icechunk.plugin.errors import ViewError, as_view_error
from airflow_icechunk.plugin.left_snapshots import LeftSnapshot, left_by_run
from airflow_icechunk.plugin.parameters import (
    After,
    Branch,
    ConnectionId,
    Limit,
    Reader,
    SnapshotId,
    Text,
)
from airflow_icechunk.plugin.rendering import render
from airflow_icechunk.plugin.repositories import OpenRepository
from airflow_icechunk.plugin.security import reads_repository, reads_task
from icefloe import IcefloeError

router = APIRouter(default_response_class=HTMLResponse)
one = APIRouter(prefix="/repos/{connection_id}", dependencies=[reads_repository])


@router.get("/")
def show_repositories(request: Request, repositories: Reader) -> HTMLResponse:
    found = repositories.read_all(repositories.listed(), summaries.summarize_now)
    return render(request, "repositories.html", repositories=found, errors=_errors(found))


@one.get("")
def show_history(
    request: Request,
    connection_id: ConnectionId,
    repositories: Reader,
    branch: Branch = None,
    limit: Limit = 50,
    after: After = None,
) -> HTMLResponse:
    def look(opened: OpenRepository) -> dict[str, Any]:
        info = opened.info()
        return {
            "summary": summaries.summarize(opened, info),
            "history": commits.history(info, branch=branch, limit=limit, after=after),
            "branches": commits.names(info, info.branches),
            "tags": commits.names(info, info.tags),
        }

    return render(
        request,
        "history.html",
        connection_id=connection_id,
        branch=branch,
        limit=limit,
        **repositories.read(connection_id, look),
    )


@one.get("/snapshots/{snapshot_id}")
def show_snapshot(
    request: Request,
    connection_id: ConnectionId,
    snapshot_id: SnapshotId,
    repositories: Reader,
) -> HTMLResponse:
    found = repositories.read(connection_id, lambda opened: _snapshot(opened, snapshot_id))
    return render(request, "snapshot.html", connection_id=connection_id, **found)


@one.get("/ops")
def show_operations(
    request: Request,
    connection_id: ConnectionId,
    repositories: Reader,
    limit: Limit = 100,
) -> HTMLResponse:
    def look(opened: OpenRepository) -> dict[str, Any]:
        return {
            "summary": summaries.summarize(opened, opened.info()),
            "operations": summaries.operations(opened, limit),
        }

    found = repositories.read(connection_id, look)
    return render(request, "operations.html", connection_id=connection_id, limit=limit, **found)


@one.get("/settings")
def show_settings(
    request: Request,
    connection_id: ConnectionId,
    repositories: Reader,
) -> HTMLResponse:
    def look(opened: OpenRepository) -> dict[str, Any]:
        info = opened.info()
        return {
            "summary": summaries.summarize(opened, info),
            "settings": summaries.settings(info),
        }

    found = repositories.read(connection_id, look)
    return render(request, "settings.html", connection_id=connection_id, **found)


@router.get("/tasks/{dag_id}/{run_id}/{task_id}/{map_index}", dependencies=[reads_task])
def show_task(
    request: Request,
    dag_id: Text,
    run_id: Text,
    task_id: Text,
    map_index: Text,
    repositories: Reader,
) -> HTMLResponse:
    index = int(map_index) if map_index.isdecimal() else None
    left = left_by_run(dag_id, run_id)
    kept = {each.snapshot_id for each in left if _is_at(each, task_id, index)}
    # The run has to do with these repositories alone.
    found = repositories.read_all(
        repositories.visible(sorted({each.connection_id for each in left})),
        lambda opened: commits.of_run(opened.info(), dag_id, run_id, kept),
    )
    mine: list[tuple[str, Commit]] = []
    others: list[tuple[str, Commit]] = []
    for conn_id, made in found.items():
        for commit in [] if isinstance(made, ViewError) else made:
            is_mine = commit.id in kept or _is_of(commit, task_id, index)
            (mine if is_mine else others).append((conn_id, commit))
    return render(
        request,
        "task.html",
        task_id=task_id,
        mine=mine,
        others=others,
        searched=len(found),
        errors=_errors(found),
    )


router.include_router(one)


def _snapshot(opened: OpenRepository, snapshot_id: str) -> dict[str, Any]:
    info = opened.info()
    commit = commits.commit(info, snapshot_id)
    branches, tags = commits.containing(info, snapshot_id)
    changes, unknown = None, None
    if commit.parent_id is not None:
        try:
            changes = contents.changes(opened, info, commit.parent_id, snapshot_id)
        except (IcefloeError, ViewError) as error:
            # The rest of the page is worth showing.
            unknown = as_view_error(error, opened.secrets).text
    return {
        "summary": summaries.summarize(opened, info),
        "commit": commit,
        "contents": contents.contents(opened, info, snapshot_id),
        "changes": changes,
        "unknown_changes": unknown,
        "branches": branches,
        "tags": tags,
    }


def _errors(found: Mapping[str, Any]) -> dict[str, str]:
    return {conn_id: item.text for conn_id, item in found.items() if isinstance(item, ViewError)}


def _is_of(commit: Commit, task_id: str, map_index: int | None) -> bool:
    origin = commit.origin
    if origin is None or origin.task_id != task_id:
        return False
    return map_index is None or origin.map_index == map_index


def _is_at(left: LeftSnapshot, task_id: str, map_index: int | None) -> bool:
    return left.task_id == task_id and map_index in (None, left.map_index)
