"""How far a long operation has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Totals so far. In a dry run, `objects_deleted` counts what would be deleted."""

    phase: str = ""
    objects_listed: int = 0
    snapshots_read: int = 0
    manifests_read: int = 0
    objects_deleted: int = 0


type Report = Callable[[Progress], None]


class Meter:
    """Adds up, and tells whoever wants to know."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self.now = Progress()

    def enter(self, phase: str) -> None:
        self._tell(replace(self.now, phase=phase))

    def listed(self, count: int) -> None:
        self._tell(replace(self.now, objects_listed=self.now.objects_listed + count))

    def read_snapshot(self, count: int = 1) -> None:
        self._tell(replace(self.now, snapshots_read=self.now.snapshots_read + count))

    def read_manifest(self, count: int = 1) -> None:
        self._tell(replace(self.now, manifests_read=self.now.manifests_read + count))

    def deleted(self, count: int) -> None:
        self._tell(replace(self.now, objects_deleted=self.now.objects_deleted + count))

    def _tell(self, now: Progress) -> None:
        self.now = now
        if self._report is not None:
            self._report(now)
