"""Sensors: wait for a snapshot, a tag or an array, in a worker, between workers or deferred."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_icechunk import compat
from airflow_icechunk.ages import seconds
from airflow_icechunk.arguments import (
    WrongArgumentError,
    check_flag,
    flag,
    given,
    is_known,
    mapping,
    numbers,
    required,
)
from airflow_icechunk.compat import remembered
from airflow_icechunk.conditions import ArrayReady, SnapshotArrived, TagExists, describe
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.links import LINKS, leave_snapshot
from airflow_icechunk.staged import check_snapshot_id, named_id, snapshot_id
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.telling import counted
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger, IcechunkConditionTrigger
from icefloe import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.sdk import BaseOperatorLink, Context
    from airflow.triggers.base import BaseTrigger

    from airflow_icechunk.conditions import Condition


class IcechunkSensor(BaseSensorOperator):
    """Base of sensors on a repository; they return what the event tells, a small mapping.

    A repository that is not there yet is waited for.

    :param icechunk_conn_id: the connection. (templated)
    :param deferrable: wait in the triggerer, without a worker. (templated)
    """

    template_fields: Sequence[str] = ("icechunk_conn_id", "deferrable")
    operator_extra_links: Collection[BaseOperatorLink] = LINKS
    left_snapshot = False
    ui_color = "#dff3fb"

    def __init__(
        self,
        *,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        deferrable: bool | str = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_flag("deferrable", deferrable)
        self.icechunk_conn_id = icechunk_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> IcechunkHook:
        return IcechunkHook(self.icechunk_conn_id)

    def condition(self) -> Condition:
        """What is waited for."""
        raise NotImplementedError

    def trigger(self) -> BaseTrigger:
        """Who waits for it if the sensor is deferred."""
        return IcechunkConditionTrigger(
            icechunk_conn_id=self.icechunk_conn_id,
            condition=describe(self.condition()),
            poll_interval=self.poke_interval,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        try:
            found = self.condition().check(self.hook.repository)
        except NotFoundError as error:
            if error.kind != "repository-not-found":
                raise
            self.log.info("%s", error)
            found = None
        if found is None:
            self.log.info("%s: not there yet: %s", self.icechunk_conn_id, self.condition())
        return PokeReturnValue(found is not None, found)

    def execute(self, context: Context) -> Any:
        if not flag("deferrable", self.deferrable):
            told = super().execute(context)
            self._leave(context, told)
            return told
        found = self.poke(context)
        if not found:
            self.defer(
                trigger=self.trigger(),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        self._leave(context, found.xcom_value)
        return found.xcom_value

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on once the trigger fired."""
        told = dict(event)
        if told.pop("status", None) != "success":
            raise RuntimeError(told.get("message", "the trigger failed"))
        self._leave(context, told)
        return told

    def _leave(self, context: Context, found: Any) -> None:
        place = f"{found.get('repo')} ({self.icechunk_conn_id})"
        about = {name: found.get(name) for name in ("branch", "tag", "shape")}
        self.log.info("%s: found %s, %s", place, found["snapshot_id"], counted(about))
        leave_snapshot(context, self.icechunk_conn_id, found["snapshot_id"])


