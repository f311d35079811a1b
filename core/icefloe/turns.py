"""Fairness among writers of one branch: who has just won a race lets the others go first.

A race for the branch has one winner, and nothing tells it of the losers. If it commits again at
once, with all it needs in its cache, it wins again, and the others may wait for ever. So a writer
that has lately met others on a branch pauses before it commits there once more, for about as long
as a commit takes. Where nobody else writes, nobody ever pauses.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

MAX_PAUSE = 0.25
"""Seconds that a commit pauses at most for the sake of others."""
_REMEMBERED = 5.0
"""Seconds for which others count as present."""
_BRANCHES = 1000
_PATIENT = 3
"""Who has lost this many races waits no more."""


@dataclass(slots=True)
class Turns:
    """What this process knows of the races for one branch. Times are monotonic seconds."""

    won_at: float = float("-inf")
    met_at: float = float("-inf")
    took: float = 0.0
    tip: str | None = None
    """Where our last commit left the branch."""

    def pause(self, base: str) -> None:
        """Wait, if we won the last race and others are there; `base` is what we commit on."""
        if self.tip is not None and base != self.tip:
            self.met()
        now = time.monotonic()
        if now - self.met_at < _REMEMBERED and now - self.won_at < 2 * MAX_PAUSE:
            time.sleep(min(random.uniform(1, 2) * self.took, MAX_PAUSE))

    def lost(self, times: int, took: float) -> None:
        """Wait after a lost race, the less the more were lost: who waits longest goes first.

        Args:
            times: how many races this commit has lost.
            took: seconds that the last attempt took.
        """
        self.met()
        self.took = took
        if times < _PATIENT:
            time.sleep(random.uniform(0, min(took, MAX_PAUSE)) / times)

    def patience(self, times: int) -> float:
        """Seconds to wait for the next commit of the others, after so many races were lost.

        The time until the one after it is longest then: who is a little slower than a rival in a
        tight loop fits in between only if it begins just there.
        """
        return min(self.took, MAX_PAUSE) if times >= _PATIENT else 0.0

    def met(self) -> None:
        """Somebody else has moved the branch."""
        self.met_at = time.monotonic()

    def won(self, tip: str, took: float) -> None:
        """Our commit is the tip; its last attempt took so many seconds."""
        self.won_at, self.took, self.tip = time.monotonic(), took, tip


_known: OrderedDict[tuple[str, str], Turns] = OrderedDict()
_lock = threading.Lock()


def turns_of(url: str, branch: str) -> Turns:
    """What all sessions of this process share, whichever handle they come from."""
    with _lock:
        found = _known.setdefault((url, branch), Turns())
        _known.move_to_end((url, branch))
        if len(_known) > _BRANCHES:
            _known.popitem(last=False)
        return found
