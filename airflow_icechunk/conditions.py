"""What a sensor waits for, asked of a repository once at a time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.guards import shape
from airflow_icechunk.snapshots import payload, touches
from icefloe import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe import Repository, SnapshotInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TagExists:
    """A tag is there, at a given snapshot if one is given."""

    KIND: ClassVar[str] = "tag"
    tag: str
    snapshot_id: str | None = None

    def check(self, repository: Repository) -> dict[str, Any] | None:
        """The payload of the event, or None while it is not so."""
        try:
            found = repository.lookup_tag(self.tag)
        except NotFoundError:
            return None
        if self.snapshot_id not in (None, found):
            raise ValueError(f"the tag {self.tag} names {found}, not {self.snapshot_id}")
        return {**payload(repository, repository.lookup_snapshot(found)), "tag": self.tag}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReady:
    """An array is there, is large enough, and was changed not long ago."""

    KIND: ClassVar[str] = "array"
    path: str
    branch: str = "main"
    min_shape: Sequence[int] | None = None
    max_age: float | None = None
    """Seconds."""

    def check(self, repository: Repository) -> dict[str, Any] | None:
        try:
            session = repository.readonly_session(self.branch)
        except NotFoundError:
            return None
        path = f"/{self.path.strip('/')}"
        found = shape(session, path)
        if found is None or not self._is_large_enough(found):
            return None
        if self.max_age is not None and not self._is_fresh(repository, session.snapshot_id, path):
            return None
        snapshot = repository.lookup_snapshot(session.snapshot_id)
        return {**payload(repository, snapshot, branch=self.branch), "shape": [*found]}

    def _is_large_enough(self, found: tuple[int, ...]) -> bool:
        if self.min_shape is None:
            return True
        if len(self.min_shape) != len(found):
            raise ValueError(f"{self.path} has {len(found)} dimensions, not {len(self.min_shape)}")
        return all(have >= need for have, need in zip(found, self.min_shape, strict=True))

    def _is_fresh(self, repository: Repository, tip: str, path: str) -> bool:
        since = datetime.now(UTC) - timedelta(seconds=self.max_age or 0)
        for snapshot in repository.ancestry(snapshot_id=tip):
            if snapshot.written_at < since:
                return False
            if touches(repository, snapshot, path):
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotArrived:
    """A branch has a snapshot after another one, which fits."""

    KIND: ClassVar[str] = "snapshot"
    branch: str = "main"
    after: str | None = None
    """Exclusive. None, or one that is not in the history any more: all of the history."""
    contains: str | None = None
    metadata: Mapping[str, Any] | None = None
    path: str | None = None
    is_strict: bool = False
    """Refuse an ``after`` that is not in the history."""

    def check(self, repository: Repository) -> dict[str, Any] | None:
        """The payload of the newest that fits."""
        try:
            found = self.arrivals(repository)
        except NotFoundError:
            return None
        return payload(repository, found[-1], branch=self.branch) if found else None

    def arrivals(self, repository: Repository, tip: str | None = None) -> list[SnapshotInfo]:
        """All that fit, oldest first.

        :param tip: where the branch is; None looks.
        :raises icefloe.NotFoundError: there is no such branch.
        :raises WrongArgumentError: ``after`` has to be in the history, and is not.
        """
        tip = tip or repository.lookup_branch(self.branch)
        found = []
        for snapshot in repository.ancestry(snapshot_id=tip):
            if snapshot.id == self.after:
                break
            if self._fits(repository, snapshot):
                found.append(snapshot)
        else:
            if self.is_strict:
                raise WrongArgumentError(
                    f"after is {self.after}, which is not in the history of {self.branch}: it is "
                    "of another branch, was expired, or the branch was reset"
                )
        return found[::-1]

    def _fits(self, repository: Repository, snapshot: SnapshotInfo) -> bool:
        if self.contains not in (None, snapshot.id):
            return False
        wanted = self.metadata or {}
        if any(snapshot.metadata.get(key) != value for key, value in wanted.items()):
            return False
        return self.path is None or touches(repository, snapshot, self.path)


type Condition = TagExists | ArrayReady | SnapshotArrived

_KINDS: dict[str, type[Condition]] = {
    kind.KIND: kind for kind in (TagExists, ArrayReady, SnapshotArrived)
}


def describe(condition: Condition) -> dict[str, Any]:
    """A condition as JSON, for a trigger."""
    return {"kind": condition.KIND, **asdict(condition)}


def restore(description: Mapping[str, Any]) -> Condition:
    """The condition that `describe` told of."""
    arguments = dict(description)
    return _KINDS[arguments.pop("kind")](**arguments)
