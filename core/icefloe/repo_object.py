"""What the repo object holds: refs, history, status, flags, metadata and configuration."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe import config as configuration
from icefloe import history, ref_changes
from icefloe.clock import now
from icefloe.config import RepositoryConfig, effective
from icefloe.errors import InvalidInputError
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.updates import Update, UpdateKind
from icefloe.refs import ancestors, branch_row, resolve, snapshot_row, tag_row
from icefloe.registering import find_write
from icefloe.repo_update import Attempts, require_online, update_repo
from icefloe.twins import twin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.assets import Assets
    from icefloe.diffs import Diff
    from icefloe.format.ids import SnapshotId
    from icefloe.format.metadata import Json
    from icefloe.format.repo_info import RepoInfo
    from icefloe.history import ManifestFileInfo, SnapshotInfo
    from icefloe.rebasing import Step
    from icefloe.ref_changes import FeatureFlag
    from icefloe.repo_update import Change, Prepared
    from icefloe.storage import Storage


_POLL = 0.0005
"""Seconds between two looks: what counts is to see a change at once."""


class RepoObject:
    """Reads the repo object, and changes it in one compare-and-swap at a time."""

    def __init__(self, assets: Assets, config: RepositoryConfig) -> None:
        self._assets = assets
        self._config = config
        self._settings = effective(config)

    @property
    def storage(self) -> Storage:
        return self._assets.storage

    @property
    def config(self) -> RepositoryConfig:
        """What counts for this handle; to change it, `reopen`."""
        return self._config

    def save_config(self) -> None:
        """Keep this handle's configuration in the repository, for all its clients."""

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            data = configuration.encode(self._config, info.config)
            update = Update(kind=UpdateKind.CONFIG_CHANGED, updated_at=0)
            return replace(info, config=data), update

        self.update(change)

    def get_metadata(self) -> dict[str, Json]:
        return dict(self._info().metadata or {})

    def set_metadata(self, metadata: Mapping[str, Json]) -> None:
        self.update(ref_changes.set_metadata(metadata, merge=False))

    def update_metadata(self, metadata: Mapping[str, Json]) -> dict[str, Json]:
        """Add to the metadata at its top level; all of it afterwards."""
        self.update(ref_changes.set_metadata(metadata, merge=True))
        return self.get_metadata()

    def get_status(self) -> RepoStatus:
        return self._info().status

    def set_status(self, status: RepoStatus | Availability, reason: str | None = None) -> None:
        """Bring the repository online, make it read-only, or take it offline; say why."""
        if not isinstance(status, RepoStatus):
            status = RepoStatus(status, now(), reason)
        elif reason is not None:
            raise InvalidInputError(
                "a RepoStatus says its reason itself: leave the argument reason out",
                kind="invalid-status",
            )
        self.update(ref_changes.set_status(status), whatever_status=True)

    def feature_flags(self) -> list[FeatureFlag]:
        return ref_changes.feature_flags(self._info())

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Turn a feature on or off for all clients; None forgets the decision."""
        self.update(ref_changes.set_feature_flag(name, setting))

    def list_branches(self) -> set[str]:
        return set(self._info().branches.todict())

    def lookup_branch(self, branch: str) -> str:
        info = self._info()
        return str(info.snapshots.id_at(branch_row(info, branch)))

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Raises AlreadyExistsError if the name is taken, NotFoundError without the snapshot."""
        self.update(ref_changes.create_branch(branch, snapshot_id))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch at another snapshot.

        Raises:
            ConflictError: the branch is not at `from_snapshot_id`, where that is given.
        """
        self.update(ref_changes.reset_branch(branch, snapshot_id, from_snapshot_id))

    def delete_branch(self, branch: str) -> None:
        """Forget a branch; its snapshots stay. `main` cannot go."""
        self.update(ref_changes.delete_branch(branch))

    def list_tags(self) -> set[str]:
        return set(self._info().tags.todict())

    def lookup_tag(self, tag: str) -> str:
        info = self._info()
        return str(info.snapshots.id_at(tag_row(info, tag)))

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot for good.

        Raises:
            AlreadyExistsError: the name is taken, or was taken once: tags are never reused.
        """
        self.update(ref_changes.create_tag(tag, snapshot_id))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name can never be used again."""
        self.update(ref_changes.delete_tag(tag))

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """The history of a ref or snapshot, newest first."""
        info = self._info()
        row = resolve(info, branch, tag, snapshot_id)
        return (history.snapshot_info(info, at) for at in ancestors(info, row))

    def ancestry_graph(self, *, limit: int | None = None) -> str:
        """All branches and tags with their histories, as text, newest first."""
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidInputError(f"limit={limit!r}: it counts snapshots, 0 or more")
        return history.graph(self._info(), limit=limit)

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Raises NotFoundError if there is no such snapshot."""
        info = self._info()
        return history.snapshot_info(info, snapshot_row(info, snapshot_id))

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests that a snapshot uses."""
        info = self._info()
        row = snapshot_row(info, snapshot_id)
        files = self._assets.snapshot(info.snapshots.id_at(row)).manifest_files
        return history.manifest_file_infos(files)

    def ops_log(self) -> Iterator[Update]:
        """All updates of the repository, newest first, across the backups of the repo object.

        It ends early where somebody removed a backup.
        """
        return history.ops_log(self._assets)

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed from one version to a later one.

        Raises:
            InvalidInputError: the first is not an ancestor of the second.
        """
        info = self._info()
        old = resolve(info, from_branch, from_tag, from_snapshot_id)
        new = resolve(info, to_branch, to_tag, to_snapshot_id)
        return history.diff(self._assets, info, old, new)

    def find_write(self, write_key: str, branch: str | None = None) -> str | None:
        """The snapshot written under a key: in the branch's history, or anywhere for None."""
        found = find_write(self._info(), write_key, branch)
        return None if found is None else str(found)

    def steps_since(self, branch: str, base: SnapshotId, *, patience: float = 0.0) -> list[Step]:
        """The commits of a branch after `base`, oldest first.

        Args:
            branch: its name.
            base: where to begin.
            patience: wait so many seconds at most until the repository changes once more.
        """
        self.await_change(patience)
        known = self._assets.known_repo
        info = self._info() if known is None else known.info
        return history.branch_steps(info, branch, base)

    def await_change(self, patience: float) -> None:
        """Read the repo object, until it is replaced once more or so many seconds have passed."""
        seen = self._assets.known_repo
        until = time.monotonic() + patience
        self._info()
        while (
            seen is not None
            and self._assets.known_repo is not None
            and self._assets.known_repo.version == seen.version
            and time.monotonic() < until
        ):
            time.sleep(_POLL)
            self._info()

    def update(
        self,
        change: Change,
        *,
        whatever_status: bool = False,
        prepared: Prepared | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Apply a change to the repo object, in one compare-and-swap and with a log entry."""
        settings = self._settings
        update_repo(
            self._assets,
            change,
            updates_per_file=settings.num_updates_per_repo_info_file,
            attempts=Attempts(
                count=max(settings.update_max_tries, 1),
                initial=settings.update_initial_backoff_ms / 1000,
                maximum=settings.update_max_backoff_ms / 1000,
            ),
            whatever_status=whatever_status,
            prepared=prepared,
            ready=ready,
        )

    def _info(self) -> RepoInfo:
        return self._assets.repo()[0]

    def _writable_info(self) -> RepoInfo:
        info = self._info()
        require_online(info)
        self.storage.require_writable()
        return info

    create_branch_async = twin(create_branch)
    create_tag_async = twin(create_tag)
    delete_branch_async = twin(delete_branch)
    delete_tag_async = twin(delete_tag)
    diff_async = twin(diff)
    feature_flags_async = twin(feature_flags)
    find_write_async = twin(find_write)
    get_metadata_async = twin(get_metadata)
    get_status_async = twin(get_status)
    list_branches_async = twin(list_branches)
    list_manifest_files_async = twin(list_manifest_files)
    list_tags_async = twin(list_tags)
    lookup_branch_async = twin(lookup_branch)
    lookup_snapshot_async = twin(lookup_snapshot)
    lookup_tag_async = twin(lookup_tag)
    reset_branch_async = twin(reset_branch)
    save_config_async = twin(save_config)
    set_feature_flag_async = twin(set_feature_flag)
    set_metadata_async = twin(set_metadata)
    set_status_async = twin(set_status)
    update_metadata_async = twin(update_metadata)
