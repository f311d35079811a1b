"""Repositories: sessions, refs, history and the ops log."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icefloe.assets import REPO, Assets
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icefloe.format import flexbuffers
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.nodes import Nodes
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs, RepoInfo, Snapshots
from icefloe.format.repo_info import SnapshotInfo as InfoRow
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import Update, UpdateKind, Updates
from icefloe.refs import (
    ancestors,
    branch_row,
    check_name,
    resolve,
    row_as_of,
    snapshot_row,
    tag_row,
    to_datetime,
)
from icefloe.repo_update import UPDATES_PER_FILE, next_time, now, require_online, update_repo
from icefloe.session import Session
from icefloe.storage import open_storage, probe_preconditions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from icefloe.format.ids import SnapshotId
    from icefloe.format.metadata import Json
    from icefloe.repo_update import Change
    from icefloe.storage import Storage
    from icefloe.zarr_store import IcechunkStore

MAIN = "main"
MAX_LEVEL = 22
"""zstd has no more."""
PROBE_PREFIX = "icefloe-probe-"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One entry of a history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Json]


class Repository:
    """A handle on the repository at a URL. It holds no lock and no state worth saving."""

    def __init__(self, assets: Assets, info: RepoInfo) -> None:
        self._assets = assets
        config = _config(info)
        self._inline_threshold = _number(config, "inline_chunk_threshold_bytes", 512)
        self._updates_per_file = _number(config, "num_updates_per_repo_info_file", UPDATES_PER_FILE)
        compression = config.get("compression")
        if isinstance(compression, dict):
            assets.level = min(_number(compression, "level", assets.level), MAX_LEVEL)
        self._default_metadata: dict[str, Json] = {}

    def __repr__(self) -> str:
        return f"<icefloe.Repository {self._assets.storage.url}>"

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str] | Storage,
        storage_options: Mapping[str, Any] | None = None,
        *,
        check_clean_root: bool = True,
        **options: Any,
    ) -> Repository:
        """Create a repository with an empty `main`.

        Args:
            url: where, or an open storage.
            storage_options: for the URL's file system; see `open_storage`.
            check_clean_root: refuse a place that holds objects already.
            options: passed on to `open_storage`.

        Raises:
            AlreadyExistsError: there is a repository or something else here.
            UnsafeStorageError: the store ignores preconditions, so commits could be lost.
        """
        storage = open_storage(url, storage_options, **options)
        # The files below would replace those of a repository that is there already.
        if storage.exists(REPO):
            raise _repository_exists(storage)
        if check_clean_root and not _is_clean(storage):
            raise AlreadyExistsError(
                f"{storage.url} is not empty: choose another place, or pass check_clean_root=False",
                kind="parent-directory-not-clean",
            )
        probe_preconditions(storage)
        assets = Assets(storage)
        created_at = now()
        metadata: dict[str, Json] = {"__icechunk": {"is_root": True}}
        message = "Repository initialized"
        assets.put_snapshot(
            Snapshot(
                id=INITIAL_SNAPSHOT_ID,
                nodes=Nodes.of([]),
                manifest_files=ManifestFiles.of([]),
                flushed_at=created_at,
                message=message,
                metadata=metadata,
            )
        )
        assets.put_transaction_log(TransactionLog(id=INITIAL_SNAPSHOT_ID))
        info = RepoInfo(
            branches=Refs.of({MAIN: 0}),
            tags=Refs.of({}),
            deleted_tags=Ragged.of([]),
            snapshots=Snapshots.of(
                [InfoRow(INITIAL_SNAPSHOT_ID, None, created_at, message, metadata)]
            ),
            status=RepoStatus(Availability.ONLINE, created_at),
            updates=Updates.of([Update(kind=UpdateKind.REPO_INITIALIZED, updated_at=created_at)]),
            metadata={},
        )
        try:
            assets.swap_repo(info, expected=None)
        except ConflictError as error:
            raise _repository_exists(storage) from error
        return cls(assets, info)

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] | Storage,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Repository:
        """Open an existing repository.

        Raises:
            NotFoundError: there is none here.
        """
        storage = open_storage(url, storage_options, **options)
        assets = Assets(storage)
        try:
            info, _ = assets.repo()
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no repository at {storage.url}: create one with Repository.create",
                kind="repository-not-found",
            ) from error
        return cls(assets, info)

    @classmethod
    def open_or_create(
        cls,
        url: str | os.PathLike[str] | Storage,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Repository:
        """Open the repository, or create it where there is none; many may do so at once."""
        storage = open_storage(url, storage_options, **options)
        if storage.exists(REPO):
            return cls.open(storage)
        try:
            return cls.create(storage)
        except AlreadyExistsError as error:
            if error.kind != "repository-already-exists":
                raise
            return cls.open(storage)

    @staticmethod
    def exists(
        url: str | os.PathLike[str] | Storage,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> bool:
        return open_storage(url, storage_options, **options).exists(REPO)

    @property
    def storage(self) -> Storage:
        return self._assets.storage

    def set_default_commit_metadata(self, metadata: Mapping[str, Json]) -> None:
        """Metadata for every commit through this handle, under what a commit says itself."""
        self._default_metadata = dict(metadata)

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
        """
        info = self._info()
        row = resolve(info, branch, tag, snapshot_id)
        if as_of is not None:
            if branch is None:
                raise InvalidInputError("as_of goes with a branch: nothing else moves")
            row = row_as_of(info, row, as_of)
        return Session(self._assets, self._assets.snapshot(info.snapshots.id_at(row)))

    def writable_session(self, branch: str) -> Session:
        """A session that can commit to a branch.

        Raises:
            NotFoundError: there is no such branch.
            ReadOnlyError: the storage or the repository takes no writes now.
        """
        info = self._info()
        require_online(info)
        if self.storage.read_only:
            raise ReadOnlyError(f"{self.storage.url} takes no writes", kind="read-only-storage")
        tip = branch_row(info, branch)
        return Session(
            self._assets,
            self._assets.snapshot(info.snapshots.id_at(tip)),
            branch=branch,
            publisher=self,
            inline_threshold=self._inline_threshold,
            default_metadata=self._default_metadata,
        )

    @contextmanager
    def transaction(
        self, branch: str, *, message: str, metadata: Mapping[str, Json] | None = None
    ) -> Iterator[IcechunkStore]:
        """A zarr store whose changes are committed on leaving; on an exception nothing is."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata)

    def list_branches(self) -> set[str]:
        return set(self._info().branches.todict())

    def lookup_branch(self, branch: str) -> str:
        info = self._info()
        return str(info.snapshots.id_at(branch_row(info, branch)))

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Raises AlreadyExistsError if the name is taken, NotFoundError without the snapshot."""
        check_name(branch)

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            branches = info.branches.todict()
            if branch in branches:
                raise AlreadyExistsError(f"branch {branch!r} exists", kind="branch-already-exists")
            branches[branch] = snapshot_row(info, snapshot_id)
            update = Update(kind=UpdateKind.BRANCH_CREATED, updated_at=0, name=branch)
            return replace(info, branches=Refs.of(branches)), update

        self._update(change)

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch at another snapshot.

        Raises:
            ConflictError: the branch is not at `from_snapshot_id`, where that is given.
        """

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            branches = info.branches.todict()
            tip = info.snapshots.id_at(branch_row(info, branch))
            if from_snapshot_id is not None and str(tip) != from_snapshot_id:
                raise ConflictError(
                    f"branch {branch!r} is at {tip}, not at {from_snapshot_id}", kind="branch-moved"
                )
            branches[branch] = snapshot_row(info, snapshot_id)
            update = Update(
                kind=UpdateKind.BRANCH_RESET, updated_at=0, name=branch, previous_snap_id=tip
            )
            return replace(info, branches=Refs.of(branches)), update

        self._update(change)

    def delete_branch(self, branch: str) -> None:
        """Forget a branch; its snapshots stay. `main` cannot go."""
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

        self._update(change)

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
        check_name(tag)

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
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

        self._update(change)

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name can never be used again."""

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            target = info.snapshots.id_at(tag_row(info, tag))
            tags = info.tags.todict()
            del tags[tag]
            deleted = sorted({*info.deleted_tags.texts(), tag}, key=str.encode)
            update = Update(
                kind=UpdateKind.TAG_DELETED, updated_at=0, name=tag, previous_snap_id=target
            )
            changed = replace(info, tags=Refs.of(tags), deleted_tags=Ragged.of_text(deleted))
            return changed, update

        self._update(change)

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
        for at in ancestors(info, row):
            item = info.snapshots[at]
            yield SnapshotInfo(
                str(item.id),
                None if item.parent_id is None else str(item.parent_id),
                to_datetime(item.flushed_at),
                item.message,
                item.metadata,
            )

    def ops_log(self) -> Iterator[Update]:
        """All updates of the repository, newest first, across the backups of the repo object.

        It ends early where somebody removed a backup.
        """
        info: RepoInfo | None = self._info()
        pointer: str | None = None
        seen: set[str | None] = {None}
        while info is not None:
            for row in range(len(info.updates)):
                update = info.updates[row]
                # The newest entry of a backup does not know the backup's name.
                yield replace(update, backup_path=pointer) if row == 0 else update
            pointer = info.repo_before_updates
            # A damaged file may name itself.
            info = None if pointer is None or pointer in seen else self._assets.backup(pointer)
            seen.add(pointer)

    def publish_commit(self, branch: str, base: SnapshotId, snapshot: Snapshot) -> None:
        """Register a written snapshot and move the branch to it, if it is still at `base`."""

        def change(info: RepoInfo) -> tuple[RepoInfo, Update]:
            tip = info.snapshots.id_at(branch_row(info, branch))
            if tip != base:
                raise ConflictError(
                    f"branch {branch!r} moved from {base} to {tip} since this session began",
                    kind="branch-moved",
                )
            row = InfoRow(
                snapshot.id, base, snapshot.flushed_at, snapshot.message, snapshot.metadata
            )
            grown = info.with_snapshot(row)
            branches = grown.branches.todict()
            branches[branch] = snapshot_row(grown, str(snapshot.id))
            update = Update(
                kind=UpdateKind.NEW_COMMIT, updated_at=0, name=branch, new_snap_id=snapshot.id
            )
            return replace(grown, branches=Refs.of(branches)), update

        self._update(change)

    def next_time(self, after: int) -> int:
        """Now in microseconds since the epoch, and later than `after`."""
        return next_time(after)

    def _info(self) -> RepoInfo:
        return self._assets.repo()[0]

    def _update(self, change: Change) -> None:
        update_repo(self._assets, change, updates_per_file=self._updates_per_file)


def _config(info: RepoInfo) -> dict[str, Any]:
    config = flexbuffers.decode(info.config, name="repo config") if info.config else {}
    return config if isinstance(config, dict) else {}


def _number(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    return value if type(value) is int and value >= 0 else default


def _is_clean(storage: Storage) -> bool:
    """Whether nothing is there but what others leave who are creating this repository, too."""
    page = next(storage.list(), [])
    initial = {f"snapshots/{INITIAL_SNAPSHOT_ID}", f"transactions/{INITIAL_SNAPSHOT_ID}"}
    return all(item.key in initial or item.key.startswith(PROBE_PREFIX) for item in page)


def _repository_exists(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{storage.url} holds a repository already: open it", kind="repository-already-exists"
    )
