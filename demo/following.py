"""Showing a run while it goes on, and what its attempts tell afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from demo.console import Console
    from demo.runner import Airflow, Attempt, Run

_OVER = {"success", "failed", "up_for_retry", "upstream_failed", "skipped"}


def follow(airflow: Airflow, console: Console, run: Run, also: Callable[[], None]) -> list[Attempt]:
    """Print each attempt as it ends, until the run is over; all of them.

    Args:
        airflow: where it runs.
        console: where to print.
        run: what to follow.
        also: called again and again meanwhile.
    """
    told: set[tuple[str, int, int]] = set()
    attempts: list[Attempt] = []
    for attempts in airflow.watch(run):
        for each in attempts:
            key = (each.task, each.map_index, each.number)
            if each.state in _OVER and key not in told:
                told.add(key)
                console.ended(each)
        busy = [each.name for each in attempts if each.state in ("running", "queued")]
        console.working(f"{run.dag_id}: {', '.join(busy) or 'scheduling'}")
        also()
    return attempts


def most_together(attempts: Iterable[Attempt]) -> int:
    """How many ran at one time, at most."""
    spans = [(it.started, it.ended) for it in attempts if it.started and it.ended]
    return max(sum(start <= at < end for start, end in spans) for at, _ in spans)
