"""Starting, watching and stopping the components of a stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stack import processes
from stack.state import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from stack.component import Component
    from stack.state import State

_POLL = 0.3
_TAIL = 20


class StartError(Exception):
    """A component died or did not become healthy; the message has the end of its log."""


class Supervisor:
    """Runs the components of the stack in `folder`; `save` is called whenever `state` changes."""

    def __init__(self, folder: Path, state: State, save: Callable[[], None]) -> None:
        self._folder = folder
        self._state = state
        self._save = save

    def is_running(self, name: str) -> bool:
        started = self._state.processes.get(name)
        return started is not None and bool(processes.running({started.ref}))

    def start(self, components: Iterable[Component]) -> None:
        """Start those that do not run."""
        for each in components:
            if self.is_running(each.name):
                continue
            ref = processes.start(
                each.command,
                environment=each.environment,
                folder=self._folder / "run",
                log=self.log(each.name),
                user=each.user,
            )
            self._state.processes[each.name] = Started(ref, each.rank, each.stop_signal)
            self._save()

    def wait(
        self,
        components: Sequence[Component],
        *,
        seconds: float,
        report: Callable[[Component, float], None] = lambda each, seconds: None,
    ) -> None:
        """Wait until all are healthy; `report` each when it is, with the seconds it took.

        Raises:
            StartError: one of them has ended, or time is over.
        """
        began = time.monotonic()
        waiting = list(components)
        while waiting:
            for each in list(waiting):
                if not self.is_running(each.name):
                    raise StartError(f"{each.name} has ended.\n{self.tail(each.name)}")
                if each.is_healthy():
                    waiting.remove(each)
                    report(each, time.monotonic() - began)
            if waiting and time.monotonic() > began + seconds:
                name = waiting[0].name
                raise StartError(f"{name} is not healthy after {seconds} s.\n{self.tail(name)}")
            time.sleep(_POLL)

    def stop(self, *, grace: float) -> None:
        """Stop every process of this stack, those of the highest rank first, and forget them.

        Raises:
            RuntimeError: some could not be killed.
        """
        started = self._state.processes.values()
        for rank in sorted({each.rank for each in started}, reverse=True):
            leaders = {each.ref: each.stop_signal for each in started if each.rank == rank}
            processes.end(leaders, grace=grace)
        # Tasks and Spark jobs may have left the groups they were started in.
        processes.end({}, mark=str(self._folder), grace=grace)
        self._state.processes = {}
        self._save()

    def log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"

    def tail(self, name: str) -> str:
        log = self.log(name)
        lines = log.read_text(errors="replace").splitlines()[-_TAIL:] if log.exists() else []
        return "\n".join([f"The end of {log}:", *(f"    {line}" for line in lines)])
