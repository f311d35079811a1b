"""Changes of the repo object that move names: branches, tags, status, flags, metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.clock import from_datetime
from icefloe.descriptions import check_json, check_message
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs
from icefloe.format.status import Availability
from icefloe.format.updates import Update, UpdateKind
from icefloe.refs import branch_row, check_name, snapshot_row, tag_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.metadata import Json
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.status import RepoStatus
    from icefloe.repo_update import Change

MAIN = "main"
_LATEST = from_datetime(datetime.max.replace(tzinfo=UTC))
FLAGS = {"move_node": 3, "create_tag": 4, "delete_tag": 5}
"""Feature flags by name; all are on unless somebody turned them off."""


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """What a repository allows; `setting` is None where nobody decided."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        return self.default_enabled if self.setting is None else self.setting


def create_branch(branch: str, snapshot_id: str) -> Change:
    check_name(branch)

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        branches = info.branches.todict()
        if branch in branches:
            raise AlreadyExistsError(f"branch {branch!r} exists", kind="branch-already-exists")
        branches[branch] = snapshot_row(info, snapshot_id)
        update = Update(kind=UpdateKind.BRANCH_CREATED, updated_at=0, name=branch)
        return replace(info, branches=Refs.of(branches)), update

    return change


def reset_branch(branch: str, snapshot_id: str, expected: str | None) -> Change:
    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        branches = info.branches.todict()
        tip = info.snapshots.id_at(branch_row(info, branch))
        if expected is not None and str(tip) != expected:
            raise branch_moved(branch, expected, str(tip))
        branches[branch] = snapshot_row(info, snapshot_id)
        update = Update(
            kind=UpdateKind.BRANCH_RESET, updated_at=0, name=branch, previous_snap_id=tip
        )
        return replace(info, branches=Refs.of(branches)), update

    return change


def delete_branch(branch: str) -> Change:
    if branch == MAIN:
        raise InvalidInputError("the branch main cannot be deleted", kind="cannot-delete-main")

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        tip = info.snapshots.id_at(branch_row(info, branch))
        branches = info.branches.todict()
        del branches[branch]
        update = Update(
            kind=UpdateKind.BRANCH_DELETED, updated_at=0, name=branch, previous_snap_id=tip
        )
        return replace(info, branches=Refs.of(branches)), update

    return change


def create_tag(tag: str, snapshot_id: str) -> Change:
    check_name(tag)

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        require_flag(info, "create_tag")
        tags = info.tags.todict()
        if tag in tags:
            raise AlreadyExistsError(f"tag {tag!r} exists", kind="tag-already-exists")
        if tag in info.deleted_tags.texts():
            raise AlreadyExistsError(
                f"tag {tag!r} was deleted, and tag names are never used again",
                kind="tag-previously-deleted",
            )
        tags[tag] = snapshot_row(info, snapshot_id)
        update = Update(kind=UpdateKind.TAG_CREATED, updated_at=0, name=tag)
        return replace(info, tags=Refs.of(tags)), update

    return change


def delete_tag(tag: str) -> Change:
    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        require_flag(info, "delete_tag")
        target = info.snapshots.id_at(tag_row(info, tag))
        tags = info.tags.todict()
        del tags[tag]
        deleted = sorted({*info.deleted_tags.texts(), tag}, key=str.encode)
        update = Update(
            kind=UpdateKind.TAG_DELETED, updated_at=0, name=tag, previous_snap_id=target
        )
        changed = replace(info, tags=Refs.of(tags), deleted_tags=Ragged.of_text(deleted))
        return changed, update

    return change


def set_status(status: RepoStatus) -> Change:
    """Replace the status by one that all clients understand alike.

    Raises:
        InvalidInputError: the availability or the time is none, or the reason cannot be kept.
    """
    # A number without a name is taken for online by some clients, and closes the repository to us.
    if type(status.availability) not in (int, Availability) or status.availability not in [
        *Availability
    ]:
        known = ", ".join(f"Availability.{each.name}" for each in Availability)
        raise InvalidInputError(
            f"status={status.availability!a} is none of {known}", kind="invalid-status"
        )
    if type(status.set_at) is not int or not 0 <= status.set_at <= _LATEST:
        raise InvalidInputError(
            f"set_at={status.set_at!a} is no time of a status: pass whole microseconds since 1970, "
            "up to the year 9999, or an Availability for now",
            kind="invalid-status",
        )
    if status.reason is not None:
        check_message(status.reason, "reason")

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        update = Update(kind=UpdateKind.REPO_STATUS_CHANGED, updated_at=0, status=status)
        return replace(info, status=status), update

    return change


def set_metadata(metadata: Mapping[str, Json], *, merge: bool) -> Change:
    """Replace the repository's metadata, or add to it at the top level.

    Raises:
        InvalidInputError: it is not JSON, or too large.
    """
    given = check_json(metadata)

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        new = check_json({**(info.metadata or {}), **given}) if merge else given
        update = Update(kind=UpdateKind.METADATA_CHANGED, updated_at=0)
        return replace(info, metadata=new), update

    return change


def feature_flags(info: RepoInfo) -> list[FeatureFlag]:
    on, off = set(info.enabled_feature_flags or ()), set(info.disabled_feature_flags or ())
    return [
        FeatureFlag(number, name, True, True if number in on else False if number in off else None)
        for name, number in FLAGS.items()
    ]


def require_flag(info: RepoInfo, name: str) -> None:
    """Raises ReadOnlyError if the feature is turned off."""
    if not next(flag for flag in feature_flags(info) if flag.name == name).enabled:
        raise ReadOnlyError(
            f"this repository does not allow {name}: turn it on with "
            f"Repository.set_feature_flag({name!r}, True)",
            kind="feature-flag-disabled",
        )


def set_feature_flag(name: str, setting: bool | None) -> Change:
    number = FLAGS.get(name)
    if number is None:
        known = ", ".join(FLAGS)
        raise NotFoundError(f"there is no feature flag {name!r}, only {known}", kind="unknown-flag")

    def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
        # Flags that we do not know stay as they are.
        on = {*(info.enabled_feature_flags or ())} - {number}
        off = {*(info.disabled_feature_flags or ())} - {number}
        if setting is not None:
            (on if setting else off).add(number)
        update = Update(
            kind=UpdateKind.FEATURE_FLAG_CHANGED,
            updated_at=0,
            flag_id=number,
            flag_value=setting,
        )
        changed = replace(
            info,
            enabled_feature_flags=tuple(sorted(on)) or None,
            disabled_feature_flags=tuple(sorted(off)) or None,
        )
        return changed, update

    return change


def branch_moved(branch: str, expected: str, tip: str) -> ConflictError:
    return ConflictError(
        f"branch {branch!r} is at {tip}, not at {expected}: others committed first. Nothing is "
        "lost: commit again with rebase_with=icefloe.ConflictDetector(), or do the work again in a "
        "new session",
        kind="branch-moved",
        expected_parent=expected,
        actual_parent=tip,
    )
