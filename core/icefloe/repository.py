"""Repositories: sessions, refs, history, staged writes and configuration."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icefloe import config as configuration
from icefloe import creating, history, ref_changes
from icefloe.assets import REPO, Assets
from icefloe.clock import next_time, now
from icefloe.config import RepositoryConfig, effective
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot import Snapshot
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.updates import Update, UpdateKind
from icefloe.manifest_writing import ManifestWriter
from icefloe.merging import merge
from icefloe.refs import ancestors, branch_row, resolve, row_as_of, snapshot_row, tag_row
from icefloe.registering import Registrar, find_write, with_tip
from icefloe.repo_update import Attempts, require_online, require_readable, update_repo
from icefloe.session import (
    STAGED_ON,
    WRITE_KEY,
    Publication,
    Registration,
    Session,
    write_snapshot,
)
from icefloe.staging import read_staged
from icefloe.storage import open_storage
from icefloe.twins import twin
from icefloe.virtual import Containers, VirtualReader
from icefloe.working_tree import Context, SessionMode

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from icefloe.conflicts import ConflictSolver
    from icefloe.diffs import Diff
    from icefloe.format.metadata import Json
    from icefloe.format.repo_info import RepoInfo
    from icefloe.history import ManifestFileInfo, SnapshotInfo
    from icefloe.rebasing import Step
    from icefloe.ref_changes import FeatureFlag
    from icefloe.repo_update import Change
    from icefloe.storage import Storage
    from icefloe.zarr_store import IcechunkStore

    type Place = str | os.PathLike[str] | Storage

PUBLISHED_FROM = "icefloe.published_from"
"""Metadata of a commit: the staged snapshot that it publishes on a branch that had moved."""
AUTOMATIC_SPLIT = 100_000
"""References in one manifest of a new repository, about."""
MAX_LEVEL = 22
"""zstd has no more."""
_MERGE_ATTEMPTS = 100


class Repository:
    """A handle on the repository at a URL. It holds no lock and no state worth saving.

    Every method that waits for the store has a twin to await, named with `_async` at the end.
    """

    def __init__(
        self,
        storage: Storage,
        persisted: RepositoryConfig,
        config: RepositoryConfig | None = None,
        authorize: Mapping[str, Any] | None = None,
    ) -> None:
        self._given = config
        self._authorize = dict(authorize or {})
        self._config = persisted if config is None else persisted.merge(config)
        self._settings = effective(self._config)
        self._assets = Assets(
            storage,
            level=min(self._settings.compression_level, MAX_LEVEL),
            manifest_cache_bytes=self._settings.manifest_cache_bytes,
        )
        containers = self._config.virtual_chunk_containers or {}
        self._virtual = VirtualReader(containers, self._authorize)
        self._containers = Containers(containers)
        self._default_metadata: dict[str, Json] = {}

    def __repr__(self) -> str:
        return f"<icefloe.Repository {self._assets.storage.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Credentials for virtual chunks are given again where the pickle lands.
        return _reopen, (self._assets.storage, self._config, self._default_metadata)

    @classmethod
    def create(
        cls,
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        spec_version: int = 2,
        check_clean_root: bool = True,
        **options: Any,
    ) -> Repository:
        """Create a repository with an empty `main`.

        Args:
            url: where, or an open storage.
            storage_options: for the URL's file system; see `open_storage`.
            config: kept in the repository, for all its clients.
            authorize_virtual_chunk_access: see `open`.
            spec_version: of the Icechunk format; 2 is the one that can be written.
            check_clean_root: refuse a place that holds objects already.
            options: passed on to `open_storage`.

        Raises:
            AlreadyExistsError: there is a repository or something else here.
            UnsafeStorageError: the store ignores preconditions, so commits could be lost.
        """
        if spec_version != 2:
            raise InvalidInputError(
                f"spec_version={spec_version}: new repositories are written in version 2",
                kind="unsupported-spec-version",
            )
        kept = RepositoryConfig(automatic_split=AUTOMATIC_SPLIT).merge(config or RepositoryConfig())
        storage = open_storage(url, storage_options, **options)
        data = configuration.encode(kept, None)
        creating.create(Assets(storage), data, check_clean_root=check_clean_root)
        return cls(storage, kept, authorize=authorize_virtual_chunk_access)

    @classmethod
    def open(
        cls,
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Repository:
        """Open an existing repository.

        Args:
            url: where, or an open storage.
            storage_options: for the URL's file system; see `open_storage`.
            config: for this handle: what it sets counts more than what the repository keeps.
            authorize_virtual_chunk_access: prefixes or names of virtual chunk containers to read
                from, each with storage options, a function that returns them, or None.
            options: passed on to `open_storage`.

        Raises:
            NotFoundError: there is none here.
        """
        storage = open_storage(url, storage_options, **options)
        try:
            info, _ = Assets(storage).repo()
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no repository at {storage.url}: create one with Repository.create",
                kind="repository-not-found",
            ) from error
        persisted = configuration.decode(info.config)
        return cls(storage, persisted, config, authorize_virtual_chunk_access)

    @classmethod
    def open_or_create(
        cls,
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        check_clean_root: bool = True,
        **options: Any,
    ) -> Repository:
        """Open the repository, or create it where there is none; many may do so at once."""
        storage = open_storage(url, storage_options, **options)
        given: dict[str, Any] = {
            "config": config,
            "authorize_virtual_chunk_access": authorize_virtual_chunk_access,
        }
        if storage.exists(REPO):
            return cls.open(storage, **given)
        try:
            return cls.create(storage, check_clean_root=check_clean_root, **given)
        except AlreadyExistsError as error:
            if error.kind != "repository-already-exists":
                raise
            return cls.open(storage, **given)

    @staticmethod
    def exists(
        url: Place, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> bool:
        return open_storage(url, storage_options, **options).exists(REPO)

    @staticmethod
    def fetch_config(
        url: Place, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> RepositoryConfig | None:
        """What the repository keeps of configuration; None if it keeps none, or is not there."""
        storage = open_storage(url, storage_options, **options)
        try:
            info, _ = Assets(storage).repo()
        except NotFoundError:
            return None
        return None if info.config is None else configuration.decode(info.config)

    @staticmethod
    def fetch_spec_version(
        url: Place, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> int | None:
        """The version of the format; None if there is no repository."""
        storage = open_storage(url, storage_options, **options)
        return 2 if storage.exists(REPO) else None

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
    ) -> Repository:
        """Another handle on the same repository, with another configuration or other access."""
        given = self._given if config is None else config
        authorize = authorize_virtual_chunk_access
        if authorize is None:
            authorize = self._authorize
        persisted = configuration.decode(self._info().config)
        return Repository(self.storage, persisted, given, authorize)

    @property
    def storage(self) -> Storage:
        return self._assets.storage

    @property
    def config(self) -> RepositoryConfig:
        """What counts for this handle; to change it, `reopen`."""
        return self._config

    @property
    def spec_version(self) -> int:
        return 2

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        return set(self._authorize)

    def save_config(self) -> None:
        """Keep this handle's configuration in the repository, for all its clients."""

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            data = configuration.encode(self._config, info.config)
            update = Update(kind=UpdateKind.CONFIG_CHANGED, updated_at=0)
            return replace(info, config=data), update

        self._update(change)

    def set_default_commit_metadata(self, metadata: Mapping[str, Json]) -> None:
        """Metadata for every commit through this handle, under what a commit says itself."""
        self._default_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Json]:
        return dict(self._default_metadata)

    def get_metadata(self) -> dict[str, Json]:
        return dict(self._info().metadata or {})

    def set_metadata(self, metadata: Mapping[str, Json]) -> None:
        self._update(ref_changes.set_metadata(metadata, merge=False))

    def update_metadata(self, metadata: Mapping[str, Json]) -> dict[str, Json]:
        """Add to the metadata at its top level; all of it afterwards."""
        self._update(ref_changes.set_metadata(metadata, merge=True))
        return self.get_metadata()

    def get_status(self) -> RepoStatus:
        return self._info().status

    def set_status(self, status: RepoStatus | Availability, reason: str | None = None) -> None:
        """Bring the repository online, make it read-only, or take it offline; say why."""
        if not isinstance(status, RepoStatus):
            status = RepoStatus(status, now(), reason)
        self._update(ref_changes.set_status(status), whatever_status=True)

    def feature_flags(self) -> list[FeatureFlag]:
        return ref_changes.feature_flags(self._info())

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Turn a feature on or off for all clients; None forgets the decision."""
        self._update(ref_changes.set_feature_flag(name, setting))

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A session on the tip of a branch (as it was at `as_of`), on a tag or on a snapshot.

        Raises:
            NotFoundError: there is no such ref or snapshot, or nothing that old.
            ReadOnlyError: the repository is offline.
        """
        info = self._info()
        require_readable(info)
        row = resolve(info, branch, tag, snapshot_id)
        if as_of is not None:
            if branch is None:
                raise InvalidInputError("as_of goes with a branch: nothing else moves")
            row = row_as_of(info, row, as_of)
        return self._session(info, row)

    def writable_session(
        self, branch: str | None = None, *, snapshot_id: str | None = None
    ) -> Session:
        """A session that can commit to a branch; or, on a snapshot, one that can only flush.

        A session on a staged snapshot adds to a staged write: `merge_snapshots` publishes both.

        Raises:
            NotFoundError: there is no such branch or snapshot.
            ReadOnlyError: the storage or the repository takes no writes now.
        """
        info = self._writable_info()
        row = resolve(info, branch, None, snapshot_id)
        staged_on = snapshot_id
        if branch is not None or self._is_published(info, row):
            staged_on = None
        return self._session(
            info, row, mode=SessionMode.WRITABLE, branch=branch, staged_on=staged_on
        )

    def rearrange_session(self, branch: str) -> Session:
        """A session that can only move nodes; see `Session.move`.

        Raises:
            ReadOnlyError: the repository takes no writes now, or does not allow moves.
        """
        info = self._writable_info()
        ref_changes.require_flag(info, "move_node")
        row = branch_row(info, branch)
        return self._session(info, row, mode=SessionMode.REARRANGE, branch=branch)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Json] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        write_key: str | None = None,
    ) -> Iterator[IcechunkStore]:
        """A zarr store whose changes are committed on leaving; on an exception nothing is."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(
            message,
            metadata,
            rebase_with=rebase_with,
            rebase_tries=rebase_tries,
            write_key=write_key,
        )

    def list_branches(self) -> set[str]:
        return set(self._info().branches.todict())

    def lookup_branch(self, branch: str) -> str:
        info = self._info()
        return str(info.snapshots.id_at(branch_row(info, branch)))

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Raises AlreadyExistsError if the name is taken, NotFoundError without the snapshot."""
        self._update(ref_changes.create_branch(branch, snapshot_id))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch at another snapshot.

        Raises:
            ConflictError: the branch is not at `from_snapshot_id`, where that is given.
        """
        self._update(ref_changes.reset_branch(branch, snapshot_id, from_snapshot_id))

    def delete_branch(self, branch: str) -> None:
        """Forget a branch; its snapshots stay. `main` cannot go."""
        self._update(ref_changes.delete_branch(branch))

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
        self._update(ref_changes.create_tag(tag, snapshot_id))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name can never be used again."""
        self._update(ref_changes.delete_tag(tag))

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

    def merge_snapshots(
        self,
        branch: str | None,
        snapshot_ids: Sequence[str],
        message: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        write_key: str | None = None,
    ) -> str:
        """Join staged snapshots, and what they stand on, into one commit; its id.

        They may have been flushed from different snapshots of the branch. Manifests are taken over
        whole wherever one staged write alone touched their part of an array.

        Args:
            branch: where to commit. None makes a staged snapshot of the result: look at it, then
                `publish` it.
            snapshot_ids: what `Session.flush` returned.
            message: what was done.
            metadata: any JSON, kept with the commit.
            write_key: makes the merge happen once, as for `Session.commit`.

        Raises:
            ConflictError: two staged writes changed one thing, or wrote one chunk.
            RebaseFailedError: one conflicts with what was committed to the branch meanwhile.
        """
        writer = ManifestWriter(self._assets, self._config)
        for failed in range(1, _MERGE_ATTEMPTS + 1):
            if write_key is not None and (found := self.find_write(write_key, branch)):
                return found
            try:
                return self._merge_once(branch, snapshot_ids, message, metadata, write_key, writer)
            except ConflictError as error:
                if error.kind != "branch-moved" or failed == _MERGE_ATTEMPTS:
                    raise
            Attempts().wait(failed)
        raise AssertionError("the last attempt returns or raises")

    def _merge_once(
        self,
        branch: str | None,
        ids: Sequence[str],
        message: str,
        metadata: Mapping[str, Json] | None,
        write_key: str | None,
        writer: ManifestWriter,
    ) -> str:
        info = self._writable_info()
        staged = read_staged(self._assets, info, ids)
        if branch is None:
            target = _newest(info, {item.base for item in staged})
        else:
            target = info.snapshots.id_at(branch_row(info, branch))
        merged = merge(self._assets, info, staged, target, writer)
        said = {**self._default_metadata, **(metadata or {})}
        if write_key is not None:
            said[WRITE_KEY] = write_key
        latest = max(merged.view.base.flushed_at, *(item.snapshot.flushed_at for item in staged))
        snapshot = Snapshot(
            id=SnapshotId.random(),
            nodes=merged.nodes,
            manifest_files=merged.manifest_files,
            flushed_at=next_time(latest),
            message=message,
            metadata=said,
        )
        write_snapshot(self._assets, snapshot, merged.view.changes.log(snapshot.id))
        registered = self.register(
            Publication(
                snapshot=snapshot,
                base=target,
                registration=Registration.DETACHED if branch is None else Registration.COMMIT,
                branch=branch,
                write_key=write_key,
                split_rules=writer.rules,
            )
        )
        return str(registered)

    def publish(self, branch: str, snapshot_id: str) -> str:
        """Move a branch to a staged snapshot, or merge that into a branch that moved; the tip.

        Publishing twice does nothing the second time.

        Raises:
            ConflictError: the snapshot conflicts with what was committed meanwhile.
        """
        wanted = SnapshotId.parse(snapshot_id)
        published: list[SnapshotId] = []

        def change(info: RepoInfo) -> tuple[RepoInfo, Update] | None:
            published.clear()
            row = snapshot_row(info, snapshot_id)
            tip = branch_row(info, branch)
            past = [*ancestors(info, tip)]
            copies = info.snapshots.rows_with(PUBLISHED_FROM, snapshot_id).tolist()
            done = {row, *copies}.intersection(past)
            if done:
                published.append(info.snapshots.id_at(done.pop()))
                return None
            item = info.snapshots[row]
            is_staged = STAGED_ON in item.metadata
            if is_staged or int(info.snapshots.parent[row]) != tip:
                return None
            published.append(wanted)
            previous = info.snapshots.id_at(tip)
            update = Update(
                kind=UpdateKind.BRANCH_RESET,
                updated_at=0,
                name=branch,
                previous_snap_id=previous,
            )
            return with_tip(info, branch, wanted), update

        self._update(change)
        if published:
            return str(published[0])
        item = self.lookup_snapshot(snapshot_id)
        internal = {STAGED_ON, WRITE_KEY}
        metadata = {key: value for key, value in item.metadata.items() if key not in internal}
        metadata[PUBLISHED_FROM] = snapshot_id
        key = f"publish {snapshot_id} on {branch}"
        return self.merge_snapshots(branch, [snapshot_id], item.message, metadata, write_key=key)

    def find_write(self, write_key: str, branch: str | None = None) -> str | None:
        """The snapshot written under a key: in the branch's history, or anywhere for None."""
        found = find_write(self._info(), write_key, branch)
        return None if found is None else str(found)

    def register(self, publication: Publication) -> SnapshotId:
        """Register a written snapshot; see `session.Publisher`."""
        registrar = Registrar(publication)
        self._update(registrar)
        return registrar.registered

    def steps_since(self, branch: str, base: SnapshotId) -> list[Step]:
        """The commits of a branch after `base`, oldest first."""
        return history.branch_steps(self._info(), branch, base)

    def _info(self) -> RepoInfo:
        return self._assets.repo()[0]

    def _writable_info(self) -> RepoInfo:
        info = self._info()
        require_online(info)
        if self.storage.read_only:
            raise ReadOnlyError(f"{self.storage.url} takes no writes", kind="read-only-storage")
        return info

    def _is_published(self, info: RepoInfo, row: int) -> bool:
        """Whether some branch or tag has the snapshot in its history."""
        starts = {*info.branches.snapshot.tolist(), *info.tags.snapshot.tolist()}
        return any(at == row for start in starts for at in ancestors(info, start))

    def _session(
        self,
        info: RepoInfo,
        row: int,
        *,
        mode: SessionMode = SessionMode.READONLY,
        branch: str | None = None,
        staged_on: str | None = None,
    ) -> Session:
        context = Context(
            assets=self._assets,
            config=self._config,
            virtual=self._virtual,
            containers=self._containers,
            default_metadata=self._default_metadata,
        )
        publisher = None if mode is SessionMode.READONLY else self
        return Session(
            context,
            self._assets.snapshot(info.snapshots.id_at(row)),
            mode=mode,
            branch=branch,
            publisher=publisher,
            staged_on=staged_on,
        )

    def _update(self, change: Change, *, whatever_status: bool = False) -> None:
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
        )

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
    merge_snapshots_async = twin(merge_snapshots)
    publish_async = twin(publish)
    readonly_session_async = twin(readonly_session)
    rearrange_session_async = twin(rearrange_session)
    reopen_async = twin(reopen)
    reset_branch_async = twin(reset_branch)
    save_config_async = twin(save_config)
    set_feature_flag_async = twin(set_feature_flag)
    set_metadata_async = twin(set_metadata)
    set_status_async = twin(set_status)
    update_metadata_async = twin(update_metadata)
    writable_session_async = twin(writable_session)


def _reopen(
    storage: Storage, config: RepositoryConfig, default_metadata: Mapping[str, Json]
) -> Repository:
    repo = Repository(storage, config)
    repo.set_default_commit_metadata(default_metadata)
    return repo


def _newest(info: RepoInfo, bases: set[SnapshotId]) -> SnapshotId:
    """The snapshot that has all the others in its history.

    Raises:
        ConflictError: there is none.
    """
    for base in bases:
        past = {info.snapshots.id_at(row) for row in ancestors(info, snapshot_row(info, str(base)))}
        if bases <= past:
            return base
    told = ", ".join(sorted(map(str, bases)))
    raise ConflictError(
        f"the staged snapshots stand on snapshots of different histories: {told}",
        kind="merge-failed",
    )
