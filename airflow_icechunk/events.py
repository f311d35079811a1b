"""Reading the events of assets that stand for branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def snapshot_id_from_event(event: Any) -> str:
    """The snapshot of an asset event, whether a task made the event or a watcher: the newest.

    :param event: with an ``extra``, as in ``triggering_asset_events``; or the extra itself.
    :raises ValueError: the event tells of no snapshot.
    """
    return snapshot_ids_from_event(event)[-1]


def snapshot_ids_from_event(event: Any) -> list[str]:
    """All snapshots of an asset event, oldest first: a watcher tells of several at once.

    :param event: with an ``extra``, as in ``triggering_asset_events``; or the extra itself.
    :raises ValueError: the event tells of no snapshot.
    """
    extra = event if isinstance(event, Mapping) else getattr(event, "extra", None)
    if isinstance(extra, Mapping):
        payload = extra.get("payload") if extra.get("from_trigger") else extra
        if isinstance(payload, Mapping) and isinstance(payload.get("snapshot_id"), str):
            return [*payload.get("snapshot_ids", ())] or [payload["snapshot_id"]]
    raise ValueError("the event tells of no snapshot: it comes from no task or watcher of Icechunk")
