"""A repository as a whole: its state in a few numbers, its settings, and its ops log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_icechunk.plugin.commits import Commit, commits
from airflow_icechunk.plugin.errors import without_secrets
from icefloe import config as configuration
from icefloe.clock import to_datetime
from icefloe.format.status import Availability
from icefloe.format.updates import UpdateKind
from icefloe.history import ops_log
from icefloe.ref_changes import FLAGS, feature_flags

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_icechunk.plugin.repositories import OpenRepository
    from icefloe.config import RepositoryConfig
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.status import RepoStatus
    from icefloe.format.updates import Update

_FLAGS = {number: name for name, number in FLAGS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    availability: str
    """`online`, `read_only` or `offline`."""
    since: datetime
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    url: str
    branches: int
    tags: int
    snapshots: int
    latest: Commit | None
    """The newest snapshot that a branch is at."""
    status: Status
    connection_is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    name: str
    enabled: bool
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    spec_version: int
    config: dict[str, Any]
    """What the repository keeps, without what nobody has set; free of secrets."""
    containers: list[dict[str, str]]
    """Where virtual chunks may come from."""
    flags: list[Flag]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the ops log; what its kind has no use for is None."""

    kind: str
    at: datetime
    name: str | None
    """The branch or tag."""
    snapshot_id: str | None
    previous_snapshot_id: str | None
    detail: str | None


def summarize_now(opened: OpenRepository) -> Summary:
    return summarize(opened, opened.info())


def summarize(opened: OpenRepository, info: RepoInfo) -> Summary:
    tips = info.branches.snapshot
    times = info.snapshots.flushed_at[tips]
    latest = commits(info, tips[[times.argmax()]]) if len(tips) else []
    return Summary(
        url=opened.url,
        branches=len(info.branches),
        tags=len(info.tags),
        snapshots=len(info.snapshots),
        latest=latest[0] if latest else None,
        status=_status(info.status),
        connection_is_read_only=opened.is_read_only,
    )


def settings(info: RepoInfo) -> Settings:
    config = configuration.decode(info.config)
    return Settings(
        spec_version=info.spec_version,
        config=_plain(_without_stores(config)),
        containers=[
            {
                "name": container.name or "",
                "url_prefix": without_secrets(container.url_prefix),
                "store": type(container.store).__name__,
            }
            for container in (config.virtual_chunk_containers or {}).values()
        ],
        flags=[
            Flag(name=flag.name, enabled=flag.enabled, is_default=flag.setting is None)
            for flag in feature_flags(info)
        ],
        metadata=dict(info.metadata or {}),
    )


def operations(opened: OpenRepository, limit: int) -> list[Operation]:
    """The latest entries of the ops log, newest first."""
    return [_operation(update) for update in islice(ops_log(opened.assets), limit)]


def _status(status: RepoStatus) -> Status:
    known = status.availability
    name = known.name.lower() if isinstance(known, Availability) else f"unknown ({known})"
    return Status(availability=name, since=to_datetime(status.set_at), reason=status.reason)


def _without_stores(config: RepositoryConfig) -> dict[str, Any]:
    # The options of stores are free text: who knows what somebody put there.
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name != "virtual_chunk_containers"
    }


def _plain(value: Any) -> Any:
    """A configuration as JSON, without what is not set."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    match value:
        case Mapping():
            plain = {str(name): _plain(item) for name, item in value.items() if item is not None}
            return {name: item for name, item in plain.items() if item != {}}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Enum():
            return value.name
        case None | bool() | int() | float() | str():
            return value
    return repr(value)


def _operation(update: Update) -> Operation:
    kind = update.kind
    detail = None
    if update.flag_id is not None:
        name = _FLAGS.get(update.flag_id, f"flag {update.flag_id}")
        detail = f"{name}: {_setting(update.flag_value)}"
    elif update.to_version is not None:
        detail = f"version {update.from_version} to {update.to_version}"
    elif update.status is not None:
        status = _status(update.status)
        detail = f"{status.availability}: {status.reason}" if status.reason else status.availability
    return Operation(
        kind=kind.name.lower() if isinstance(kind, UpdateKind) else f"unknown ({kind})",
        at=to_datetime(update.updated_at),
        name=update.name,
        snapshot_id=None if update.new_snap_id is None else str(update.new_snap_id),
        previous_snapshot_id=(
            None if update.previous_snap_id is None else str(update.previous_snap_id)
        ),
        detail=detail,
    )


def _setting(value: bool | None) -> str:
    return "not set" if value is None else "on" if value else "off"
