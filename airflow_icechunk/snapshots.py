"""Snapshots as events tell of them, and what they touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_icechunk.guards import changed_paths
from icefloe import WRITE_KEY, NotFoundError

if TYPE_CHECKING:
    from icefloe import Repository, SnapshotInfo


def payload(
    repository: Repository, snapshot: SnapshotInfo, *, branch: str | None = None
) -> dict[str, Any]:
    """What an event tells: the keys that operators give to their outlets."""
    return {
        "repo": repository.storage.url,
        "branch": branch,
        "snapshot_id": snapshot.id,
        "parent": snapshot.parent_id,
        "tag": None,
        "write_key": snapshot.metadata.get(WRITE_KEY),
    }


def touches(repository: Repository, snapshot: SnapshotInfo, path: str) -> bool:
    """Whether a snapshot changed something at a path or below it.

    One whose transaction log is gone may have: then the answer is yes.
    """
    if snapshot.parent_id is None:
        return False
    try:
        diff = repository.diff(from_snapshot_id=snapshot.parent_id, to_snapshot_id=snapshot.id)
    except NotFoundError:
        return True
    place = f"/{path.strip('/')}"
    below = place if place == "/" else f"{place}/"
    return any(found == place or found.startswith(below) for found in changed_paths(diff))
