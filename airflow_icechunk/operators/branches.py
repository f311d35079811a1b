"""Operators on branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_icechunk.arguments import check_either, required
from airflow_icechunk.compat import remembered
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.staged import snapshot_id
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
    :param from_branch: see ``snapshot_id``; give one of the two. None stands for
        ``main``. (templated)
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
        from_branch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_either("snapshot_id", snapshot_id, "from_branch", from_branch)
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.from_branch = "main" if from_branch is None else from_branch
        self._from_snapshot = snapshot_id is not None

    def execute(self, context: Context) -> str:
        branch, start = required("branch", self.branch), self._start()
        try:
            self.repository.create_branch(branch, start)
        except AlreadyExistsError:
            tip = self.hook.branch_head(branch)
            if not (self._has(tip, start) or self._has(start, tip)):
                raise
            self.say("the branch %s is there already, at %s", branch, tip)
            return self.report(context, tip, branch=branch)
        self.say("created the branch %s at %s", branch, start)
        return self.report(context, start, branch=branch)

    def _start(self) -> str:
        if self._from_snapshot:
            return snapshot_id(self.snapshot_id)
        return self.hook.branch_head(required("from_branch", self.from_branch))

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
        self._is_bound = from_snapshot_id is not None

    def execute(self, context: Context) -> str:
        branch, wanted = required("branch", self.branch), snapshot_id(self.snapshot_id)
        start = snapshot_id(self.from_snapshot_id) if self._is_bound else None
        if self.hook.branch_head(branch) == wanted:
            self.say("the branch %s is at %s already", branch, wanted)
        else:
            self._move(context, start)
        return self.report(context, wanted, branch=branch)

    def _move(self, context: Context, start: str | None) -> None:
        key = f"icechunk-reset-{TaskRun.of(context).tries_before_clear}"
        start = start or remembered(context, key, lambda: self.hook.branch_head(self.branch))
        try:
            self.repository.reset_branch(self.branch, self.snapshot_id, from_snapshot_id=start)
        except ConflictError:
            if not self._was_moved(start):
                raise
            self.say("the branch %s was moved by an earlier attempt, and has moved on", self.branch)
        else:
            self.say("moved the branch %s from %s to %s", self.branch, start, self.snapshot_id)

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
        branch = required("branch", self.branch)
        try:
            self.repository.delete_branch(branch)
        except NotFoundError:
            self.say("there is no branch %s: nothing to delete", branch)
            return False
        self.say("deleted the branch %s", branch)
        return True
