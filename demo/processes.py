"""Finding and ending the processes of a demonstration, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from demo.layout import MARK

if TYPE_CHECKING:
    from pathlib import Path

_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Driver:
    """The processes of one Spark driver: a JVM and a Python."""

    pids: tuple[int, ...]
    group: int

    def kill(self) -> None:
        """SIGKILL to all of them at once: none can clean up."""
        os.killpg(self.group, signal.SIGKILL)


def find_driver(folder: Path, text: str) -> Driver | None:
    """The Spark driver of this demonstration that has a text in its arguments."""
    found = [
        process.pid
        for process in _marked(folder)
        if any(text in argument for argument in _arguments(process))
    ]
    if not found:
        return None
    # The operator starts each driver in a process group of its own.
    return Driver(tuple(sorted(found)), os.getpgid(found[0]))


def end_descendants(pid: int) -> None:
    """End what a process has started, and what that has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _end(psutil.Process(pid).children(recursive=True))


def end_marked(folder: Path) -> list[int]:
    """End whatever is left of a demonstration, orphans too; their pids."""
    found = _marked(folder)
    _end(found)
    return [process.pid for process in found]


def _marked(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _mark(process) == str(folder) and _is_alive(process)
    ]


def _mark(process: psutil.Process) -> str:
    # Those of other users do not tell, and some end meanwhile.
    with contextlib.suppress(psutil.Error, OSError):
        return str(process.environ().get(MARK, ""))
    return ""


def _arguments(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return list(process.cmdline())
    return []


def _end(processes: list[psutil.Process]) -> None:
    """Ask them to stop, and after a while make them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        processes = [process for process in processes if _is_alive(process)]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        end = time.monotonic() + _GRACE
        while any(map(_is_alive, processes)) and time.monotonic() < end:
            time.sleep(0.05)


def _is_alive(process: psutil.Process) -> bool:
    # One that has ended stays listed until its parent asks for it.
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
