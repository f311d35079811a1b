"""Repositories: sessions, refs, history, staged writes and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from icefloe import config as configuration
from icefloe import creating, ref_changes, staged_writes
from icefloe.assets import REPO, Assets
from icefloe.config import RepositoryConfig, effective
from icefloe.conflicts import check_rebase
from icefloe.descriptions import check_message, check_metadata, check_write_key
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
)
from icefloe.layouts import detect
from icefloe.node_tree import SessionMode
from icefloe.preloading import preload
from icefloe.refs import branch_row, published, resolve, row_as_of
from icefloe.repo_update import require_readable
from icefloe.session import Session
from icefloe.storage import open_storage
from icefloe.twins import twin
from icefloe.upkeep import Upkeep
from icefloe.virtual import Containers, VirtualReader
from icefloe.working_tree import Context

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from icefloe.clock import Moment
    from icefloe.conflicts import ConflictSolver
    from icefloe.diffs import Diff
    from icefloe.format.metadata import Json
    from icefloe.format.repo_info import RepoInfo
    from icefloe.storage import Storage
    from icefloe.zarr_store import IcechunkStore

    type Place = str | os.PathLike[str] | Storage

AUTOMATIC_SPLIT = 100_000
"""References in one manifest of a new repository, about."""
MAX_LEVEL = 22
"""zstd has no more."""


class Repository(Upkeep):
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
        if config is not None and not isinstance(config, RepositoryConfig):
            raise InvalidInputError(
                f"config is a {type(config).__name__}: pass icefloe.RepositoryConfig(...)"
            )
        if authorize is not None and not isinstance(authorize, Mapping):
            raise InvalidInputError(
                f"authorize_virtual_chunk_access is a {type(authorize).__name__}: pass a dict from "
                "prefixes or names of containers to storage options or None"
            )
        self._given = config
        self._authorize = dict(authorize or {})
        merged = persisted if config is None else persisted.merge(config)
        settings = effective(merged)
        assets = Assets(
            storage,
            level=min(settings.compression_level, MAX_LEVEL),
            manifest_cache_bytes=settings.manifest_cache_bytes,
        )
        super().__init__(assets, merged)
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
            check_clean_root: refuse a place that holds objects already. One that holds a repository
                is refused in any case.
            options: passed on to `open_storage`.

        Raises:
            AlreadyExistsError: there is a repository, of whatever version, or something else here.
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
            FormatError: there is one of a version before 2 (kind `unsupported-spec-version`).
        """
        storage = open_storage(url, storage_options, **options)
        try:
            info, _ = Assets(storage).repo()
        except NotFoundError as error:
            _require_version_2(storage)
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
        """Whether there is a repository, of whatever version."""
        return detect(open_storage(url, storage_options, **options)) is not None

    @staticmethod
    def fetch_config(
        url: Place, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> RepositoryConfig | None:
        """What the repository keeps of configuration; None if it keeps none, or is not there."""
        storage = open_storage(url, storage_options, **options)
        try:
            info, _ = Assets(storage).repo()
        except NotFoundError:
            _require_version_2(storage)
            return None
        return None if info.config is None else configuration.decode(info.config)

    @staticmethod
    def fetch_spec_version(
        url: Place, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> int | None:
        """The version of the format, 0 for alphas before 1; None if there is no repository."""
        found = detect(open_storage(url, storage_options, **options))
        return None if found is None else found.spec_version

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
    def spec_version(self) -> int:
        return 2

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        return set(self._authorize)

    def set_default_commit_metadata(self, metadata: Mapping[str, Json]) -> None:
        """Metadata for every commit through this handle, under what a commit says itself."""
        self._default_metadata = check_metadata(metadata)

    def default_commit_metadata(self) -> dict[str, Json]:
        return dict(self._default_metadata)

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: Moment | None = None,
    ) -> Session:
        """A session on the tip of a branch (as it was at `as_of`), on a tag or on a snapshot.

        `as_of` is a datetime, a date (its first moment), text in ISO 8601, `numpy.datetime64` or a
        pandas Timestamp; without a time zone it is UTC.

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
        if branch is not None or row in published(info):
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
        # What the commit would refuse must not cost the work in between.
        check_message(message)
        check_metadata(metadata)
        check_write_key(write_key)
        check_rebase(rebase_with, rebase_tries)
        session = self.writable_session(branch)
        yield session.store
        session.commit(
            message,
            metadata,
            rebase_with=rebase_with,
            rebase_tries=rebase_tries,
            write_key=write_key,
        )

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
        request = staged_writes.MergeRequest(
            branch=branch,
            ids=snapshot_ids,
            message=check_message(message),
            metadata=check_metadata(metadata),
            write_key=check_write_key(write_key),
        )
        return staged_writes.merge_snapshots(self._context(), self, request)

    def publish(
        self,
        branch: str,
        snapshot_id: str,
        *,
        check: Callable[[Session, Session, Diff], None] | None = None,
        if_moved: Literal["merge", "fail"] = "merge",
    ) -> str:
        """Move a branch to a staged snapshot, or merge that into a branch that moved; the tip.

        Publishing twice does nothing the second time.

        Args:
            branch: the branch to move.
            snapshot_id: what `Session.flush` or `merge_snapshots` returned.
            check: is called with read-only sessions on the branch as it is, and as it would be
                after a merge, if one is needed, and with the difference; again where the branch
                moves meanwhile. If it raises, nothing is published.
            if_moved: what to do where the branch has moved since the staged write began.

        Raises:
            ConflictError: the snapshot conflicts with what was committed meanwhile; or the branch
                moved, and that is a failure (kind `branch-moved`).
            InvalidInputError: `if_moved` is something else.
            NotFoundError: the snapshot, or a staged one below it, was expired or collected.
        """
        if if_moved not in ("merge", "fail"):
            raise InvalidInputError(f"if_moved is 'merge' or 'fail', not {if_moved!r}")
        return staged_writes.publish(
            self._context(), self, branch, snapshot_id, check, may_move=if_moved == "merge"
        )

    def _session(
        self,
        info: RepoInfo,
        row: int,
        *,
        mode: SessionMode = SessionMode.READONLY,
        branch: str | None = None,
        staged_on: str | None = None,
    ) -> Session:
        publisher = None if mode is SessionMode.READONLY else self
        snapshot = self._assets.snapshot(info.snapshots.id_at(row))
        preload(self._assets, snapshot, self._settings)
        return Session(
            self._context(),
            snapshot,
            mode=mode,
            branch=branch,
            publisher=publisher,
            staged_on=staged_on,
        )

    def _context(self) -> Context:
        return Context(
            assets=self._assets,
            config=self._config,
            virtual=self._virtual,
            containers=self._containers,
            default_metadata=self._default_metadata,
        )

    merge_snapshots_async = twin(merge_snapshots)
    publish_async = twin(publish)
    readonly_session_async = twin(readonly_session)
    rearrange_session_async = twin(rearrange_session)
    reopen_async = twin(reopen)
    writable_session_async = twin(writable_session)


def _require_version_2(storage: Storage) -> None:
    """Raises FormatError if there is a repository, but of an older version."""
    try:
        found = detect(storage)
    except IcefloeError:
        # Who may read but not list cannot tell.
        return
    if found is not None and found.spec_version < 2:
        raise FormatError(
            f"{storage.url} holds {found}, and icefloe reads version 2: bring it there first, with "
            "upgrade_icechunk_repository of the official library",
            kind="unsupported-spec-version",
        )


def _reopen(
    storage: Storage, config: RepositoryConfig, default_metadata: Mapping[str, Json]
) -> Repository:
    repo = Repository(storage, config)
    repo.set_default_commit_metadata(default_metadata)
    return repo
