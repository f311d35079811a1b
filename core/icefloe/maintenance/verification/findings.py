"""What is wrong with a repository, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from icefloe.errors import IcefloeError

type Severity = Literal["error", "warning", "info"]
"""An error loses data or fails readers, a warning may one day, information is neither."""

RESTORE = "restore the file from a copy, or reset every branch and tag to snapshots without it"
REWRITE_MANIFESTS = "rewrite the manifests of the array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    kind: str
    """Stable, in kebab case, for programs."""
    file: str
    array: str | None = None
    chunk: tuple[int, ...] | None = None
    message: str
    what_to_do: str


type Sourced = tuple[Finding, str | None]
"""A finding, and what it is about where several files have that: it counts once for all of them."""


def unreadable(file: str, error: IcefloeError, what_to_do: str = RESTORE) -> Finding:
    return Finding(
        severity="error",
        kind="unreadable",
        file=file,
        message=error.message,
        what_to_do=what_to_do,
    )


def missing(file: str, needed_by: str, what_to_do: str = RESTORE) -> Finding:
    return Finding(
        severity="error",
        kind="missing-file",
        file=file,
        message=f"it does not exist, and {needed_by} needs it",
        what_to_do=what_to_do,
    )


def wrong_id(file: str, found: object) -> Finding:
    return Finding(
        severity="error",
        kind="id-mismatch",
        file=file,
        message=f"it says that it is {found}",
        what_to_do=RESTORE,
    )
