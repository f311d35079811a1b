"""What a stack remembers between two commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from stack.keys import write_private
from stack.processes import ProcessRef

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Started:
    """A component's process, and how to stop it."""

    ref: ProcessRef
    rank: int
    stop_signal: int


@dataclass(slots=True)
class State:
    """Ports and processes by name, the folder of Dags, `postgres` or `sqlite`, and the extent."""

    dags: str = ""
    database: str = ""
    airflow_only: bool = False
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, Started] = field(default_factory=dict)


class UnreadableError(RuntimeError):
    """A file is there, and is no state that this version wrote."""


def read(path: Path) -> State:
    """The state in a file; an empty one if there is none.

    Raises:
        UnreadableError: the file is damaged, or of another version.
    """
    try:
        content = json.loads(path.read_text())
        content["processes"] = {
            name: Started(**{**fields, "ref": ProcessRef(**fields["ref"])})
            for name, fields in content["processes"].items()
        }
        return State(**content)
    except (FileNotFoundError, NotADirectoryError):
        return State()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(
            f"{path} is damaged, or of another version ({type(error).__name__}); `make down` stops "
            "what is left of that stack, and forgets it"
        ) from None


def write(path: Path, state: State) -> None:
    """Replace the file as a whole."""
    write_private(path, json.dumps(asdict(state), indent=2) + "\n")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one command at a time can have.

    Raises:
        RuntimeError: another one has it.
    """
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another command of this stack is running; wait for it") from None
        yield
