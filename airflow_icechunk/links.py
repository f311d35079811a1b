"""Links from a task to the snapshot it made, on the provider's page in the Airflow UI."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

XCOM_KEY = "icechunk_link"
"""The operator leaves the address here; the link's own key is overwritten by Airflow."""


class IcechunkSnapshotLink(BaseOperatorLink):
    """Leads to the page of a snapshot."""

    name = "Icechunk snapshot"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        found = XCom.get_value(ti_key=ti_key, key=XCOM_KEY)
        return found if isinstance(found, str) else ""


def snapshot_address(icechunk_conn_id: str, snapshot_id: str) -> str:
    """Relative, so that it leads to the Airflow that shows it."""
    return f"/icechunk/repos/{quote(icechunk_conn_id, safe='')}/snapshots/{snapshot_id}"
