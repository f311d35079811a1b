"""Layout detection: which generation of the Icechunk format lies at a place, told by its keys.

Only version 2 keeps its refs in one object. Those before it had a folder of refs; what is in it
tells them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.assets import REPO

if TYPE_CHECKING:
    from icefloe.storage import Storage

_CONFIG = "config.yaml"
_V1_REF = re.compile(r"refs/branch\.[^/]+/ref\.json")


@dataclass(frozen=True, slots=True)
class Layout:
    """A generation of the format, and the key that tells it."""

    spec_version: int
    """0 for what was written before version 1 was released."""
    key: str

    def __str__(self) -> str:
        version = f"version {self.spec_version}" if self.spec_version else "an alpha version"
        return f"an Icechunk repository of {version} ({self.key})"


def detect(storage: Storage) -> Layout | None:
    """The repository at a place, None if there is none; needs the right to list unless it is V2."""
    if storage.exists(REPO):
        return Layout(2, REPO)
    refs = [item.key for item in next(storage.list("refs/"), [])]
    if refs:
        v1 = next(filter(_V1_REF.fullmatch, refs), None)
        return Layout(0, refs[0]) if v1 is None else Layout(1, v1)
    oldest = next(storage.list("r/"), [])
    if oldest:
        return Layout(0, oldest[0].key)
    # What is left of a repository whose refs are lost: its data may still be saved.
    return Layout(1, _CONFIG) if storage.exists(_CONFIG) else None
