"""Operators on branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_icechunk.compat import remembered
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.task_runs import TaskRun
from icefloe import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class IcechunkCreateBranchOperator(IcechunkOperator):
    """Create a branch; return the snapshot it is at.

    A branch that is there already will do if it and the wanted snapshot are of one history: an
    earlier attempt made it, and others may have committed since. Otherwise the task fails.

    :param branch: the name. (templated)
    :param snapshot_id: where it starts; the tip of ``from_branch`` if there is none. (templated)
    :param from_branch: see ``snapshot_id``. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "branch",
        "snapshot_id",
        "from_branch",
    )

    def __init__(
        self,
        *,
        branch: str,
        snapshot_id: str | None = None,
        from_branch: str = "main",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.from_branch = from_branch

    def execute(self, context: Context) -> str:
        start = self.snapshot_id or self.hook.branch_head(self.from_branch)
        try:
            self.repository.create_branch(self.branch, start)
        except AlreadyExistsError:
            tip = self.hook.branch_head(self.branch)
            if not (self._has(tip, start) or self._has(start, tip)):
                raise
            return self.report(context, tip, branch=self.branch)
        return self.report(context, start, branch=self.branch)

    def _has(self, tip: str, snapshot_id: str) -> bool:
        """Whether a history includes a snapshot."""
        history = self.repository.ancestry(snapshot_id=tip)
        return any(item.id == snapshot_id for item in history)


class IcechunkResetBranchOperator(IcechunkOperator):
    """Point a branch at another snapshot; return that.

    An attempt that finds the branch moved to the snapshot by an earlier attempt does nothing: what
    others committed since stays.

    :param branch: the branch. (templated)
    :param snapshot_id: where it goes. (templated)
    :param from_snapshot_id: where it must be. If it is elsewhere, the task fails. None takes where
        the first attempt found it; before Airflow 3.3 nothing remembers that, and every attempt
        moves the branch: give it there. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "branch",
        "snapshot_id",
        "from_snapshot_id",
    )

    def __init__(
        self,
        *,
        branch: str,
        snapshot_id: str,
        from_snapshot_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.from_snapshot_id = from_snapshot_id

    def execute(self, context: Context) -> str:
        if self.hook.branch_head(self.branch) != self.snapshot_id:
            self._move(context)
        return self.report(context, self.snapshot_id, branch=self.branch)

    def _move(self, context: Context) -> None:
        key = f"icechunk-reset-{TaskRun.of(context).tries_before_clear}"
        start = self.from_snapshot_id or remembered(
            context, key, lambda: self.hook.branch_head(self.branch)
        )
        try:
            self.repository.reset_branch(self.branch, self.snapshot_id, from_snapshot_id=start)
        except ConflictError:
            if not self._was_moved(start):
                raise
            self.log.info("%s was moved by an earlier attempt, and has moved on", self.branch)

    def _was_moved(self, start: str) -> bool:
        """Whether the branch left `start` for the wanted snapshot: the history has that later."""
        history = (item.id for item in self.repository.ancestry(branch=self.branch))
        return next((one for one in history if one in (start, self.snapshot_id)), start) != start


class IcechunkDeleteBranchOperator(IcechunkOperator):
    """Delete a branch; return whether it was there. Its snapshots stay until they are collected.

    :param branch: the branch; ``main`` cannot go. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "branch")

    def __init__(self, *, branch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch

    def execute(self, context: Context) -> bool:
        try:
            self.repository.delete_branch(self.branch)
        except NotFoundError:
            self.log.info("there is no branch %s", self.branch)
            return False
        return True
