"""What the operators of this provider have in common."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.lineage import operator_lineage
from airflow_icechunk.links import LINKS
from airflow_icechunk.reports import SnapshotReport, report_snapshot
from airflow_icechunk.telling import told

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from icefloe import Repository


class IcechunkOperator(BaseOperator):
    """Base of operators on a repository.

    Outlets that are assets get ``repo``, ``branch``, ``snapshot_id``, ``parent``, ``tag`` and
    ``write_key`` as the extra of their event.

    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = ("icechunk_conn_id",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    operator_extra_links: Collection[BaseOperatorLink] = LINKS
    left_snapshot = False
    ui_color = "#dff3fb"

    def __init__(
        self, *, icechunk_conn_id: str = IcechunkHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.icechunk_conn_id = icechunk_conn_id
        self._report: SnapshotReport | None = None

    @cached_property
    def hook(self) -> IcechunkHook:
        return IcechunkHook(self.icechunk_conn_id)

    @property
    def repository(self) -> Repository:
        return self.hook.repository

    def say(self, message: str, *about: object) -> None:
        """Tell the log of the task what was done, and to which repository."""
        self.log.info("%s", told(self.hook, message, *about))

    def report(self, context: Context, snapshot_id: str, **about: str | None) -> str:
        """Tell Airflow of a snapshot; see ``report_snapshot``. Returns its id."""
        self._report = report_snapshot(
            context, self.hook, snapshot_id, outlets=self.outlets, **about
        )
        return snapshot_id

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        return operator_lineage(self._report)
