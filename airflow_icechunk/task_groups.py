"""`icechunk_transaction`: a task group that writes in parallel and publishes all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_icechunk.arguments import WrongArgumentError, check_choice, flag, is_known
from airflow_icechunk.decorators.icechunk import IcechunkDecoratedOperator
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
        whose output is the staged snapshot, or, mapped, the staged snapshots; or a list of such
        tasks.
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
            (base,) = _outputs("prepare", prepared)
            prepared.as_setup()
        made = write(base)
        written = _outputs("write", made)
        merge = IcechunkCommitOperator(
            task_id="merge" if separate else "commit",
            # A merge brings along what the staged snapshots stand on.
            snapshot_ids=written if isinstance(made, list | tuple) else written[0],
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
                if_exists=if_exists,
                **shared,
            )
    return Transaction(group, base, merge.output, last.output)


def _outputs(step: str, made: Any) -> list[Any]:
    """The outputs of what a step returned: a task or its output, or for writers a list of these.

    :raises WrongArgumentError: it returned something else, or a task that commits by itself.
    """
    tasks = [*made] if step == "write" and isinstance(made, list | tuple) else [made]
    outputs = [getattr(task, "output", task) for task in tasks]
    if not outputs or not all(hasattr(output, "iter_references") for output in outputs):
        raise WrongArgumentError(
            f"{step} returned {made!r}, and must return the task whose output is the staged "
            "snapshot: is there a return?"
        )
    for output in outputs:
        for operator, _ in output.iter_references():
            _check_stages(step, operator)
    return outputs


def _check_stages(step: str, operator: Any) -> None:
    """Refuse a task that is known to commit; of other tasks only the merge can tell."""
    # Of a mapped task there are the arguments alone.
    arguments = getattr(operator, "partial_kwargs", None)
    kind = type(operator) if arguments is None else operator.operator_class

    def argument(name: str, default: Any) -> Any:
        return getattr(operator, name) if arguments is None else arguments.get(name, default)

    commits = False
    if issubclass(kind, IcechunkDecoratedOperator):
        stage = argument("stage", False)
        commits = is_known(stage) and not flag("stage", stage)
    elif issubclass(kind, IcechunkCommitOperator):
        commits = argument("branch", "main") is not None
    if commits:
        how = "branch=None" if issubclass(kind, IcechunkCommitOperator) else "stage=True"
        raise WrongArgumentError(
            f"{operator.task_id}, which {step} returned, commits to the branch by itself, and a "
            f"transaction makes all visible at once: give that task {how}"
        )


def _task_ids(outputs: Sequence[Any]) -> list[str]:
    found = (output.iter_references() for output in outputs)
    return sorted({operator.task_id for references in found for operator, _ in references})
