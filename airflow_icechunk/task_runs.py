"""The run of a task: the key under which it writes once, and the stamp on what it writes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One task of one Dag run, over all its attempts but the number of the present one."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    tries_before_clear: int
    """0, and another number after each time that a user clears this task.

    The run's `clear_number` also counts when another task is cleared, and would so make a retry
    forget what its first attempt has written.
    """

    @classmethod
    def of(cls, context: Context) -> Self:
        ti = context["ti"]
        map_index = ti.map_index
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if map_index is None else map_index,
            try_number=ti.try_number,
            tries_before_clear=ti.max_tries - (context["task"].retries or 0),
        )

    def write_key(self, *parts: object) -> str:
        """The same for every attempt; another one once the task is cleared.

        :param parts: what else tells this write from others, such as a region. Positions of mapped
            tasks may name other items after a clear; a region does not.
        """
        return self._digest(self.tries_before_clear, *parts)

    def merge_key(self, *parts: object) -> str:
        """A key that a clear does not change: for work that its inputs define."""
        return self._digest("merge", *parts)

    def _digest(self, *parts: object) -> str:
        identity = [self.dag_id, self.run_id, self.task_id, self.map_index, *parts]
        text = json.dumps(identity, default=str, sort_keys=True)
        return f"airflow-{hashlib.sha256(text.encode()).hexdigest()}"

    def stamp(self) -> dict[str, str | int]:
        """Metadata for a commit: who made it."""
        return {
            "airflow.dag_id": self.dag_id,
            "airflow.run_id": self.run_id,
            "airflow.task_id": self.task_id,
            "airflow.map_index": self.map_index,
            "airflow.try_number": self.try_number,
        }
