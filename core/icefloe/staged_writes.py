"""Publishing staged snapshots: merging them onto a branch, or moving a branch to one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from icefloe import diffs, history
from icefloe.clock import next_time
from icefloe.descriptions import PUBLISHED_FROM, STAGED_ON, WRITE_KEY
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
from icefloe.refs import ancestors, branch_row, published, snapshot_row, tip_of
from icefloe.registering import find_write, with_tip
from icefloe.repo_update import prepare, require_online
from icefloe.session import Session
from icefloe.staging import read_staged
from icefloe.turns import turns_of
from icefloe.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.format.metadata import Json
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.merging import Merged
    from icefloe.repo_update import Change
    from icefloe.staging import Staged
    from icefloe.working_tree import Context

_ATTEMPTS = 1_000

type Check = Callable[[Session, Session, Diff], None]
"""Judges a branch as it is, as it shall be, both read-only, and what that changes.

Whatever it raises stops the publication.
"""


class Repo(Publisher, Protocol):
    """The repository's part."""

    def update(self, change: Change) -> None:
        """Apply a change to the repo object in one compare-and-swap."""
        ...

    def await_change(self, patience: float) -> None:
        """Wait until the repo object is replaced once more, so many seconds at most."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What is to be merged, and what is said of it; all of it has been checked.

    Attributes:
        branch: where to commit; None makes a staged snapshot.
        ids: of the staged snapshots.
        message: of the commit.
        metadata: of the commit.
        write_key: makes it happen once.
        check: judges each candidate for the branch.
        may_move: whether the branch may have moved since the staged writes began.
    """

    branch: str | None
    ids: Sequence[str]
    message: str
    metadata: Mapping[str, Json]
    write_key: str | None = None
    check: Check | None = None
    may_move: bool = True


def merge_snapshots(context: Context, repo: Repo, request: MergeRequest) -> str:
    """`Repository.merge_snapshots`, again and again while others commit first."""
    merging = _Merging(context, repo, request)
    assets, branch = context.assets, request.branch
    if branch is None:
        return merging.run()
    turns = turns_of(assets.storage.url, branch)
    turns.pause(str(tip_of(assets.repo()[0], branch)))
    for lost in range(1, _ATTEMPTS + 1):
        began = time.monotonic()
        try:
            tip = merging.run()
        except ConflictError as error:
            # Another attempt at this write may be what stands in the way.
            if done := merging.found(assets.repo()[0]):
                return done
            if error.kind != "branch-moved" or not request.may_move or lost == _ATTEMPTS:
                raise
        else:
            turns.won(tip, time.monotonic() - began)
            return tip
        turns.lost(lost, time.monotonic() - began)
        if patience := turns.patience(lost):
            repo.await_change(patience)
    raise AssertionError("the last attempt returns or raises")


class _Merging:
    """All attempts at one merge: what was read, found or written serves the next one."""

    def __init__(self, context: Context, repo: Repo, request: MergeRequest) -> None:
        self._context = context
        self._repo = repo
        self._request = request
        self._writer = ManifestWriter(context.assets, context.config, hold=True)
        self._logs: dict[SnapshotId, TransactionLog] = {}
        self._checked: dict[SnapshotId, SnapshotId] = {}
        self._knows_the_time = False

    def found(self, info: RepoInfo) -> str | None:
        """What was registered under the write key, if anything was."""
        if self._request.write_key is None:
            return None
        found = find_write(info, self._request.write_key, self._request.branch)
        return None if found is None else str(found)

    def run(self) -> str:
        """Merge onto the branch as it is now, have that judged, and register it; its id."""
        assets, request = self._context.assets, self._request
        info, _ = assets.repo()
        if done := self.found(info):
            return done
        require_online(info)
        staged = read_staged(assets, info, request.ids, published(info, request.branch), self._logs)
        target = self._target(info, staged)
        prepared = prepare(assets)
        self._writer.drop_held()
        merged = merge(assets, info, staged, target, self._writer, self._checked)
        snapshot = self._snapshot(merged, staged)
        log = merged.view.changes.log(snapshot.id)
        files = [*self._writer.held_files(), *([] if prepared is None else [prepared.file])]
        # The clocks are compared once.
        first, self._knows_the_time = not self._knows_the_time, True
        upload = Upload(lambda: write_snapshot(assets, snapshot, log, files, check_clock=first))
        publication = Publication(
            snapshot=snapshot,
            base=target,
            registration=Registration.DETACHED if request.branch is None else Registration.COMMIT,
            branch=request.branch,
            write_key=request.write_key,
            split_rules=self._writer.rules,
            needs=frozenset(item.id for item in staged),
            prepared=prepared,
            written=upload.wait,
        )
        try:
            if request.check is not None:
                upload.wait()
                before = merged.view.base
                changed = diffs.between(log, before.nodes, snapshot.nodes)
                request.check(
                    Session(self._context, before), Session(self._context, snapshot), changed
                )
            return str(self._repo.register(publication))
        finally:
            if upload.ended_well():
                self._writer.confirm()

    def _target(self, info: RepoInfo, staged: Sequence[Staged]) -> SnapshotId:
        branch = self._request.branch
        if branch is None:
            return _newest(info, {item.base for item in staged})
        target = tip_of(info, branch)
        for item in () if self._request.may_move else staged:
            if item.base != target:
                raise branch_moved(branch, str(item.base), str(target))
        return target

    def _snapshot(self, merged: Merged, staged: Sequence[Staged]) -> Snapshot:
        said = {**self._context.default_metadata, **self._request.metadata}
        if self._request.write_key is not None:
            said[WRITE_KEY] = self._request.write_key
        latest = max(merged.view.base.flushed_at, *(item.snapshot.flushed_at for item in staged))
        return Snapshot(
            id=SnapshotId.random(),
            nodes=merged.nodes,
            manifest_files=merged.manifest_files,
            flushed_at=next_time(latest),
            message=self._request.message,
            metadata=said,
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
    request = MergeRequest(
        branch=branch,
        ids=[snapshot_id],
        message=item.message,
        metadata=metadata,
        write_key=f"publish {snapshot_id} on {branch}",
        check=check,
        may_move=may_move,
    )
    return merge_snapshots(context, repo, request)
