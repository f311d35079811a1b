"""Operators that turn staged writes into one commit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow_icechunk import guards
from airflow_icechunk.arguments import (
    WrongArgumentError,
    check_choice,
    check_flag,
    check_function,
    flag,
    given,
    mapping,
    required,
    some_texts,
)
from airflow_icechunk.links import leave_snapshot
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.staged import snapshot_id as checked
from airflow_icechunk.staged import staged_ids
from airflow_icechunk.task_runs import TaskRun
from icefloe import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from airflow_icechunk.guards import Guard
    from icefloe import Diff, Session

_SHOWN = 10
"""Staged snapshots that are named in the log."""


class IcechunkBeginOperator(IcechunkOperator):
    """Return the tip of a branch: the snapshot that all writers of a run stand on.

    :param branch: the branch. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "branch")

    def __init__(self, *, branch: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch

    def execute(self, context: Context) -> str:
        branch = required("branch", self.branch)
        tip = self.hook.branch_head(branch)
        self.say("writers start from %s, the tip of %s", tip, branch)
        leave_snapshot(context, self.icechunk_conn_id, tip)
        return tip


class IcechunkCommitOperator(IcechunkOperator):
    """Merge staged snapshots into one commit; return its id.

    All of it becomes visible at once, or nothing does. The write key is made of the run and the
    staged snapshots, so every attempt ends in the same commit, and so does a clear of this task
    alone. Two staged snapshots that wrote the same chunk, or one that conflicts with what was
    committed meanwhile, fail the task with ``icefloe.ConflictError``.

    :param snapshot_ids: what the tasks that staged returned: one id, or a list of them; the output
        of a mapped task will do. (templated)
    :param branch: where to commit. None makes a staged snapshot of the result, on no branch: look
        at it, then publish it. (templated)
    :param message: of the commit. (templated)
    :param metadata: any JSON, kept with the commit, beside the stamp of Dag, run, task and try.
        (templated)
    :param writer_task_ids: tasks whose successful instances must each have handed over a snapshot;
        without it, an XCom that got lost goes unnoticed where the tasks are mapped.
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "snapshot_ids",
        "branch",
        "message",
        "metadata",
    )

    def __init__(
        self,
        *,
        snapshot_ids: Any,
        branch: str | None = "main",
        message: str = "Commit of {{ dag.dag_id }}, {{ run_id }}",
        metadata: Mapping[str, Any] | None = None,
        writer_task_ids: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.snapshot_ids = snapshot_ids
        self.branch = branch
        self._is_published = branch is not None
        self.message = message
        self.metadata = metadata
        self.writer_task_ids = writer_task_ids

    def execute(self, context: Context) -> str:
        if self._is_published:
            required("branch", self.branch)
        staged = staged_ids(self.snapshot_ids)
        self._check_complete(context, staged)
        run = TaskRun.of(context)
        key = run.merge_key(*sorted(staged))
        if self.repository.find_write(key, self.branch) is None:
            self._check_staged(staged)
        try:
            snapshot_id = self.repository.merge_snapshots(
                self.branch,
                staged,
                required("message", self.message),
                {**mapping("metadata", self.metadata), **run.stamp()},
                write_key=key,
            )
        except ConflictError as error:
            error.add_note(
                "If an earlier merge of this run was published, clear all writers, and not only "
                "some: what the others staged is published already."
            )
            raise
        place = "staged, on no branch" if self.branch is None else f"on {self.branch}"
        shown = " ".join(staged[:_SHOWN]) + (" ..." if len(staged) > _SHOWN else "")
        self.say(
            "merged %d staged snapshots (%s) into %s, %s", len(staged), shown, snapshot_id, place
        )
        return self.report(context, snapshot_id, branch=self.branch, write_key=key)

    def _check_staged(self, ids: Sequence[str]) -> None:
        """Refuse what its writer has committed: it is visible, whatever is made of it here."""
        repository = self.repository
        if self.branch is not None:
            branches = [self.branch]
        else:
            # Only writers of this run are known to be meant for the branch they committed to.
            branches = [*repository.list_branches()] if self.writer_task_ids else []
        staged, seen = {*ids}, set[str]()
        for branch in branches:
            for snapshot in repository.ancestry(branch=branch):
                # Branches share most of their history.
                if snapshot.id in seen:
                    break
                seen.add(snapshot.id)
                if snapshot.id in staged:
                    raise WrongArgumentError(
                        f"{snapshot.id} is on the branch {branch} already: its writer has "
                        "committed. Give the writers stage=True"
                    )

    def _check_complete(self, context: Context, staged: Sequence[str]) -> None:
        if not self.writer_task_ids:
            return
        ti = context["ti"]
        written = ti.get_ti_count(
            dag_id=ti.dag_id,
            task_ids=[*self.writer_task_ids],
            run_ids=[ti.run_id],
            states=["success"],
        )
        if len(staged) < written:
            raise ValueError(
                f"{written} tasks staged a write, but only {len(staged)} snapshots were handed "
                "over: an XCom is gone. Clear the tasks that wrote"
            )


class IcechunkPublishOperator(IcechunkOperator):
    """Move a branch to a staged snapshot, once the guards let it; return the tip it makes.

    If the branch moved meanwhile, the snapshot is merged into it, and the guards judge the result:
    the branch as it would be, beside the branch as it is. If it moves again meanwhile, they judge
    again. An attempt that finds the snapshot published does nothing.

    :param snapshot_id: staged: what ``IcechunkCommitOperator(branch=None)`` returned. (templated)
    :param branch: the branch. (templated)
    :param if_moved: ``merge`` into a branch that moved meanwhile, or ``fail`` with
        ``icefloe.ConflictError``.
    :param allowed_arrays: patterns of the paths that may change, such as ``/t2m`` or ``/daily/*``;
        the groups that zarr makes above them need not be named. None allows all. (templated)
    :param forbid_shrink: refuse to delete an array or to make one smaller. (templated)
    :param required_metadata: keys, or keys with values, that the snapshot must carry. (templated)
    :param guard: ``guard(before, after, diff)`` or its import path: sessions on the branch as it is
        and as it would be, and the difference; it raises, or returns False, to refuse.
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "snapshot_id",
        "branch",
        "allowed_arrays",
        "forbid_shrink",
        "required_metadata",
    )

    def __init__(
        self,
        *,
        snapshot_id: Any,
        branch: str = "main",
        if_moved: Literal["merge", "fail"] = "merge",
        allowed_arrays: Sequence[str] | None = None,
        forbid_shrink: bool | str = False,
        required_metadata: Mapping[str, Any] | Sequence[str] | None = None,
        guard: Guard | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("if_moved", if_moved, ["merge", "fail"])
        check_flag("forbid_shrink", forbid_shrink)
        if guard is not None and not callable(guard):
            check_function("guard", _with_colon(guard))
        self.snapshot_id = snapshot_id
        self.branch = branch
        self.if_moved = if_moved
        self.allowed_arrays = allowed_arrays
        self.forbid_shrink = forbid_shrink
        self.required_metadata = required_metadata
        self.guard = guard
        self._given = given(allowed_arrays=allowed_arrays, required_metadata=required_metadata)

    def execute(self, context: Context) -> str:
        snapshot_id, branch = checked(self.snapshot_id), required("branch", self.branch)
        judge = self._guards()
        is_new = not self.hook.is_published(snapshot_id, branch)

        def check(before: Session, after: Session, diff: Diff) -> None:
            metadata = self.repository.lookup_snapshot(snapshot_id).metadata
            candidate = guards.Candidate(before=before, after=after, diff=diff, metadata=metadata)
            for one in judge:
                one(candidate)

        tip = self.repository.publish(branch, snapshot_id, check=check, if_moved=self.if_moved)
        if is_new:
            how = "" if tip == snapshot_id else ", merged into what was committed meanwhile"
            self.say("published %s%s; %s is at %s", snapshot_id, how, branch, tip)
        else:
            self.say("%s is published already; %s is at %s", snapshot_id, branch, tip)
        return self.report(context, tip, branch=branch)

    def _guards(self) -> list[Callable[[guards.Candidate], None]]:
        """What judges a candidate; their arguments are judged here, before anything is done."""
        found: list[Callable[[guards.Candidate], None]] = []
        if "allowed_arrays" in self._given:
            allowed = some_texts("allowed_arrays", self.allowed_arrays)
            found.append(partial(guards.check_changed, allowed=allowed))
        if flag("forbid_shrink", self.forbid_shrink):
            found.append(guards.check_no_shrink)
        if "required_metadata" in self._given:
            wanted = self._wanted_metadata()
            found.append(partial(guards.check_metadata, required=wanted))
        if self.guard is not None:
            found.append(partial(guards.check_guard, guard=self.guard))
        return found

    def _wanted_metadata(self) -> Mapping[str, Any] | list[str]:
        wanted = self.required_metadata
        if not isinstance(wanted, Mapping):
            return some_texts("required_metadata", wanted)
        if not wanted:
            raise WrongArgumentError("required_metadata is empty: look at its template")
        return wanted


def _with_colon(path: Any) -> Any:
    """An import path as ``module:function``; a guard may also be written with dots alone."""
    if not isinstance(path, str) or ":" in path:
        return path
    return ":".join(path.rsplit(".", 1))
