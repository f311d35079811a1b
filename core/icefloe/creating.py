"""The first files of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.assets import REPO
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
from icefloe.ref_changes import MAIN
from icefloe.storage import probe_preconditions

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.format.metadata import Json
    from icefloe.storage import Storage

PROBE_PREFIX = "icefloe-probe-"
MESSAGE = "Repository initialized"


def create(assets: Assets, config: bytes | None, *, check_clean_root: bool) -> None:
    """Write an empty `main`; of many who do so at once, one succeeds.

    Raises:
        AlreadyExistsError: there is a repository or something else here.
        UnsafeStorageError: the store ignores preconditions, so commits could be lost.
    """
    storage = assets.storage
    storage.require_writable()
    # The files below would replace those of a repository that is there already.
    if storage.exists(REPO):
        raise _exists(storage)
    if check_clean_root and not _is_clean(storage):
        raise AlreadyExistsError(
            f"{storage.url} is not empty: choose another place, or pass check_clean_root=False",
            kind="parent-directory-not-clean",
        )
    probe_preconditions(storage)
    created_at = now()
    metadata: dict[str, Json] = {"__icechunk": {"is_root": True}}
    assets.put_snapshot(
        Snapshot(
            id=INITIAL_SNAPSHOT_ID,
            nodes=Nodes.of([]),
            manifest_files=ManifestFiles.of([]),
            flushed_at=created_at,
            message=MESSAGE,
            metadata=metadata,
        )
    )
    assets.put_transaction_log(TransactionLog(id=INITIAL_SNAPSHOT_ID))
    first = SnapshotInfo(INITIAL_SNAPSHOT_ID, None, created_at, MESSAGE, metadata)
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
        assets.swap_repo(info, expected=None)
    except ConflictError as error:
        raise _exists(storage) from error


def _is_clean(storage: Storage) -> bool:
    """Whether nothing is there but what others leave who are creating this repository, too."""
    page = next(storage.list(), [])
    initial = {f"snapshots/{INITIAL_SNAPSHOT_ID}", f"transactions/{INITIAL_SNAPSHOT_ID}"}
    return all(item.key in initial or item.key.startswith(PROBE_PREFIX) for item in page)


def _exists(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{storage.url} holds a repository already: open it", kind="repository-already-exists"
    )
