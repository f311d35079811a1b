"""Operators on tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_icechunk.compat import remembered
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.task_runs import TaskRun
from icefloe import AlreadyExistsError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class IcechunkCreateTagOperator(IcechunkOperator):
    """Name a snapshot for good; return its id.

    A tag that names this snapshot already will do. One that names another fails the task, and so
    does a name that was once deleted: Icechunk never reuses the name of a tag.

    :param tag: the name. (templated)
    :param snapshot_id: what it names; the tip of ``branch`` if there is none. (templated)
    :param branch: see ``snapshot_id``; a retry takes the tip that the first attempt found, where
        Airflow (3.3) can remember it. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "tag",
        "snapshot_id",
        "branch",
    )

    def __init__(
        self, *, tag: str, snapshot_id: str | None = None, branch: str = "main", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.snapshot_id = snapshot_id
        self.branch = branch

    def execute(self, context: Context) -> str:
        key = f"icechunk-tag-{TaskRun.of(context).tries_before_clear}"
        wanted = self.snapshot_id or remembered(
            context, key, lambda: self.hook.branch_head(self.branch)
        )
        try:
            self.repository.create_tag(self.tag, wanted)
        except AlreadyExistsError:
            if self._tagged() != wanted:
                raise
        return self.report(context, wanted, branch=self.branch, tag=self.tag)

    def _tagged(self) -> str | None:
        try:
            return self.repository.lookup_tag(self.tag)
        except NotFoundError:
            # Deleted once, so taken for ever.
            return None


class IcechunkDeleteTagOperator(IcechunkOperator):
    """Delete a tag; return whether it was there. Its name can never be used again.

    :param tag: the tag. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag

    def execute(self, context: Context) -> bool:
        try:
            self.repository.delete_tag(self.tag)
        except NotFoundError:
            self.log.info("there is no tag %s", self.tag)
            return False
        return True
