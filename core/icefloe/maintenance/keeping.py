"""Which snapshots a garbage collection keeps, and what writers come to need while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.updates import Update, UpdateKind
from icefloe.maintenance.id_sets import IdSet
from icefloe.maintenance.pruning import initial_row, orphans, reachable, with_footing, without

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.format.ragged import Bytes
    from icefloe.format.repo_info import RepoInfo
    from icefloe.maintenance.marks import Marks
    from icefloe.storage import Version


class StartOverError(Exception):
    """Somebody came to need a snapshot that was to be dropped."""


class Keeper:
    """Marks what the snapshots of the repo object need, whenever it looks at it."""

    def __init__(
        self,
        assets: Assets,
        marks: Marks,
        dropped: Bytes | None = None,
        version: Version | None = None,
    ) -> None:
        """Watch a repository.

        Args:
            assets: its files.
            marks: what is marked so far.
            dropped: snapshots that left the repo object.
            version: the repo object that was looked at last, if any.
        """
        self._assets = assets
        self._marks = marks
        self.dropped = IdSet(dropped)
        self.version = version

    def plan(self, old: IdSet) -> RepoInfo:
        """Decide which snapshots stay; `old` are those whose files may go, as far as time goes.

        The files were listed before `repo` is read: a snapshot without a file is a young one.
        """
        info, self.version = self._assets.repo()
        ids = info.snapshots.id
        held = reachable(info)
        drop = ~with_footing(info, held | ~old.contains(ids), held)
        self.dropped.add(ids[drop])
        self._marks.keep(info, ids[~drop])
        return info

    def without_dropped(self, info: RepoInfo) -> tuple[RepoInfo, Update]:
        """The change to the repo object, which may not be the one that the plan was made for.

        Raises:
            StartOverError: the plan does not fit it.
        """
        snapshots = info.snapshots
        gone = self.dropped.contains(snapshots.id)
        new = ~gone & ~self._marks.snapshots.contains(snapshots.id)
        is_orphan = (snapshots.parent >= 0) & gone[snapshots.parent]
        if bool((reachable(info) & gone).any()) or bool((new & is_orphan).any()):
            raise StartOverError
        self._marks.adopt(info, snapshots.id[new])
        changed = orphans(snapshots, gone, ~gone)
        self._marks.keep_logs(changed.logs)
        fallback = initial_row(snapshots, changed.ancestor)
        parent = np.where(changed.ancestor < 0, fallback, changed.ancestor)
        # The next look at the repo object must see whatever is there then.
        self.version = None
        return without(info, gone, changed, parent), Update(kind=UpdateKind.GC_RAN, updated_at=0)

    def look_again(self) -> None:
        """Mark what came in since the last look.

        Raises:
            StartOverError: somebody put an older repo object back.
        """
        info, version = self._assets.repo()
        if version == self.version:
            return
        ids = info.snapshots.id
        if bool(self.dropped.contains(ids).any()):
            raise StartOverError
        self._marks.adopt(info, ids[~self._marks.snapshots.contains(ids)])
        self.version = version
