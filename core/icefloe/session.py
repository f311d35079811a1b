"""Sessions: a working tree that can be committed, amended, flushed, rebased, forked and merged."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from icefloe import diffs, rebasing
from icefloe.changes import View
from icefloe.clock import next_time
from icefloe.conflicts import check_rebase
from icefloe.descriptions import (
    STAGED_ON,
    WRITE_KEY,
    check_message,
    check_metadata,
    check_write_key,
)
from icefloe.errors import ConflictError, InvalidInputError, SessionStateError
from icefloe.forking import merge_changes
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot import Snapshot
from icefloe.manifest_writing import ManifestWriter
from icefloe.node_tree import SessionMode
from icefloe.publication import Publication, Publisher, Registration, write_snapshot
from icefloe.repo_update import prepare
from icefloe.turns import turns_of
from icefloe.twins import twin
from icefloe.uploads import Upload
from icefloe.working_tree import Context, WorkingTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.changes import ChangeSet
    from icefloe.config import RepositoryConfig
    from icefloe.conflicts import ConflictSolver
    from icefloe.diffs import Diff
    from icefloe.forking import Coordinates
    from icefloe.format.metadata import Json
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.packing import Packer
    from icefloe.zarr_store import IcechunkStore


@dataclass(frozen=True, slots=True)
class _Said:
    """What a snapshot keeps beside its content: message, metadata, and the key in the metadata."""

    message: str
    metadata: Mapping[str, Json]
    write_key: str | None


class Session(WorkingTree):
    """A view of one snapshot. A writable one takes changes, which stay private until `commit`.

    A session that fails or is dropped leaves no trace but unreferenced objects, which garbage
    collection removes.
    """

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        *,
        mode: SessionMode = SessionMode.READONLY,
        branch: str | None = None,
        publisher: Publisher | None = None,
        staged_on: str | None = None,
    ) -> None:
        super().__init__(context, snapshot, mode)
        self._branch = branch
        self._publisher = publisher
        self._staged_on = staged_on
        self._writer = ManifestWriter(context.assets, context.config, hold=True)
        self._merged: list[Coordinates] = []
        self._forking = threading.Lock()

    def __repr__(self) -> str:
        place = f"{self._assets.storage.url} at {self.snapshot_id}"
        branch = "" if self._branch is None else f", branch={self._branch!r}"
        return f"<icefloe.{type(self).__name__} {place}, {self._mode.value}{branch}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.read_only:
            raise SessionStateError(
                "a writable session cannot be pickled, because what its copy writes would be lost: "
                "pickle a fork() and merge() it back, or flush() and hand over the snapshot id",
                kind="writable-session-pickled",
            )
        return _reopen, (self._context, self._view.base.id, self._branch)

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        # What is read from a writable session may be different the next moment, under any name.
        state = self.snapshot_id if self.read_only else str(SnapshotId.random())
        return "icefloe.Session", self._assets.storage.url, state

    @property
    def is_fork(self) -> bool:
        return False

    @property
    def branch(self) -> str | None:
        """The branch that a commit would move; None if there is none."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        return self._context.config

    @property
    def context(self) -> Context:
        """What workers elsewhere need of the repository; a pickle of it holds no secrets."""
        return self._context

    @property
    def store(self) -> IcechunkStore:
        """A zarr store on this session; needs the extra `zarr`."""
        # zarr is optional and lives above this layer.
        from icefloe.zarr_store import IcechunkStore

        return IcechunkStore(self)

    @property
    def has_uncommitted_changes(self) -> bool:
        return bool(self._view.changes)

    def status(self) -> Diff:
        """What the session has changed so far."""
        with self._lock:
            log = self._view.changes.log(self._view.base.id)
            places = diffs.places_of(self._view.base.nodes, diffs.ids_in(log))
            places |= {node.id: node.path for node in self._view.changes.live()}
            return diffs.tell(log, places)

    def fork(self) -> ForkSession:
        """A session for a worker: it pickles without credentials, and `merge` brings it back.

        What this session has changed so far is written to a snapshot that nobody lists, so that
        the fork sees it.
        """
        # Threads that fork wait for each other; one that writes meanwhile is told.
        with self._forking:
            with self._lock:
                self._require_writes()
                if not self._view.changes:
                    return self._forked_at(self._view.base)
            with self._alone("forked"):
                snapshot, log = self._new_snapshot("fork", {})
                write_snapshot(self._assets, snapshot, log, self._writer.held_files())
                self._writer.confirm()
                return self._forked_at(snapshot)

    def _forked_at(self, base: Snapshot) -> ForkSession:
        fork = ForkSession(
            self._context,
            base,
            branch=self._branch,
            merged=len(self._merged),
            origin=self._registered_base(),
        )
        # Forks that stay in this process fill packs together; a pickle uploads them first.
        fork._packer = self._packer
        return fork

    def merge(
        self, *others: ForkSession, on_conflict: Literal["error", "last-wins"] = "error"
    ) -> None:
        """Take over what forks of this session changed. They are read-only afterwards.

        Raises:
            ConflictError: two forks changed one thing, or wrote one chunk (unless `on_conflict`
                lets the last one win). This session is as it was before that fork.
        """
        for other in others:
            if not isinstance(other, ForkSession):
                raise InvalidInputError(f"{other!r} is no fork: merge what session.fork() returned")
            with other._handed_over() as (theirs, packer), self._lock:
                self._require_writes()
                if packer is not self._packer:
                    packer.flush()
                rivals = [] if on_conflict == "last-wins" else self._merged[other.merged :]
                self._merged.append(merge_changes(self._view, theirs, rivals))

    def _frozen(self) -> tuple[View, Packer]:
        """The changes of this moment, and where the chunks are that wait to be uploaded."""
        with self._lock:
            return View(self._view.base, self._view.changes.copy()), self._packer

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        allow_empty: bool = False,
        write_key: str | None = None,
    ) -> str:
        """Write manifests, snapshot and log, then move the branch; the new snapshot's id.

        All of it becomes visible at once, or nothing does. The session is read-only afterwards.

        Args:
            message: what was done.
            metadata: any JSON, kept with the snapshot.
            rebase_with: where others committed first, carry the changes over with this solver.
            rebase_tries: how often.
            allow_empty: commit even if nothing changed.
            write_key: makes the commit happen once. If the branch's history has a commit with this
                key, that one is the answer, and this session's changes are dropped.

        Raises:
            ConflictError: the branch moved since this session began. Nothing is lost: the session
                keeps its changes.
            RebaseFailedError: the changes conflict with theirs, and the solver lets them stand.
            SessionStateError: there is nothing to commit, or no branch.
            InvalidInputError: message, metadata or key cannot be kept; nothing was written.
            ReadOnlyError: another thread commits this session now, or has done so.
        """
        said = self._said(message, metadata, write_key)
        check_rebase(rebase_with, rebase_tries)
        publisher, branch = self._require_publisher(), self._require_branch()
        with self._alone("committed"):
            if write_key is not None and (found := publisher.find_write(write_key, branch)):
                return self._finish(SnapshotId.parse(found))
            self._require_changes(allow_empty=allow_empty)
            turns = turns_of(self._assets.storage.url, branch)
            turns.pause(self.snapshot_id)
            for attempt in range(rebase_tries + 1):
                began = time.monotonic()
                try:
                    tip = self._publish(publisher, Registration.COMMIT, said, attempt=attempt)
                    turns.won(tip, time.monotonic() - began)
                    return tip
                except ConflictError as error:
                    movable = rebase_with is not None and error.kind == "branch-moved"
                    if rebase_with is None or not movable or attempt == rebase_tries:
                        raise
                turns.lost(attempt + 1, time.monotonic() - began)
                try:
                    self._rebase(publisher, branch, rebase_with, turns.patience(attempt + 1))
                except ConflictError:
                    # Another attempt at this write may be what stands in the way.
                    found = None if write_key is None else publisher.find_write(write_key, branch)
                    if found is None:
                        raise
                    return self._finish(SnapshotId.parse(found))
        raise AssertionError("the last attempt returns or raises")

    def amend(
        self,
        message: str,
        *,
        metadata: Mapping[str, Json] | None = None,
        allow_empty: bool = False,
    ) -> str:
        """Commit in place of the branch's tip, which stays listed but leaves the history.

        Raises:
            ConflictError: the branch moved since this session began.
            SessionStateError: the tip is the first snapshot of the repository.
            InvalidInputError: message or metadata cannot be kept; nothing was written.
        """
        said = self._said(message, metadata, None)
        publisher = self._require_publisher()
        self._require_branch()
        with self._alone("committed"):
            self._require_changes(allow_empty=allow_empty)
            return self._publish(publisher, Registration.AMENDMENT, said)

    def flush(
        self,
        message: str,
        *,
        metadata: Mapping[str, Json] | None = None,
        write_key: str | None = None,
    ) -> str:
        """Write the changes as a snapshot that is on no branch; its id.

        That is a staged write: look at it, tag it, or hand it to `Repository.merge_snapshots`. The
        session is read-only afterwards.

        Args:
            message: what was done.
            metadata: any JSON, kept with the snapshot.
            write_key: makes the write happen once: if a snapshot with this key is registered, that
                one is the answer, and this session's changes are dropped.

        Raises:
            InvalidInputError: message, metadata or key cannot be kept; nothing was written.
        """
        said = self._said(message, metadata, write_key)
        publisher = self._require_publisher()
        with self._alone("flushed"):
            if write_key is not None and (found := publisher.find_write(write_key, None)):
                return self._finish(SnapshotId.parse(found))
            return self._publish(publisher, Registration.DETACHED, said)

    def rebase(self, solver: ConflictSolver) -> None:
        """Carry the changes over all that was committed to the branch meanwhile.

        Raises:
            RebaseFailedError: the solver lets a conflict stand. The session is based on the last
                commit before that one.
        """
        publisher, branch = self._require_publisher(), self._require_branch()
        with self._alone("rebased"):
            self._rebase(publisher, branch, solver)

    def _rebase(
        self, publisher: Publisher, branch: str, solver: ConflictSolver, patience: float = 0.0
    ) -> None:
        steps = publisher.steps_since(branch, self._view.base.id, patience=patience)
        # Who reads meanwhile must not see changes that are half rebased.
        with self._lock:
            changes = self._view.changes
            after = rebasing.fast_forward(changes, steps, self._assets)
            if after is not None:
                self._view = View(after, changes)
                return
            for step in steps:
                after = rebasing.rebase(changes, self._view.base, step, self._assets, solver)
                self._view = View(after, changes)

    def _said(
        self, message: str, metadata: Mapping[str, Json] | None, write_key: str | None
    ) -> _Said:
        """What is said of a snapshot, checked before anything is written."""
        said = {**check_metadata(self._context.default_metadata), **check_metadata(metadata)}
        key = check_write_key(write_key)
        if key is not None:
            said[WRITE_KEY] = key
        if self._staged_on is not None:
            said[STAGED_ON] = self._staged_on
        return _Said(check_message(message), said, key)

    def _publish(
        self, publisher: Publisher, registration: Registration, said: _Said, *, attempt: int = 0
    ) -> str:
        metadata = dict(said.metadata)
        if attempt:
            metadata["__icechunk"] = {"rebase_attempts": attempt}
        prepared = prepare(self._assets)
        snapshot, log = self._new_snapshot(said.message, metadata)
        if registration is Registration.AMENDMENT:
            log = self._amended(log)
        more = [*self._writer.held_files()]
        if prepared is not None:
            more.append(prepared.file)
        # The new repo object is computed meanwhile: time is short where others write, too.
        upload = Upload(
            # The clocks are compared once.
            lambda: write_snapshot(self._assets, snapshot, log, more, check_clock=not attempt)
        )
        publication = Publication(
            snapshot=snapshot,
            base=self._view.base.id,
            registration=registration,
            branch=self._branch,
            write_key=said.write_key,
            moves_nodes=bool(self._view.changes.moves),
            split_rules=self._writer.rules,
            needs=frozenset(self._view.changes.borrowed),
            prepared=prepared,
            written=upload.wait,
        )
        try:
            registered = publisher.register(publication)
        finally:
            if upload.ended_well():
                self._writer.confirm()
        return self._finish(registered, snapshot)

    def _new_snapshot(
        self, message: str, metadata: Mapping[str, Json]
    ) -> tuple[Snapshot, TransactionLog]:
        """A snapshot of the changes, and its log; chunks are written, manifests may be held."""
        self._packer.flush()
        self._writer.drop_held()
        nodes, manifest_files = self._writer.apply(self._view)
        snapshot = Snapshot(
            id=SnapshotId.random(),
            nodes=nodes,
            manifest_files=manifest_files,
            flushed_at=next_time(self._view.base.flushed_at),
            message=message,
            metadata=metadata,
        )
        return snapshot, self._view.changes.log(snapshot.id)

    def _amended(self, log: TransactionLog) -> TransactionLog:
        old = self._assets.transaction_log(self._view.base.id)
        if old.moves and self._mode is not SessionMode.REARRANGE:
            raise SessionStateError(
                "the tip moved nodes: amend it in a session of Repository.rearrange_session",
                kind="rearrange-session-only",
            )
        moves = {move.node_id: move for move in old.moves}
        for move in log.moves:
            first = moves.get(move.node_id, move)
            moves[move.node_id] = replace(move, source=first.source)
        moved = tuple(move for move in moves.values() if move.source != move.target)
        return replace(old.merged(log), id=log.id, moves=moved)

    commit_async = twin(commit)
    amend_async = twin(amend)
    flush_async = twin(flush)
    rebase_async = twin(rebase)
    fork_async = twin(fork)
    merge_async = twin(merge)

    def _finish(self, registered: SnapshotId, snapshot: Snapshot | None = None) -> str:
        if snapshot is None or snapshot.id != registered:
            snapshot = self._assets.snapshot(registered)
        with self._lock:
            self._start_over(snapshot)
            self._mode, self._publisher = SessionMode.READONLY, None
            self._ended = self._busy
        return str(snapshot.id)

    def _start_over(self, base: Snapshot) -> None:
        super()._start_over(base)
        self._merged = []

    def _require_publisher(self) -> Publisher:
        self._require_writable()
        if self._publisher is None:
            raise SessionStateError(
                "a fork cannot publish: merge it into the session it came from",
                kind="fork-session",
            )
        return self._publisher

    def _require_branch(self) -> str:
        if self._branch is None:
            raise SessionStateError(
                "this session stands on a snapshot, not on a branch: flush it, and publish what it "
                "wrote with Repository.merge_snapshots",
                kind="no-branch",
            )
        return self._branch

    def _require_changes(self, *, allow_empty: bool) -> None:
        if not self._view.changes and not allow_empty:
            raise SessionStateError(
                "nothing to commit: pass allow_empty=True to commit anyway",
                kind="no-changes-to-commit",
            )


