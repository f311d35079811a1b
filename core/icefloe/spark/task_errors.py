"""Errors of icefloe on their way from executors: Spark carries the text of a traceback alone."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icefloe import errors
from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = "icefloe-task-error: "
_FOUND = re.compile(rf"^\s*{_MARK}(\{{.*\}})\s*$", re.MULTILINE)


@contextmanager
def marked() -> Iterator[None]:
    """Errors of icefloe that leave the block say in their traceback what they are.

    Tasks and data sources work in such a block; `task_error` reads what it wrote.
    """
    try:
        yield
    except IcefloeError as error:
        said = {"type": type(error).__name__, "kind": error.kind, "message": error.message}
        error.add_note(_MARK + json.dumps(said))
        raise


def task_error(error: BaseException) -> IcefloeError | None:
    """The error of icefloe that failed a task, from what Spark raised for it; None: it is none."""
    found = _FOUND.search(str(error))
    if found is None:
        return None
    said = json.loads(found[1])
    kind = getattr(errors, said["type"], IcefloeError)
    if not (isinstance(kind, type) and issubclass(kind, IcefloeError)):
        kind = IcefloeError
    rebuilt: IcefloeError = kind(said["message"], kind=said["kind"])
    return rebuilt


@contextmanager
def task_errors_raised() -> Iterator[None]:
    """Raise what failed a task as itself, and Spark's own error as its cause."""
    try:
        yield
    except IcefloeError:
        raise
    except Exception as error:
        found = task_error(error)
        if found is None:
            raise
        raise found from error
