"""The first files of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.clock import now
from icefloe.errors import AlreadyExistsError, ConflictError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.nodes import Nodes
from icefloe.format.ragged import Ragged
from icefloe.format.repo_info import Refs, RepoInfo, SnapshotInfo, Snapshots
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.status import Availability, RepoStatus
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import Update, UpdateKind, Updates
from icefloe.layouts import detect
from icefloe.ref_changes import MAIN
from icefloe.storage import PROBE_PREFIX, probe_preconditions

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.storage import Storage

MESSAGE = "Repository initialized"


def create(assets: Assets, config: bytes | None, *, check_clean_root: bool) -> None:
    """Write an empty `main`; of many who do so at once, one succeeds.

    Nothing that is there is ever replaced.

    Raises:
        AlreadyExistsError: there is a repository, of whatever version, or something else here.
        UnsafeStorageError: the store ignores preconditions, so commits could be lost.
    """
    storage = assets.storage
    storage.require_writable()
    _require_room(storage)
    if check_clean_root and not _is_clean(storage):
        # Somebody else may have created it since we looked.
        _require_room(storage)
        raise AlreadyExistsError(
            f"{storage.url} is not empty: choose another place, or pass check_clean_root=False",
            kind="parent-directory-not-clean",
        )
    probe_preconditions(storage)
    first = _first_snapshot(assets)
    created_at = now()
    info = RepoInfo(
        branches=Refs.of({MAIN: 0}),
        tags=Refs.of({}),
        deleted_tags=Ragged.of([]),
        snapshots=Snapshots.of([first]),
        status=RepoStatus(Availability.ONLINE, created_at),
        updates=Updates.of([Update(kind=UpdateKind.REPO_INITIALIZED, updated_at=created_at)]),
        metadata={},
        config=config,
    )
    try:
        assets.swap_repo(assets.encoded_repo(info), expected=None)
    except ConflictError as error:
        raise _exists(storage) from error


def _require_room(storage: Storage) -> None:
    """Raises AlreadyExistsError if a repository of any version is here."""
    found = detect(storage)
    if found is None:
        return
    if found.spec_version == 2:
        raise _exists(storage)
    raise AlreadyExistsError(
        f"{storage.url} holds {found}, which a new one would destroy: choose another place, or "
        "bring that one to version 2",
        kind="older-repository-exists",
    )


def _first_snapshot(assets: Assets) -> SnapshotInfo:
    """Write the initial snapshot and its log, unless others who are creating this one did so.

    Then theirs is the one that the repo object must tell of: its time is theirs, too.
    """
    snapshot = Snapshot(
        id=INITIAL_SNAPSHOT_ID,
        nodes=Nodes.of([]),
        manifest_files=ManifestFiles.of([]),
        flushed_at=now(),
        message=MESSAGE,
        metadata={"__icechunk": {"is_root": True}},
    )
    if not assets.create_file(assets.snapshot_file(snapshot)):
        snapshot = assets.snapshot(INITIAL_SNAPSHOT_ID)
        if len(snapshot.nodes) or snapshot.message != MESSAGE:
            raise AlreadyExistsError(
                f"{assets.storage.url} holds the first snapshot of another repository, "
                f"{snapshot.message!r}: choose another place",
                kind="parent-directory-not-clean",
            )
    assets.create_file(assets.log_file(TransactionLog(id=INITIAL_SNAPSHOT_ID)))
    return SnapshotInfo(snapshot.id, None, snapshot.flushed_at, snapshot.message, snapshot.metadata)


def _is_clean(storage: Storage) -> bool:
    """Whether nothing is there but what others leave who are creating this repository, too."""
    page = next(storage.list(), [])
    initial = {f"snapshots/{INITIAL_SNAPSHOT_ID}", f"transactions/{INITIAL_SNAPSHOT_ID}"}
    return all(item.key in initial or item.key.startswith(PROBE_PREFIX) for item in page)


def _exists(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{storage.url} holds a repository already: open it", kind="repository-already-exists"
    )
