"""Triggers: a branch watched for deferred sensors and for assets, and other things waited for."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_icechunk.arguments import check_choice, flag
from airflow_icechunk.compat import read_watermark, write_watermark
from airflow_icechunk.conditions import SnapshotArrived, restore
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.snapshots import payload
from airflow_icechunk.staged import check_snapshot_id
from icefloe import IcefloeError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from icefloe import Repository

POLL_INTERVAL = conf.getfloat("icechunk", "poll_interval", fallback=30.0)
"""Seconds between two looks at a repository."""
EVENT_INTERVAL = 5.0
"""Seconds between two events: the scheduler looks for them about every second."""
_MAX_LISTED = 1000
"""Snapshots of one event, which Airflow keeps in its database."""


async def ask[T](hook: IcechunkHook, question: Callable[[Repository], T]) -> T:
    """The answer of a repository, which blocks, from a thread."""
    repository = await hook.aget_conn()
    return await sync_to_async(question, thread_sensitive=False)(repository)


class IcechunkBranchTrigger(BaseEventTrigger):
    """Fires for new snapshots on a branch: for ``AssetWatcher``, and for a deferred sensor.

    All that is new at one look is one event, which lists it. Of several events that wait for one
    run, Airflow gives that run those up to the time of the first, and leaves the others until the
    next event comes: so events also keep a distance.

    As a watcher it never ends: while the connection, the repository or the branch is not there, or
    the store fails, it keeps looking. Events come at least once: after a restart of the triggerer
    it goes on from the watermark that it keeps in the asset's state store (Airflow 3.3), and may
    tell the last snapshots again. Key what you do on the snapshot id. Where there is no state
    store, give ``after``: without it, what is committed while no triggerer runs goes unnoticed.

    :param icechunk_conn_id: the connection.
    :param branch: the branch.
    :param after: the snapshot to begin after; None begins where ``initial`` says.
    :param initial: without ``after`` or a watermark: tell of ``none`` that is there already, of
        the ``head``, or of ``all``.
    :param every_snapshot: list all new snapshots in the event; False for the newest only.
    :param path: only snapshots that changed something at this path or below.
    :param metadata: only snapshots whose metadata has these values.
    :param contains: only this snapshot.
    :param once: end with the first event, and fail where a person has to act; for sensors.
    :param poll_interval: seconds between two looks.
    :param is_strict: refuse an ``after`` that is not in the history of the branch; for sensors.
    :param event_interval: seconds between two events at least; what is committed meanwhile goes
        into the later one. More than the scheduler takes to look for events.
    """

    def __init__(
        self,
        *,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        branch: str = "main",
        after: str | None = None,
        initial: Literal["none", "head", "all"] = "none",
        every_snapshot: bool = True,
        path: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        contains: str | None = None,
        once: bool = False,
        poll_interval: float = POLL_INTERVAL,
        event_interval: float = EVENT_INTERVAL,
        is_strict: bool = False,
    ) -> None:
        super().__init__()
        check_choice("initial", initial, ["none", "head", "all"])
        check_snapshot_id("after", after)
        check_snapshot_id("contains", contains)
        self.icechunk_conn_id = icechunk_conn_id
        self.branch = branch
        self.after = after
        self.initial = initial
        self.every_snapshot = flag("every_snapshot", every_snapshot)
        self.path = path
        self.metadata = metadata
        self.contains = contains
        self.once = flag("once", once)
        self.poll_interval = poll_interval
        self.event_interval = event_interval
        self.is_strict = flag("is_strict", is_strict)
        self._kept: str | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "icechunk_conn_id",
            "branch",
            "after",
            "initial",
            "every_snapshot",
            "path",
            "metadata",
            "contains",
            "once",
            "poll_interval",
            "event_interval",
            "is_strict",
        )
        return _path_of(type(self)), {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = IcechunkHook(self.icechunk_conn_id)
        seen = await self._recall() or self.after
        started = seen is not None or self.initial == "all"
        while True:
            try:
                seen, news = await ask(hook, self._look(seen, started))
                started = True
            except Exception as error:
                if self.once and not _will_pass(error):
                    yield TriggerEvent({"status": "error", "message": _told(error)})
                    return
                # Raising would make the triggerer start this again every second.
                self.log.warning("%s of %s: %s", self.branch, self.icechunk_conn_id, _told(error))
                news = None
                # Credentials may have changed, or the connection.
                hook = IcechunkHook(self.icechunk_conn_id)
            if news is not None:
                yield TriggerEvent(news)
                if self.once:
                    return
            told = news is not None
            await asyncio.sleep(max(self.poll_interval, self.event_interval if told else 0))
            # Only now is the event certain to have left this process.
            if seen is not None and not self.once:
                await self._keep(seen)

    async def _recall(self) -> str | None:
        """The watermark; without it events could get lost, so a failure is waited out."""
        while True:
            try:
                return await read_watermark(self, self._watermark)
            except Exception as error:
                self.log.warning("the watermark cannot be read: %s", _told(error))
            await asyncio.sleep(self.poll_interval)

    async def _keep(self, seen: str) -> None:
        if seen == self._kept:
            return
        try:
            await write_watermark(self, self._watermark, seen)
        except Exception as error:
            # The next round tries again; until then a restart would tell some events twice.
            self.log.warning("the watermark cannot be kept: %s", _told(error))
        else:
            self._kept = seen

    def _look(
        self, seen: str | None, started: bool
    ) -> Callable[[Repository], tuple[str | None, dict[str, Any] | None]]:
        """How to find out up to where all is told, and the event for what is new since `seen`."""

        def look(repository: Repository) -> tuple[str | None, dict[str, Any] | None]:
            head = repository.lookup_branch(self.branch)
            if head == seen or (not started and self.initial == "none"):
                return head, None
            after = seen
            if not started and self.initial == "head":
                after = repository.lookup_snapshot(head).parent_id
            condition = SnapshotArrived(
                branch=self.branch,
                after=after,
                contains=self.contains,
                metadata=self.metadata,
                path=self.path,
                # What was seen since may be gone after a reset, and that is no mistake.
                is_strict=self.is_strict and after == self.after,
            )
            found = condition.arrivals(repository, head)
            if not found:
                return head, None
            if not self.every_snapshot or self.once:
                found = found[-1:]
            # The rest comes with the next look.
            listed = found[:_MAX_LISTED]
            return head if len(listed) == len(found) else listed[-1].id, {
                "status": "success",
                **payload(repository, listed[-1], branch=self.branch),
                "previous_snapshot_id": after,
                "snapshot_ids": [snapshot.id for snapshot in listed],
            }

        return look

    @property
    def _watermark(self) -> str:
        """Where the watermark is kept; other watchers of the asset have other places."""
        about = repr((self.icechunk_conn_id, self.branch, self.path, self.metadata, self.contains))
        return f"icechunk_{hashlib.sha256(about.encode()).hexdigest()[:16]}"


class IcechunkConditionTrigger(BaseTrigger):
    """Fires once, when a condition holds; for deferred sensors.

    :param icechunk_conn_id: the connection.
    :param condition: what is waited for, as ``airflow_icechunk.conditions.describe`` tells it.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        condition: Mapping[str, Any],
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        self.icechunk_conn_id = icechunk_conn_id
        self.condition = condition
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("icechunk_conn_id", "condition", "poll_interval")
        return _path_of(type(self)), {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = IcechunkHook(self.icechunk_conn_id)
        condition = restore(self.condition)
        while True:
            try:
                found = await ask(hook, condition.check)
            except Exception as error:
                if not _will_pass(error):
                    yield TriggerEvent({"status": "error", "message": _told(error)})
                    return
                self.log.warning("%s: %s", self.icechunk_conn_id, _told(error))
                found, hook = None, IcechunkHook(self.icechunk_conn_id)
            if found is not None:
                yield TriggerEvent({"status": "success", **found})
                return
            await asyncio.sleep(self.poll_interval)


def _will_pass(error: Exception) -> bool:
    """Whether waiting may help a sensor: what is missing may come, and a store may recover."""
    if isinstance(error, AirflowNotFoundException):
        return False
    return isinstance(error, NotFoundError) or (
        isinstance(error, StorageError) and not isinstance(error, PermissionError)
    )


def _told(error: Exception) -> str:
    # Messages of icefloe hold no secret; of others only the kind is told.
    known = isinstance(error, IcefloeError | ValueError | AirflowNotFoundException)
    return f"{type(error).__name__}: {error}" if known else type(error).__name__


def _path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
