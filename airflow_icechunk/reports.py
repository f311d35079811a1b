"""What an operator tells the rest of Airflow about the snapshot it made or found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_icechunk.assets import icechunk_asset
from airflow_icechunk.links import leave_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from airflow_icechunk.hooks.icechunk import IcechunkHook


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """The extra of an asset event; small, and free of secrets."""

    repo: str
    """The URL of the repository."""
    branch: str | None
    snapshot_id: str
    parent: str | None
    tag: str | None = None
    write_key: str | None = None

    def as_extra(self) -> dict[str, Any]:
        return asdict(self)


def report_snapshot(
    context: Context,
    hook: IcechunkHook,
    snapshot_id: str,
    *,
    outlets: Iterable[Any],
    branch: str | None = None,
    tag: str | None = None,
    write_key: str | None = None,
) -> SnapshotReport:
    """Fill every outlet with the snapshot, and leave the address of its page for the link.

    :param context: of the task.
    :param hook: of the repository.
    :param snapshot_id: made or found.
    :param outlets: of the operator; an alias gets the asset of the branch.
    :param branch: that is at the snapshot; None for a staged one.
    :param tag: that names the snapshot.
    :param write_key: under which it was written.
    """
    repository = hook.repository
    report = SnapshotReport(
        repo=repository.storage.url,
        branch=branch,
        snapshot_id=snapshot_id,
        parent=repository.lookup_snapshot(snapshot_id).parent_id,
        tag=tag,
        write_key=write_key,
    )
    events = context["outlet_events"]
    for outlet in outlets:
        if isinstance(outlet, Asset):
            events[outlet].extra.update(report.as_extra())
        elif isinstance(outlet, AssetAlias):
            asset = icechunk_asset(icechunk_conn_id=hook.icechunk_conn_id, branch=branch or "main")
            events[outlet].add(asset, extra=report.as_extra())
    leave_snapshot(context, hook.icechunk_conn_id, snapshot_id)
    return report
