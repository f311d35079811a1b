"""Publishing staged snapshots: merging them onto a branch, or moving a branch to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from icefloe import diffs, history
from icefloe.clock import next_time
from icefloe.descriptions import STAGED_ON, WRITE_KEY
from icefloe.diffs import Diff
from icefloe.errors import ConflictError
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.updates import Update, UpdateKind
from icefloe.manifest_writing import ManifestWriter
from icefloe.merging import merge
from icefloe.publication import Publication, Publisher, Registration, write_snapshot
from icefloe.ref_changes import branch_moved
from icefloe.refs import ancestors, branch_row, published, snapshot_row
from icefloe.registering import with_tip
from icefloe.repo_update import Attempts, require_online
from icefloe.session import Session
from icefloe.staging import read_staged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.format.metadata import Json
    from icefloe.repo_update import Change
    from icefloe.working_tree import Context

PUBLISHED_FROM = "icefloe.published_from"
"""Metadata of a commit: the staged snapshot that it publishes on a branch that had moved."""
_ATTEMPTS = 100

type Check = Callable[[Session, Session, Diff], None]
"""Judges a branch as it is, as it shall be, both read-only, and what that changes.

Whatever it raises stops the publication.
"""


class Repo(Publisher, Protocol):
    """The repository's part."""

    def update(self, change: Change) -> None:
        """Apply a change to the repo object in one compare-and-swap."""
        ...


def merge_snapshots(
    context: Context,
    repo: Repo,
    branch: str | None,
    ids: Sequence[str],
    message: str,
    metadata: Mapping[str, Json],
    write_key: str | None,
    check: Check | None = None,
    *,
    may_move: bool = True,
) -> str:
    """`Repository.merge_snapshots`: manifests that were written serve every attempt.

    Message, metadata and key have been checked. `check` judges each candidate for the branch, which
    must be where the staged writes began unless it `may_move`.
    """
    writer = ManifestWriter(context.assets, context.config)

    def found() -> str | None:
        return None if write_key is None else repo.find_write(write_key, branch)

    for failed in range(1, _ATTEMPTS + 1):
        if done := found():
            return done
        try:
            publication = _merged(
                context, writer, branch, ids, message, metadata, write_key, check, may_move
            )
        except ConflictError:
            # Another attempt at this write may be what stands in the way.
            if done := found():
                return done
            raise
        try:
            return str(repo.register(publication))
        except ConflictError as error:
            if error.kind != "branch-moved" or failed == _ATTEMPTS:
                raise
        Attempts().wait(failed)
    raise AssertionError("the last attempt returns or raises")


def _merged(
    context: Context,
    writer: ManifestWriter,
    branch: str | None,
    ids: Sequence[str],
    message: str,
    metadata: Mapping[str, Json],
    write_key: str | None,
    check: Check | None,
    may_move: bool,
) -> Publication:
    """Write the merged snapshot, on top of the branch as it is now, and have it judged."""
    assets = context.assets
    info, _ = assets.repo()
    require_online(info)
    staged = read_staged(assets, info, ids, published(info, branch))
    if branch is None:
        target = _newest(info, {item.base for item in staged})
    else:
        target = info.snapshots.id_at(branch_row(info, branch))
        for item in () if may_move else staged:
            if item.base != target:
                raise branch_moved(branch, str(item.base), str(target))
    merged = merge(assets, info, staged, target, writer)
    said = {**context.default_metadata, **metadata}
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
    log = merged.view.changes.log(snapshot.id)
    write_snapshot(assets, snapshot, log)
    if check is not None:
        before = merged.view.base
        changed = diffs.between(log, before.nodes, snapshot.nodes)
        check(Session(context, before), Session(context, snapshot), changed)
    return Publication(
        snapshot=snapshot,
        base=target,
        registration=Registration.DETACHED if branch is None else Registration.COMMIT,
        branch=branch,
        write_key=write_key,
        split_rules=writer.rules,
        needs=frozenset(item.id for item in staged),
    )


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


type Judge = Callable[[RepoInfo, int, int], None]


class _Publishing:
    """Moving a branch to a staged snapshot, as a change of the repo object.

    `tip` is where the branch is afterwards; None if it moved meanwhile, so that the snapshot has to
    be merged.
    """

    def __init__(self, branch: str, snapshot_id: str, judge: Judge) -> None:
        self._branch = branch
        self._id = snapshot_id
        self._judge = judge
        self._judged: set[SnapshotId] = set()
        self.tip: SnapshotId | None = None

    def __call__(self, info: RepoInfo) -> tuple[RepoInfo, Update] | None:
        row, tip = snapshot_row(info, self._id), branch_row(info, self._branch)
        copies = info.snapshots.rows_with(PUBLISHED_FROM, self._id).tolist()
        done = {row, *copies}.intersection(ancestors(info, tip))
        self.tip = info.snapshots.id_at(done.pop()) if done else None
        is_staged = STAGED_ON in info.snapshots.metadata(row)
        if done or self.tip is not None or is_staged or int(info.snapshots.parent[row]) != tip:
            return None
        before = info.snapshots.id_at(tip)
        if before not in self._judged:
            # Once for each tip: a look at large data must not begin anew for every other branch.
            self._judge(info, tip, row)
            self._judged.add(before)
        self.tip = info.snapshots.id_at(row)
        update = Update(
            kind=UpdateKind.BRANCH_RESET,
            updated_at=0,
            name=self._branch,
            previous_snap_id=before,
        )
        return with_tip(info, self._branch, self.tip), update


def publish(
    context: Context,
    repo: Repo,
    branch: str,
    snapshot_id: str,
    check: Check | None = None,
    *,
    may_move: bool = True,
) -> str:
    """`Repository.publish`."""

    def judge(info: RepoInfo, tip: int, row: int) -> None:
        if check is not None:
            before, after = (
                Session(context, context.assets.snapshot(info.snapshots.id_at(at)))
                for at in (tip, row)
            )
            check(before, after, history.diff(context.assets, info, tip, row))

    publishing = _Publishing(branch, snapshot_id, judge)
    repo.update(publishing)
    if publishing.tip is not None:
        return str(publishing.tip)
    info, _ = context.assets.repo()
    item = info.snapshots[snapshot_row(info, snapshot_id)]
    internal = {STAGED_ON, WRITE_KEY}
    metadata = {key: value for key, value in item.metadata.items() if key not in internal}
    metadata[PUBLISHED_FROM] = snapshot_id
    key = f"publish {snapshot_id} on {branch}"
    return merge_snapshots(
        context,
        repo,
        branch,
        [snapshot_id],
        item.message,
        metadata,
        key,
        check,
        may_move=may_move,
    )
