"""Links from a task to the pages of what it made: a button on the page of the task in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskInstanceKey
    from airflow.sdk import BaseOperator, Context

PREFIX = "icechunk"
"""Where the pages are; a URL relative to that of Airflow."""
XCOM_KEY = "icechunk_snapshot"
"""Under which a task leaves the connection and the id of its snapshot."""
_LEFT = "left_snapshot"
"""The attribute of operators that know whether they have left one."""


def repository_url(icechunk_conn_id: str) -> str:
    return f"{PREFIX}/repos/{quote(icechunk_conn_id, safe='')}"


def snapshot_url(icechunk_conn_id: str, snapshot_id: str) -> str:
    return f"{repository_url(icechunk_conn_id)}/snapshots/{quote(snapshot_id, safe='')}"


def leave_snapshot(context: Context, icechunk_conn_id: str, snapshot_id: str) -> None:
    """Leave a snapshot for the link; see ``IcechunkSnapshotLink``.

    :param context: of the task.
    :param icechunk_conn_id: the connection.
    :param snapshot_id: made or found.
    """
    about = {"icechunk_conn_id": icechunk_conn_id, "snapshot_id": snapshot_id}
    context["ti"].xcom_push(XCOM_KEY, about)
    if hasattr(context.get("task"), _LEFT):
        setattr(context["task"], _LEFT, True)


class IcechunkSnapshotLink(BaseOperatorLink):
    """To the snapshot that a task made or found; to nothing if there is none."""

    name = "Snapshot"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Asked by the worker when the task has ended."""
        if not getattr(operator, _LEFT, True):
            # Asking for what is not there is an error in the log of the task.
            return ""
        about: Any = XCom.get_value(key=XCOM_KEY, ti_key=ti_key)
        return snapshot_url(**about) if about else ""


class IcechunkRepositoryLink(BaseOperatorLink):
    """To the repository that a task works on."""

    name = "Repository"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Asked by the worker when the task has ended: templates are rendered."""
        return repository_url(operator.icechunk_conn_id)  # type: ignore[attr-defined]


LINKS = (IcechunkSnapshotLink(), IcechunkRepositoryLink())
"""What operators, sensors and ``@task.icechunk`` have as ``operator_extra_links``."""
