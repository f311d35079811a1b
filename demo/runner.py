"""Runs Dags in the process of `demo.airflow_host`, and tells how far they are."""

from __future__ import annotations

import json
import queue
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from demo.layout import environment
from demo.processes import end_descendants, end_marked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from demo.layout import Layout

PARALLEL = 3
_READY = 120.0
_RUN = 300.0
_POLL = 0.1


class AirflowError(Exception):
    """Airflow did not start, or a run did not end as it should."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one task, as Airflow's database has it."""

    task: str
    map_index: int
    item: str
    """What that index stands for; empty where a task is not mapped."""
    number: int
    state: str
    started: float | None
    """Seconds of the epoch."""
    ended: float | None

    @property
    def name(self) -> str:
        return f"{self.task.rpartition('.')[2]} {self.item}".rstrip()

    @property
    def seconds(self) -> float | None:
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started


@dataclass(slots=True)
class Run:
    """A run of a Dag that was asked for."""

    dag_id: str
    number: int
    """The number of this Dag's runs, from 1."""
    state: str = "running"
    run_id: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state != "running"


class Airflow:
    """Airflow on SQLite, in one process without a server, with a parallel executor."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._runs: list[Run] = []
        self._started = time.monotonic()
        self._is_ready = False
        self._items: dict[tuple[str, int, str, int], str] = {}
        self._log = layout.log.open("ab")
        self._host = subprocess.Popen(
            [sys.executable, "-m", "demo.airflow_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=layout.folder,
            env=environment(layout, parallel=PARALLEL),
            # Ctrl-C is for the story, which then ends this one.
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> list[int]:
        """End it, and all it has started; the pids that had to be looked for."""
        end_descendants(self._host.pid)
        for pipe in (self._host.stdin, self._log):
            if pipe is not None:
                pipe.close()
        try:
            self._host.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._host.kill()
            self._host.wait()
        return end_marked(self._layout.folder)

    def is_ready(self) -> bool:
        """Whether runs can be started; looks for a moment.

        Raises:
            AirflowError: it takes too long, or it has failed.
        """
        if not self._is_ready:
            self._take_answer()
            if not self._is_ready and time.monotonic() - self._started > _READY:
                raise AirflowError(f"Airflow did not start within {_READY:.0f} s")
        return self._is_ready

    def start(self, dag_id: str, conf: Mapping[str, Any], *, parallel: bool = False) -> Run:
        """Start a run.

        Args:
            dag_id: one at a time of each.
            conf: its parameters.
            parallel: run tasks side by side, each in a process of its own; else one after the
                other, where triggers run, too.
        """
        run = Run(dag_id, 1 + sum(each.dag_id == dag_id for each in self._runs))
        self._runs.append(run)
        request = {"request": len(self._runs) - 1, "dag_id": dag_id, "conf": dict(conf)}
        assert self._host.stdin is not None
        self._host.stdin.write(json.dumps(request | {"parallel": parallel}).encode() + b"\n")
        self._host.stdin.flush()
        return run

    def watch(self, run: Run) -> Iterator[list[Attempt]]:
        """All attempts of a run, again and again until it is over."""
        end = time.monotonic() + _RUN
        while not run.is_over:
            self._take_answer()
            yield self.attempts(run)
            if time.monotonic() > end:
                raise AirflowError(f"the run of {run.dag_id} was not over after {_RUN:.0f} s")
        yield self.attempts(run)

    def attempts(self, run: Run) -> list[Attempt]:
        """What Airflow's database knows of a run, in the order of their start."""
        url = f"file:{self._layout.database}?mode=ro"
        with closing(sqlite3.connect(url, uri=True, timeout=30)) as database:
            rows = database.execute(_ATTEMPTS, {"dag": run.dag_id, "skip": run.number - 1})
            # An attempt is in both tables for a moment; the history comes last and tells the end.
            found = {
                (task, index, number): Attempt(
                    task,
                    index,
                    self._item(run, task, index, item),
                    number,
                    state or "waiting",
                    _time(start),
                    _time(end),
                )
                for task, index, item, number, state, start, end in rows
            }
        return sorted(found.values(), key=lambda each: each.started or float("inf"))

    def _item(self, run: Run, task: str, index: int, item: str | None) -> str:
        """What an index stands for; Airflow forgets it while a task waits for a retry."""
        key = (run.dag_id, run.number, task, index)
        if item not in (None, str(index)):
            self._items[key] = str(item)
        return self._items.get(key, "" if index < 0 else str(index))

    def _take_answer(self) -> None:
        try:
            answer = self._answers.get(timeout=_POLL)
        except queue.Empty:
            return
        if answer is None:
            raise AirflowError("the process that Airflow runs in has died")
        if "request" in answer:
            run = self._runs[answer["request"]]
            run.run_id, run.state = answer["run_id"], answer["state"]
        else:
            self._is_ready = True

    def _listen(self) -> None:
        assert self._host.stdout is not None
        for line in self._host.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)


_ATTEMPTS = """
    with run as (
        select run_id from dag_run where dag_id = :dag order by id limit 1 offset :skip
    )
    select task_id, map_index, rendered_map_index, try_number, state, start_date, end_date
    from task_instance where dag_id = :dag and run_id = (select run_id from run)
    union all
    select task_id, map_index, rendered_map_index, try_number, state, start_date, end_date
    from task_instance_history where dag_id = :dag and run_id = (select run_id from run)
"""


def _time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
