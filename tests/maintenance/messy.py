"""A history with something of everything that maintenance meets, by the official library."""

import time
from datetime import UTC, datetime

from maintenance.histories import History, write_chunk


class Messy:
    """Branches, tags, pruned ancestors; amended, detached and unreachable snapshots; orphans.

    `middle` lies between the older and the younger half of main, `end` after everything.
    """

    def __init__(self, path):
        self.path = path
        history = History.new(path)
        repo = history.repo
        for operation in [
            ("commit", 0, 1),
            ("commit", 0, 2),
            ("create_tag", 1, 0),
            ("commit", 0, 3),
        ]:
            history.apply(operation)
        # Something expired before, so that logs without snapshots are needed.
        history.repo.expire_snapshots(history.time_of(2))
        for value in (4, 5):
            history.apply(("commit", 0, value))
        self.lost = repo.lookup_branch("main")
        repo.create_branch("side", repo.lookup_branch("main"))
        history.apply(("commit", 1, 1))
        history.apply(("amend", 1, 2))
        history.apply(("flush", 0, 3))
        self.detached = history.snapshots[-1]
        history.apply(("flush", 1, 4))
        # The tip of main becomes unreachable but for the branch, the detached ones altogether.
        parent = repo.lookup_snapshot(self.lost).parent_id
        repo.reset_branch("side", parent)
        repo.reset_branch("main", parent)
        self.middle = datetime.now(UTC)
        history.apply(("commit", 0, 0))
        history.apply(("commit", 0, 1))
        session = repo.writable_session("main")
        write_chunk(session, 5, 77)  # an orphan: never committed
        self.snapshots = history.snapshots
        time.sleep(0.02)
        self.end = datetime.now(UTC)
        time.sleep(0.02)
