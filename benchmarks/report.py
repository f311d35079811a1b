"""Results of a benchmark: our time, the official one, their ratio and its bar."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `ours` and `official` share a unit; `bar` limits their ratio."""

    name: str
    ours: float
    official: float
    bar: float
    unit: str = "s"

    @property
    def ratio(self) -> float:
        return self.ours / self.official

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bar

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "holds": self.holds}


def best(action: Callable[[], object], repeats: int = 3) -> float:
    """Seconds of the fastest run: on a shared machine the slower ones measure the others."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def table(results: Sequence[Result]) -> str:
    """The results as text."""
    lines = [f"{'':<58}{'icefloe':>10}{'yardstick':>11}{'ratio':>8}{'bar':>7}"]
    for result in results:
        verdict = "" if result.holds else "   MISSED"
        lines.append(
            f"{result.name:<58}{result.ours:>9.3f}{result.unit:<2}{result.official:>9.3f}"
            f"{result.unit:<2}{result.ratio:>7.2f}{result.bar:>7.2f}{verdict}"
        )
    return "\n".join(lines)
