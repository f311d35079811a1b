"""Refs and history: from names and times to rows of the repo object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.clock import from_datetime, parse_time
from icefloe.errors import FormatError, InvalidInputError, NotFoundError
from icefloe.format.ids import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.clock import Moment
    from icefloe.format.repo_info import RepoInfo

MAX_NAME_BYTES = 1024


def check_name(name: str) -> None:
    """Refuse ref names that break other clients.

    Raises:
        InvalidInputError: the name is empty, too long, or has control characters.
    """
    if not isinstance(name, str):
        raise InvalidInputError(
            f"{ascii(name)[:80]} is no name for a branch or tag: pass a str",
            kind="invalid-ref-name",
        )
    # What is printable is Unicode.
    if not name or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidInputError(
            f"{name[:80]!r} is no name for a branch or tag: 1 to {MAX_NAME_BYTES} bytes, "
            "no control characters",
            kind="invalid-ref-name",
        )


def branch_row(info: RepoInfo, branch: str) -> int:
    """Raises NotFoundError if there is no such branch."""
    row = info.branches.todict().get(_text("branch", branch))
    if row is None:
        raise NotFoundError(f"there is no branch {branch!r}", kind="branch-not-found")
    return row


def tag_row(info: RepoInfo, tag: str) -> int:
    """Raises NotFoundError if there is no such tag."""
    row = info.tags.todict().get(_text("tag", tag))
    if row is None:
        raise NotFoundError(f"there is no tag {tag!r}", kind="tag-not-found")
    return row


def snapshot_row(info: RepoInfo, snapshot_id: str) -> int:
    """Raises NotFoundError if there is no such snapshot."""
    row = info.snapshots.row(SnapshotId.parse(snapshot_id))
    if row is None:
        raise NotFoundError(f"there is no snapshot {snapshot_id}", kind="snapshot-not-found")
    return row


def resolve(info: RepoInfo, branch: str | None, tag: str | None, snapshot_id: str | None) -> int:
    """The row of the one ref or snapshot that is given.

    Raises:
        InvalidInputError: none or several are given.
        NotFoundError: it does not exist.
    """
    match branch, tag, snapshot_id:
        case _, None, None if branch is not None:
            return branch_row(info, branch)
        case None, _, None if tag is not None:
            return tag_row(info, tag)
        case None, None, _ if snapshot_id is not None:
            return snapshot_row(info, snapshot_id)
        case _:
            several = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id}
            given = [f"{name}={each!a}" for name, each in several.items() if each is not None]
            raise InvalidInputError(
                "name exactly one of branch, tag and snapshot_id, not "
                + (" and ".join(given) or "none of them")
            )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}={ascii(value)[:80]}: pass its name as a str")
    return value


def ancestors(info: RepoInfo, row: int) -> Iterator[int]:
    """Rows from a snapshot to its root.

    Raises:
        FormatError: the history of a damaged file runs in a circle.
    """
    for _ in range(len(info.snapshots)):
        yield row
        row = int(info.snapshots.parent[row])
        if row < 0:
            return
    raise FormatError("repo: the history runs in a circle", kind="history-cycle")


def tip_of(info: RepoInfo, branch: str) -> SnapshotId:
    """Raises NotFoundError if there is no such branch."""
    return info.snapshots.id_at(branch_row(info, branch))


def published(info: RepoInfo, branch: str | None = None) -> set[int]:
    """Rows in the history of a branch; for None, in that of any branch or tag."""
    if branch is not None:
        return {*ancestors(info, branch_row(info, branch))}
    found: set[int] = set()
    for start in {*info.branches.snapshot.tolist(), *info.tags.snapshot.tolist()}:
        for row in ancestors(info, start):
            if row in found:
                break
            found.add(row)
    return found


def row_as_of(info: RepoInfo, row: int, when: Moment) -> int:
    """The newest ancestor written at `when` or before; see `parse_time` for what that may be.

    Raises:
        NotFoundError: all are younger.
        InvalidInputError: it is no time.
    """
    when = parse_time(when, "as_of")
    limit = from_datetime(when)
    for at in ancestors(info, row):
        if int(info.snapshots.flushed_at[at]) <= limit:
            return at
    raise NotFoundError(f"there is no snapshot as old as {when}", kind="snapshot-not-found")
