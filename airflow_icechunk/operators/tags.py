"""Operators on tags."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow_icechunk.arguments import check_choice, check_either, required
from airflow_icechunk.compat import remembered
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.staged import snapshot_id
from airflow_icechunk.task_runs import TaskRun
from icefloe import AlreadyExistsError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow.sdk import Context

type IfExists = Literal["fail", "keep", "suffix"]
IF_EXISTS = get_args(IfExists.__value__)


class IcechunkCreateTagOperator(IcechunkOperator):
    """Name a snapshot for good; return the id of the snapshot that the name stands for.

    A tag that names this snapshot already will do, whatever ``if_exists`` says: an earlier attempt
    made it. Icechunk never reuses the name of a deleted tag.

    :param tag: the name. (templated)
    :param snapshot_id: what it names; the tip of ``branch`` if there is none: give one of the two.
        (templated)
    :param branch: see ``snapshot_id``; None stands for ``main``. A retry takes the tip that
        the first attempt found, where Airflow (3.3) can remember it. (templated)
    :param if_exists: what to do if the tag names another snapshot, as after a clear: ``fail``;
        ``keep`` it, and return its snapshot; or ``suffix`` the name, with ``-2``, ``-3`` and so on,
        whatever is free. The name of a deleted tag fails the task, or is skipped with ``suffix``.
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "tag",
        "snapshot_id",
        "branch",
    )

    def __init__(
        self,
        *,
        tag: str,
        snapshot_id: str | None = None,
        branch: str | None = None,
        if_exists: IfExists = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_either("snapshot_id", snapshot_id, "branch", branch)
        check_choice("if_exists", if_exists, IF_EXISTS)
        self.tag = tag
        self.snapshot_id = snapshot_id
        self.branch = "main" if branch is None else branch
        self.if_exists = if_exists
        self._takes_tip = snapshot_id is None

    def execute(self, context: Context) -> str:
        name = required("tag", self.tag)
        wanted = self._wanted(context)
        branch = self.branch if self._takes_tip else None
        if self.if_exists == "suffix":
            name = next(name for name in _suffixed(name) if self._tag(name, wanted) == wanted)
            return self.report(context, wanted, branch=branch, tag=name)
        found = self._tag(name, wanted)
        if found == wanted:
            return self.report(context, wanted, branch=branch, tag=name)
        if found is None:
            raise AlreadyExistsError(
                f"the tag {name} was deleted once, and Icechunk never reuses the name of a tag: "
                'choose another, or set if_exists="suffix"',
                kind="tag-previously-deleted",
            )
        if self.if_exists == "fail":
            raise AlreadyExistsError(
                f"the tag {name} names {found}, not {wanted}: choose another name, or set "
                'if_exists to "keep" or "suffix"',
                kind="tag-already-exists",
            )
        self.say("kept the tag %s at %s; %s was to be tagged and is not", name, found, wanted)
        return self.report(context, found, tag=name)

    def _wanted(self, context: Context) -> str:
        if not self._takes_tip:
            return snapshot_id(self.snapshot_id)
        key = f"icechunk-tag-{TaskRun.of(context).tries_before_clear}"
        return remembered(
            context, key, lambda: self.hook.branch_head(required("branch", self.branch))
        )

    def _tag(self, name: str, wanted: str) -> str | None:
        """What a name stands for, once it is taken; None if it was deleted."""
        try:
            self.repository.create_tag(name, wanted)
        except AlreadyExistsError:
            try:
                found = self.repository.lookup_tag(name)
            except NotFoundError:
                return None
            if found == wanted:
                self.say("the tag %s names %s already", name, wanted)
            return found
        self.say("tagged %s as %s", wanted, name)
        return wanted


def _suffixed(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


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
        tag = required("tag", self.tag)
        try:
            self.repository.delete_tag(tag)
        except NotFoundError:
            self.say("there is no tag %s: nothing to delete", tag)
            return False
        self.say("deleted the tag %s", tag)
        return True
