"""Reading the events of assets that stand for branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def snapshot_id_from_event(event: Any) -> str:
    """The snapshot of an asset event, whether a task made the event or a watcher.

    :param event: with an ``extra``, as in ``triggering_asset_events``; or the extra itself.
    :raises ValueError: the event tells of no snapshot.
    """
    extra = event if isinstance(event, Mapping) else getattr(event, "extra", None)
    if isinstance(extra, Mapping):
        payload = extra.get("payload") if extra.get("from_trigger") else extra
        found = payload.get("snapshot_id") if isinstance(payload, Mapping) else None
        if isinstance(found, str):
            return found
    raise ValueError("the event tells of no snapshot: it comes from no task or watcher of Icechunk")
