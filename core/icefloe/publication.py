"""Publication: what a written snapshot is to become, and who enters it in the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from icefloe.clock import MAX_CLOCK_SKEW
from icefloe.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icefloe.assets import Assets, File
    from icefloe.format.ids import SnapshotId
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.rebasing import Step
    from icefloe.repo_update import Prepared


class Registration(Enum):
    """How a written snapshot enters the history."""

    COMMIT = "commit"
    """As the new tip of the branch."""
    AMENDMENT = "amendment"
    """As the new tip of the branch, in place of the old one."""
    DETACHED = "detached"
    """On no branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A written snapshot, and how it shall be registered."""

    snapshot: Snapshot
    base: SnapshotId
    """The snapshot below it. A branch must still be there."""
    registration: Registration
    branch: str | None = None
    write_key: str | None = None
    moves_nodes: bool = False
    split_rules: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Splits that were chosen for arrays, to be kept in the configuration."""
    needs: frozenset[SnapshotId] = frozenset()
    """Other snapshots whose files this one uses: garbage collection spares them only as long as
    they are registered, so they must be when this one is."""
    prepared: Prepared | None = None
    written: Callable[[], None] = lambda: None
    """Returns when the snapshot's files are there: they may be on their way still."""


class Publisher(Protocol):
    """The repository's part of a commit."""

    def register(self, publication: Publication) -> SnapshotId:
        """Register a written snapshot in one compare-and-swap; the id that is registered.

        That is another one if a snapshot with the same write key is registered already.

        Raises:
            ConflictError: the branch is no longer at the base (kind `branch-moved`).
            NotFoundError: a snapshot that it needs is not registered any more.
        """
        ...

    def find_write(self, write_key: str, branch: str | None = None) -> str | None:
        """The snapshot that carries the key: in the branch's history, or anywhere for None."""
        ...

    def steps_since(self, branch: str, base: SnapshotId, *, patience: float = 0.0) -> list[Step]:
        """The commits of a branch after `base`, oldest first.

        With patience, wait so many seconds at most until the repository changes once more.

        Raises:
            ConflictError: `base` is not in the branch's history any more.
        """
        ...


def write_snapshot(
    assets: Assets,
    snapshot: Snapshot,
    log: TransactionLog,
    more: Sequence[File] = (),
    *,
    check_clock: bool = True,
) -> None:
    """Write a snapshot, its log and more files at once; nothing refers to them yet.

    Raises:
        StorageError: our clock and the store's are so far apart that official clients would stumble
            over the snapshot's time.
    """
    assets.put_files([assets.snapshot_file(snapshot), assets.log_file(log), *more])
    if not check_clock:
        return
    modified = assets.storage.info(f"snapshots/{snapshot.id}").modified.timestamp()
    skew = snapshot.flushed_at / 1e6 - modified
    if abs(skew) > MAX_CLOCK_SKEW:
        raise StorageError(
            f"this machine's clock, or the last snapshot's time, is {skew:.0f} s off the clock of "
            f"{assets.storage.url}: set the clock",
            kind="invalid-snapshot-timestamp",
        )
