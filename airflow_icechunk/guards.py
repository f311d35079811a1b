"""Guards: what must hold of a snapshot before a branch may move to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.module_loading import import_string
from airflow.providers.common.compat.sdk import AirflowFailException

if TYPE_CHECKING:
    from icefloe import Diff, Session

type Guard = Callable[[Session, Session, Diff], Any]
"""Takes the branch as it is and as it would be, and what changes; raises to refuse."""


class PublishRefusedError(AirflowFailException):
    """A guard refused: a retry would not change that, so none is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A branch as it is, and as it would be, with what others committed meanwhile."""

    before: Session
    after: Session
    diff: Diff
    metadata: Mapping[str, Any]
    """Of the staged snapshot."""


def check_changed(candidate: Candidate, allowed: Sequence[str]) -> None:
    """Refuse changes to anything but these paths.

    :param allowed: patterns such as ``/t2m`` or ``/daily/*``, where ``*`` also crosses slashes. New
        groups without attributes above them, such as the root, need not be named.
    """
    patterns = [f"/{pattern.strip('/')}" for pattern in allowed]
    changed = changed_paths(candidate.diff)
    may = {path for path in changed if any(fnmatchcase(path, pattern) for pattern in patterns)}
    wrong = sorted(changed - may - _implicit_groups(candidate, may))
    if wrong:
        raise PublishRefusedError(f"it changes what it may not: {_told(wrong)}")


def _implicit_groups(candidate: Candidate, may: Collection[str]) -> set[str]:
    """New groups that zarr made for what stands below them, and that say nothing of their own."""
    needed = {str(parent) for path in may for parent in PurePosixPath(path).parents}
    return {
        path
        for path in {*candidate.diff.new_groups} & {*needed, "/"}
        if (node := candidate.after.node(path)) is not None
        and not json.loads(node.user_data).get("attributes")
    }


def check_no_shrink(candidate: Candidate) -> None:
    """Refuse to delete an array or to make one smaller than it is on the branch."""
    wrong = []
    for path in candidate.before.paths():
        before, after = shape(candidate.before, path), shape(candidate.after, path)
        if before is None:
            continue
        if after is None:
            wrong.append(f"{path} is gone")
        elif len(before) != len(after) or any(
            new < old for old, new in zip(before, after, strict=True)
        ):
            wrong.append(f"{path} goes from {list(before)} to {list(after)}")
    if wrong:
        raise PublishRefusedError(f"arrays would shrink: {_told(wrong)}")


def check_metadata(candidate: Candidate, required: Mapping[str, Any] | Sequence[str]) -> None:
    """Refuse a snapshot whose metadata lacks a key, or has another value under it."""
    if isinstance(required, Mapping):
        wrong = [key for key, value in required.items() if candidate.metadata.get(key) != value]
    else:
        wrong = [key for key in required if key not in candidate.metadata]
    if wrong:
        raise PublishRefusedError(f"metadata is missing or wrong: {_told(sorted(wrong))}")


def check_guard(candidate: Candidate, guard: Guard | str) -> None:
    """Ask a function of the user: it raises, or returns False, to refuse."""
    function: Guard = import_string(guard.replace(":", ".")) if isinstance(guard, str) else guard
    if function(candidate.before, candidate.after, candidate.diff) is False:
        raise PublishRefusedError(f"the guard {getattr(function, '__name__', guard)} refused it")


def changed_paths(diff: Diff) -> set[str]:
    """Paths of all that was created, changed, moved or deleted."""
    return {
        *diff.new_groups,
        *diff.new_arrays,
        *diff.updated_groups,
        *diff.updated_arrays,
        *diff.deleted_groups,
        *diff.deleted_arrays,
        *diff.chunk_index,
        *(path for move in diff.moved_nodes for path in move),
    }


def shape(session: Session, path: str) -> tuple[int, ...] | None:
    """The shape of an array; None if there is no array."""
    node = session.node(path)
    if node is None or node.array is None:
        return None
    return tuple(json.loads(node.user_data)["shape"])


def _told(items: Sequence[str]) -> str:
    more = "" if len(items) <= 10 else f" and {len(items) - 10} more"
    return ", ".join(items[:10]) + more