class ForkSession(Session):
    """A session for one worker: it travels in a pickle, is written to, and is merged back.

    The pickle holds the storage's URL and public options, never credentials.
    """

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        *,
        branch: str | None,
        merged: int,
        origin: SnapshotId,
        changes: ChangeSet | None = None,
    ) -> None:
        super().__init__(context, snapshot, mode=SessionMode.WRITABLE, branch=branch)
        _FORKS[snapshot.id] = self
        self.merged = merged
        """How many merges the session had seen when this fork began."""
        self._origin = origin
        if changes is not None:
            self._view.changes = changes

    def __reduce__(self) -> tuple[Any, ...]:
        view, packer = self._frozen()
        packer.flush()
        state = self._context, view.base.id, self._branch, self.merged, self._origin, view.changes
        return _reopen_fork, state

    @contextmanager
    def _handed_over(self) -> Iterator[tuple[View, Packer]]:
        """The changes of this moment: a write that comes later would be lost, so it raises."""
        with self._lock:
            if not self.read_only:
                self._require_writable()
                self._busy = "merged"
            frozen = self._frozen()
        try:
            yield frozen
            if self._busy is not None:
                self._mode, self._ended = SessionMode.READONLY, "merged"
        finally:
            self._busy = None

    @property
    def is_fork(self) -> bool:
        return True

    def _registered_base(self) -> SnapshotId:
        # The snapshot that a fork begins with is in no repo object.
        return self._origin


_FORKS: WeakValueDictionary[SnapshotId, ForkSession] = WeakValueDictionary()
"""One fork of each snapshot: thousands may come back to one process, which has read it already."""


def _reopen(context: Context, snapshot_id: SnapshotId, branch: str | None) -> Session:
    return Session(context, context.assets.snapshot(snapshot_id), branch=branch)


def _reopen_fork(
    context: Context,
    snapshot_id: SnapshotId,
    branch: str | None,
    merged: int,
    origin: SnapshotId,
    changes: ChangeSet,
) -> ForkSession:
    sibling = _FORKS.get(snapshot_id)
    base = context.assets.snapshot(snapshot_id) if sibling is None else sibling._view.base
    return ForkSession(context, base, branch=branch, merged=merged, origin=origin, changes=changes)
