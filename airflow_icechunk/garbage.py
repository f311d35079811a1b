"""Whether a repository may have garbage, as its log of operations tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe import UpdateKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from icefloe import Update

_HARMLESS = frozenset(
    {
        UpdateKind.REPO_INITIALIZED,
        UpdateKind.CONFIG_CHANGED,
        UpdateKind.METADATA_CHANGED,
        UpdateKind.TAG_CREATED,
        UpdateKind.BRANCH_CREATED,
        UpdateKind.FEATURE_FLAG_CHANGED,
        UpdateKind.REPO_STATUS_CHANGED,
    }
)
"""Operations that leave nothing behind."""


def may_have_garbage(ops_log: Iterable[Update], grace: timedelta) -> bool:
    """Whether anything that can leave garbage happened since a collection would have seen it.

    :param ops_log: newest first.
    :param grace: what is younger, a collection leaves alone: changes of that time before the last
        collection are still to be looked at.
    """
    collected: int | None = None
    for update in ops_log:
        if update.kind == UpdateKind.GC_RAN:
            collected = update.updated_at if collected is None else collected
        elif update.kind not in _HARMLESS:
            if collected is None:
                return True
            return update.updated_at >= collected - grace.total_seconds() * 1e6
    return False
