"""`icechunk_transaction`: a task group that writes in parallel and publishes all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_icechunk.arguments import check_choice
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.tags import IF_EXISTS, IcechunkCreateTagOperator
from airflow_icechunk.operators.transactions import (
    IcechunkBeginOperator,
    IcechunkCommitOperator,
    IcechunkPublishOperator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import XComArg

    from airflow_icechunk.operators.tags import IfExists

type Step = Callable[[Any], Any]
"""Takes the output of a task, a snapshot id; makes tasks, and returns the last of them."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The group, to wire it up, and the outputs of its tasks."""

    group: TaskGroup
    base: XComArg
    """The snapshot that the writers stand on."""
    merged: XComArg
    """The merged snapshot; on the branch already if there is no audit."""
    snapshot_id: XComArg
    """The snapshot that the branch has in the end."""


def icechunk_transaction(
    *,
    write: Step,
    group_id: str = "transaction",
    branch: str = "main",
    prepare: Step | None = None,
    audit: Step | None = None,
    tag: str | None = None,
    if_exists: IfExists = "fail",
    message: str = "Commit of {{ dag.dag_id }}, {{ run_id }}",
    metadata: Mapping[str, Any] | None = None,
    guards: Mapping[str, Any] | None = None,
    outlets: Sequence[Any] = (),
    icechunk_conn_id: str = IcechunkHook.default_conn_name,
) -> Transaction:
    """Prepare, write in parallel, merge, audit, publish and tag: visible at once, or not at all.

    Looking up the tip and preparing are setup tasks: they are cleared along with the writers. To do
    a run again, clear the writers, all of them, and what is downstream: a merge refuses to publish
    again what an earlier merge of the run has published.

    :param write: gets the snapshot to stand on; makes the tasks that write, and returns the task
        whose output is the staged snapshot, or, mapped, the staged snapshots.
    :param group_id: of the task group.
    :param branch: where it all ends. (templated)
    :param prepare: gets the tip of the branch; makes a task that stages what the writers need, such
        as new or larger arrays, and returns its staged snapshot.
    :param audit: gets the merged snapshot, which is on no branch yet; makes the tasks that have to
        succeed before it is published.
    :param tag: names the published snapshot. (templated)
    :param if_exists: what to do about a tag that is there already, as after a clear: ``fail``,
        ``keep`` or ``suffix``; see ``IcechunkCreateTagOperator``.
    :param message: of the commit. (templated)
    :param metadata: any JSON, kept with the commit. (templated)
    :param guards: arguments for ``IcechunkPublishOperator``; they make it a step of its own.
    :param outlets: assets that get an event for the published snapshot.
    :param icechunk_conn_id: the connection. (templated)
    """
    shared: dict[str, Any] = {"icechunk_conn_id": icechunk_conn_id}
    separate = audit is not None or guards is not None
    check_choice("if_exists", if_exists, IF_EXISTS)
    with TaskGroup(group_id) as group:
        begin = IcechunkBeginOperator(task_id="begin", branch=branch, **shared).as_setup()
        base = begin.output
        if prepare is not None:
            prepared = prepare(base)
            prepared.as_setup()
            base = _output(prepared)
        written = _output(write(base))
        merge = IcechunkCommitOperator(
            task_id="merge" if separate else "commit",
            # A merge brings along what the staged snapshots stand on.
            snapshot_ids=written,
            branch=None if separate else branch,
            message=message,
            metadata=metadata,
            writer_task_ids=_task_ids(written),
            outlets=[] if separate else [*outlets],
            **shared,
        )
        last: Any = merge
        if separate:
            last = IcechunkPublishOperator(
                task_id="publish",
                snapshot_id=merge.output,
                branch=branch,
                outlets=[*outlets],
                **(guards or {}),
                **shared,
            )
            if audit is not None:
                audit(merge.output) >> last
        if tag is not None:
            IcechunkCreateTagOperator(
                task_id="tag",
                tag=tag,
                snapshot_id=last.output,
                branch=branch,
                if_exists=if_exists,
                **shared,
            )
    return Transaction(group, base, merge.output, last.output)


def _output(task: Any) -> Any:
    """The output of an operator; what is an output already stays as it is."""
    return getattr(task, "output", task)


def _task_ids(output: Any) -> list[str]:
    return sorted({operator.task_id for operator, _ in output.iter_references()})
