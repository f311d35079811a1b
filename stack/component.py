"""A component is a process to start, and how to know that it works."""

from __future__ import annotations

import http.client
import json
import signal
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    is_healthy: Callable[[], bool]
    port: int | None = None
    """The one that users want to know."""
    user: str | None = None
    """Who runs it, if not we."""
    rank: int = 0
    """Those of a higher rank need those of a lower one: they start later and stop earlier."""
    stop_signal: int = signal.SIGTERM


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (OSError, http.client.HTTPException):
        return False


def fetch_json(url: str) -> dict[str, Any]:
    """The object that a GET brings; an empty one if it fails."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            content: dict[str, Any] = json.load(response)
            return content
    except (OSError, http.client.HTTPException, ValueError):
        return {}