class IcechunkBranchSensor(IcechunkSensor):
    """Wait for a snapshot on a branch; return what is known of it, with its ``snapshot_id``.

    Without ``after``, ``contains`` and ``metadata`` it waits for the next commit from now: for a
    snapshot that was not there at the first look. A retry goes on from the first look of the first
    attempt, where Airflow (3.3) can remember it; a clear begins anew.

    :param branch: the branch; it need not be there yet. (templated)
    :param after: wait for a snapshot after this one. One that is not in the history of the branch,
        or no longer, as after it was expired, fails the task. (templated)
    :param contains: wait until the branch has this snapshot in its history. (templated)
    :param metadata: wait for a snapshot whose metadata has these values. (templated)
    :param path: wait for a snapshot that changed something at this path or below. (templated)
    :param icechunk_conn_id: the connection. (templated)
    :param deferrable: wait in the triggerer, without a worker. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkSensor.template_fields,
        "branch",
        "after",
        "contains",
        "metadata",
        "path",
    )

    def __init__(
        self,
        *,
        branch: str = "main",
        after: str | None = None,
        contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        path: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.after = after
        self.contains = contains
        self.metadata = metadata
        self.path = path
        check_snapshot_id("after", after)
        check_snapshot_id("contains", contains)
        self._given = given(after=after, contains=contains, path=path)
        self._is_from_now = after is None and contains is None and metadata is None
        self._seen: str | None = None
        if is_known(self.deferrable):
            self._check_memory(flag("deferrable", self.deferrable))
        if metadata is not None and is_known(metadata):
            _filled(metadata)
        self._wants_metadata = metadata is not None

    def _check_memory(self, deferrable: bool) -> None:
        between_looks = self.mode == "reschedule" and not deferrable
        if self._is_from_now and between_looks and compat.VERSION < (3, 3):
            raise WrongArgumentError(
                "give after, contains or metadata, or deferrable=True: before Airflow 3.3 a sensor "
                "in the mode reschedule cannot remember what was there at its first look"
            )

    def execute(self, context: Context) -> Any:
        self._check_memory(flag("deferrable", self.deferrable))
        return super().execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        if self._is_from_now and self._seen is None:
            key = f"icechunk-seen-{TaskRun.of(context).tries_before_clear}"
            self._seen = remembered(context, key, self._find_tip)
        return super().poke(context)

    def condition(self) -> SnapshotArrived:
        # An empty one would fit every snapshot.
        after = named_id("after", self.after) if "after" in self._given else None
        contains = named_id("contains", self.contains) if "contains" in self._given else None
        return SnapshotArrived(
            branch=required("branch", self.branch),
            after=after or self._seen or None,
            contains=contains,
            metadata=_filled(self.metadata) if self._wants_metadata else None,
            path=required("path", self.path) if "path" in self._given else None,
            # What the sensor saw itself may be gone after a reset: then all is new.
            is_strict=after is not None,
        )

    def _find_tip(self) -> str:
        """Empty where there is no branch yet: then all that it will have is new."""
        try:
            return self.hook.branch_head(self.branch)
        except NotFoundError:
            return ""

    def trigger(self) -> BaseTrigger:
        condition = self.condition()
        return IcechunkBranchTrigger(
            icechunk_conn_id=self.icechunk_conn_id,
            branch=condition.branch,
            after=condition.after,
            initial="all",
            path=condition.path,
            metadata=condition.metadata,
            contains=condition.contains,
            once=True,
            is_strict=condition.is_strict,
            poll_interval=self.poke_interval,
        )


class IcechunkTagSensor(IcechunkSensor):
    """Wait for a tag; return what is known of its snapshot, with its ``snapshot_id``.

    :param tag: the tag. (templated)
    :param snapshot_id: what it must name; a tag that names another fails the task. (templated)
    :param icechunk_conn_id: the connection. (templated)
    :param deferrable: wait in the triggerer, without a worker. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkSensor.template_fields, "tag", "snapshot_id")

    def __init__(self, *, tag: str, snapshot_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_snapshot_id("snapshot_id", snapshot_id)
        self.tag = tag
        self.snapshot_id = snapshot_id
        self._takes_any = snapshot_id is None

    def condition(self) -> TagExists:
        wanted = None if self._takes_any else snapshot_id(self.snapshot_id)
        return TagExists(tag=required("tag", self.tag), snapshot_id=wanted)


class IcechunkArraySensor(IcechunkSensor):
    """Wait for an array; return what is known of the snapshot that has it, with the ``shape``.

    :param path: of the array. (templated)
    :param branch: where to look. (templated)
    :param min_shape: how large it must be, dimension by dimension. (templated)
    :param max_age: how long ago it may have been changed last. (templated)
    :param icechunk_conn_id: the connection. (templated)
    :param deferrable: wait in the triggerer, without a worker. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkSensor.template_fields,
        "path",
        "branch",
        "min_shape",
        "max_age",
    )

    def __init__(
        self,
        *,
        path: str,
        branch: str = "main",
        min_shape: Sequence[int | str] | str | None = None,
        max_age: timedelta | float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.branch = branch
        self.min_shape = min_shape
        self.max_age = max_age
        self._given = given(min_shape=min_shape, max_age=max_age)

    def condition(self) -> ArrayReady:
        shape = numbers("min_shape", self.min_shape) if "min_shape" in self._given else None
        age: Any = self.max_age
        return ArrayReady(
            path=required("path", self.path),
            branch=required("branch", self.branch),
            min_shape=shape,
            max_age=seconds("max_age", age) if "max_age" in self._given else None,
        )


def _filled(metadata: Any) -> dict[str, Any]:
    wanted = mapping("metadata", metadata)
    if not wanted:
        raise WrongArgumentError("metadata is empty, and every snapshot fits that")
    return wanted
