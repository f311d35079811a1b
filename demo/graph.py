"""The commit graph as text: a branch from its tip down, and what was staged beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import icefloe
    from icefloe import SnapshotInfo


def names(repo: icefloe.Repository) -> dict[str, list[str]]:
    """Branches and tags, by the snapshot they name."""
    found: dict[str, list[str]] = {}
    for branch in sorted(repo.list_branches()):
        found.setdefault(repo.lookup_branch(branch), []).append(branch)
    for tag in sorted(repo.list_tags()):
        found.setdefault(repo.lookup_tag(tag), []).append(f"tag: {tag}")
    return found


def draw(
    history: Sequence[SnapshotInfo],
    staged: Sequence[SnapshotInfo],
    named: Mapping[str, Sequence[str]],
    gone: set[str],
) -> list[str]:
    """Lines of text.

    Args:
        history: of a branch, newest first, as it was when it was longest.
        staged: on no branch.
        named: branches and tags, by snapshot.
        gone: what was expired or collected since.
    """
    lines = []
    for commit in history:
        lines.append(_commit(commit, named.get(commit.id, ()), gone))
        beside = [each for each in staged if _base(each, staged) == commit.id]
        lines += [_twig(each, gone) for each in reversed(beside)]
        if commit is not history[-1]:
            lines.append("|")
    return lines


def _commit(commit: SnapshotInfo, called: Sequence[str], gone: set[str]) -> str:
    refs = f" ({', '.join(called)})" if called else ""
    note = "  [expired]" if commit.id in gone else ""
    return f"*  {commit.id}  {commit.written_at:%H:%M:%S}{refs}  {commit.message}{note}"


def _twig(snapshot: SnapshotInfo, gone: set[str]) -> str:
    note = "  [collected]" if snapshot.id in gone else ""
    task = str(snapshot.metadata.get("airflow.task_id", "")).rpartition(".")[2]
    return f"|\\ {snapshot.id}  staged by {task}: {snapshot.message}{note}"


def _base(snapshot: SnapshotInfo, staged: Sequence[SnapshotInfo]) -> str | None:
    """The commit that a staged snapshot stands on in the end."""
    parents = {each.id: each.parent_id for each in staged}
    found = snapshot.parent_id
    while found in parents:
        found = parents[found]
    return found
