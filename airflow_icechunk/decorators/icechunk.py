"""`@task.icechunk`: a function that writes through a store, and what it wrote as one commit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory
from airflow.providers.standard.operators.python import PythonOperator

from airflow_icechunk.arguments import (
    WrongArgumentError,
    check_flag,
    flag,
    given,
    is_known,
    mapping,
    required,
)
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.lineage import operator_lineage
from airflow_icechunk.links import LINKS
from airflow_icechunk.reports import SnapshotReport, report_snapshot
from airflow_icechunk.staged import named_id
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.telling import told
from icefloe import ConflictDetector

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import BaseOperatorLink, Context

    from icefloe import Session

INJECTED = ("store", "session")
"""Parameters of the function that the task fills in."""


class IcechunkDecoratedOperator(DecoratedOperator, PythonOperator):
    """What ``@task.icechunk`` makes of a function."""

    custom_operator_name = "@task.icechunk"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        "icechunk_conn_id",
        "branch",
        "stage",
        "base",
        "key",
        "message",
        "metadata",
        "rebase",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        "metadata": "json",
    }
    operator_extra_links: Collection[BaseOperatorLink] = LINKS
    left_snapshot = False

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        branch: str = "main",
        stage: bool | str = False,
        base: str | None = None,
        key: str | None = None,
        message: str = "{{ task.task_id }} of {{ dag.dag_id }}, {{ run_id }}",
        metadata: Mapping[str, Any] | None = None,
        rebase: bool | str = True,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_flag("stage", stage)
        check_flag("rebase", rebase)
        if base is not None and is_known(stage):
            _check_base(flag("stage", stage))
        if inspect.iscoroutinefunction(python_callable):
            raise TypeError("@task.icechunk takes no async function: the store waits by itself")
        # Nobody passes the store when the Dag is written, so it must look optional.
        python_callable.__signature__ = _with_optional(python_callable)  # type: ignore[attr-defined]
        super().__init__(
            kwargs_to_upstream={
                "python_callable": python_callable,
                "op_args": op_args,
                "op_kwargs": op_kwargs,
            },
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
        self.icechunk_conn_id = icechunk_conn_id
        self.branch = branch
        self.stage = stage
        self.base = base
        self.key = key
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.authorize_virtual_chunk_access = authorize_virtual_chunk_access
        self._given = given(base=base, key=key)
        self._session: Session | None = None
        self._report: SnapshotReport | None = None

    @cached_property
    def hook(self) -> IcechunkHook:
        return IcechunkHook(
            self.icechunk_conn_id,
            authorize_virtual_chunk_access=self.authorize_virtual_chunk_access,
        )

    def execute(self, context: Context) -> str:
        run = TaskRun.of(context)
        is_staged = flag("stage", self.stage)
        if "base" in self._given:
            _check_base(is_staged)
        flag("rebase", self.rebase)
        write_key = run.write_key(required("key", self.key) if "key" in self._given else None)
        branch = None if is_staged else required("branch", self.branch)
        found = self.hook.repository.find_write(write_key, branch)
        if found is None:
            found = self._write(context, run, write_key)
        else:
            self._say("an earlier attempt has written %s: nothing is done again", found)
        self._report = report_snapshot(
            context, self.hook, found, outlets=self.outlets, branch=branch, write_key=write_key
        )
        return found

    def execute_callable(self) -> Any:
        session = self._session
        names = inspect.signature(self.python_callable).parameters
        if session is not None and "store" in names:
            self.op_kwargs = {**self.op_kwargs, "store": session.store}
        if session is not None and "session" in names:
            self.op_kwargs = {**self.op_kwargs, "session": session}
        return super().execute_callable()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        return operator_lineage(self._report)

    def _write(self, context: Context, run: TaskRun, write_key: str) -> str:
        session = self._session = self._begin()
        said = super().execute(context)
        if said is not None and not isinstance(said, Mapping):
            raise TypeError(
                f"{self.python_callable.__name__} returned {type(said).__name__}: a function of "
                "@task.icechunk returns nothing, or a mapping that is kept with the commit"
            )
        metadata = {**mapping("metadata", self.metadata), **(said or {}), **run.stamp()}
        message = required("message", self.message)
        if flag("stage", self.stage):
            staged = session.flush(message, metadata=metadata, write_key=write_key)
            self._say("staged %s, on no branch", staged)
            return staged
        if not session.has_uncommitted_changes:
            unchanged = session.snapshot_id
            self._say("nothing changed, nothing to commit: %s stays at %s", self.branch, unchanged)
            return session.snapshot_id
        committed = session.commit(
            message,
            metadata,
            rebase_with=ConflictDetector() if flag("rebase", self.rebase) else None,
            write_key=write_key,
        )
        self._say("committed %s to %s", committed, self.branch)
        return committed

    def _say(self, message: str, *about: object) -> None:
        self.log.info("%s", told(self.hook, message, *about))

    def _begin(self) -> Session:
        repository = self.hook.repository
        if "base" not in self._given:
            return repository.writable_session(required("branch", self.branch))
        return repository.writable_session(snapshot_id=named_id("base", self.base))


def _check_base(is_staged: bool) -> None:
    if not is_staged:
        raise WrongArgumentError("base goes with stage=True: a commit starts from the branch")


def icechunk_task(
    python_callable: Callable[..., Any] | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task of a function that writes to a repository: ``@task.icechunk``.

    The function gets a zarr ``store``, and the icefloe ``session`` behind it, if it has parameters
    of these names. When it returns, what it wrote is committed; when it raises, nothing is. It
    returns nothing, or a mapping, which is kept as metadata of the commit. The task returns the
    snapshot id. A retry of a task whose commit landed does not call the function again.

    :param python_callable: the function.
    :param icechunk_conn_id: the connection. (templated)
    :param branch: where to commit. (templated)
    :param stage: write a staged snapshot, on no branch, for ``IcechunkCommitOperator``. (templated)
    :param base: the snapshot that a staged write starts from; the tip of the branch if there is
        none. (templated)
    :param key: what tells this write from others of the task, such as a region. (templated)
    :param message: of the commit. (templated)
    :param metadata: any JSON, kept with the commit. (templated)
    :param rebase: where others committed meanwhile, carry the changes over if they touch nothing
        that the others did; False fails then. (templated)
    :param authorize_virtual_chunk_access: see ``IcechunkHook``.
    :param kwargs: what every operator takes.
    """
    # The result is one id, whatever the function says that it returns.
    kwargs["multiple_outputs"] = False
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=IcechunkDecoratedOperator,
        **kwargs,
    )


def _with_optional(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    mine = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, default=None)
        for name, parameter in signature.parameters.items()
        if name in INJECTED
    ]
    others = [it for name, it in signature.parameters.items() if name not in INJECTED]
    end = [others.pop()] if others and others[-1].kind is Parameter.VAR_KEYWORD else []
    return signature.replace(parameters=[*others, *mine, *end])
