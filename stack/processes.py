"""Processes that outlive us: starting them, recognising them later, stopping all they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

MARK = "ICEFLOE_STACK"
"""A variable in the environment of every process of a stack; its value is the stack's folder."""

_POLL = 0.1


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process; the time of its start tells it from a later one with the same number."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class _Entry:
    ref: ProcessRef
    parent: int
    group: int


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    user: str | None = None,
) -> ProcessRef:
    """Start a process as the leader of a group of its own, its output appended to `log`."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    entry = next((entry for entry in _table() if entry.ref.pid == process.pid), None)
    # It is meant to outlive us: nobody waits for it, and the destructor need not warn.
    process.returncode = 0
    return ProcessRef(process.pid, "gone") if entry is None else entry.ref


def running(refs: Collection[ProcessRef]) -> set[ProcessRef]:
    """Those of `refs` that run; one that has ended and waits to be reaped does not."""
    for ref in refs:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ref.pid, os.WNOHANG)
    return {entry.ref for entry in _table()} & set(refs)


def belonging(refs: Collection[ProcessRef], mark: str | None) -> set[ProcessRef]:
    """The groups of `refs`, what bears the mark, and all descendants of those.

    A descendant may have left its group, and lost its parents; then only the mark tells, which can
    be read on Linux alone.
    """
    table = _table()
    number = {entry.ref.pid: entry.ref for entry in table}
    # Somebody else got the number of a process that has ended: their group is not ours.
    groups = {ref.pid for ref in refs if number.get(ref.pid, ref) == ref}
    found = {entry for entry in table if entry.group in groups or _is_marked(entry.ref.pid, mark)}
    new = found
    while new:
        parents = {entry.ref.pid for entry in new}
        new = {entry for entry in table if entry.parent in parents} - found
        found = found | new
    return {entry.ref for entry in found if entry.ref.pid != os.getpid()}


def end(leaders: Mapping[ProcessRef, int], *, mark: str | None = None, grace: float) -> None:
    """End processes with all that belongs to them.

    Each leader gets its signal and has `grace` seconds to end, and to end what it has started. What
    is left then is asked to, and in the end killed.

    Raises:
        RuntimeError: some could not be killed.
    """
    known: set[ProcessRef] = set()

    def left() -> set[ProcessRef]:
        # Those found once stay known: with its parent a process may lose its tie to us.
        known.update(belonging(leaders, mark))
        return running(known)

    left()
    for ref in running(leaders):
        _signal([ref], leaders[ref])
    if leaders and _wait_until(lambda: not left(), grace):
        return
    _signal(left(), signal.SIGTERM)
    if _wait_until(lambda: not left(), grace / 4):
        return
    # One may start another between our look and our signal: look again.
    for _ in range(20):
        _signal(left(), signal.SIGKILL)
        if _wait_until(lambda: not left(), 0.5):
            return
    numbers = ", ".join(str(ref.pid) for ref in left())
    raise RuntimeError(f"these processes could not be killed: {numbers}")


def _wait_until(is_true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _signal(refs: Iterable[ProcessRef], number: int) -> None:
    for ref in refs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ref.pid, number)


def _table() -> list[_Entry]:
    return _linux_table() if sys.platform == "linux" else _ps_table()


def _linux_table() -> list[_Entry]:
    entries = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        # The second field, a name in parentheses, may contain anything.
        state, parent, group, *rest = stat.rpartition(")")[2].split()
        if state not in "ZX":
            ref = ProcessRef(int(folder.name), rest[16])
            entries.append(_Entry(ref, int(parent), int(group)))
    return entries


def _ps_table() -> list[_Entry]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    entries = []
    for line in lines:
        pid, parent, group, state, *started = line.split()
        if not state.startswith("Z"):
            ref = ProcessRef(int(pid), " ".join(started))
            entries.append(_Entry(ref, int(parent), int(group)))
    return entries


def _is_marked(pid: int, mark: str | None) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes() if mark else b""
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in environment.split(b"\0")
