"""Running maintenance tasks on executors: where they work, how many there are, how they fail."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ReadOnlyError,
)
from icefloe.maintenance.listing import WHOLE
from icefloe.spark.writing import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

    from icefloe.assets import Assets
    from icefloe.format.ragged import Bytes
    from icefloe.storage import Storage

TASKS_PER_CORE = 3
ROWS_PER_TASK = 2**21
"""Rows of ids that one task may hold."""
LISTINGS = 8
"""Prefixes that one task lists at a time."""

_LASTING = (
    FormatError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ReadOnlyError,
)
"""What another attempt would meet again."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of a repository, for tasks; a pickle of it holds no secrets."""

    pickled: bytes

    @classmethod
    def of(cls, assets: Assets) -> Place:
        return cls(_keep(pickle.dumps(assets), assets))

    def open(self) -> Assets:
        """Tasks of one process share it, with its connections and caches.

        On the driver, it is what the place was made of, with the secrets that it may hold.
        """
        if self.pickled not in _opened:
            _keep(self.pickled, pickle.loads(self.pickled))
        return _opened[self.pickled]


_opened: dict[bytes, Assets] = {}
_MAX_OPENED = 16


def _keep(pickled: bytes, assets: Assets) -> bytes:
    _opened.pop(pickled, None)
    while len(_opened) >= _MAX_OPENED:
        del _opened[next(iter(_opened))]
    _opened[pickled] = assets
    return pickled


@dataclass(frozen=True, slots=True)
class _Failure:
    error: IcefloeError


def run_tasks[I, O](
    context: SparkContext, function: Callable[[I], O], items: Sequence[I], description: str
) -> list[O]:
    """One task for each item; their answers.

    Tasks are tried again as Spark is told to, but for errors that would come again: those are
    raised as they are, as on a single machine.
    """
    found = run(context, partial(_attempt, function), items, f"icefloe: {description}")
    answers = []
    for answer in found:
        if isinstance(answer, _Failure):
            raise answer.error
        answers.append(answer)
    return answers


def _attempt[I, O](function: Callable[[I], O], item: I) -> O | _Failure:
    try:
        return function(item)
    except _LASTING as error:
        return _Failure(error)


def groups(context: SparkContext, ids: Bytes, at_most: int | None = None) -> list[Bytes]:
    """Ids, cut into as many parts as there shall be tasks."""
    return [ids[start:stop] for start, stop in cuts(context, len(ids), at_most)]


def cuts(context: SparkContext, count: int, at_most: int | None = None) -> list[tuple[int, int]]:
    """Where to cut so many things into parts for tasks."""
    parts = min(count, context.defaultParallelism * TASKS_PER_CORE, at_most or count)
    return [*pairwise(np.linspace(0, count, parts + 1).astype(int).tolist())] if count else []


def spans(context: SparkContext, storage: Storage, rows: int = 0) -> list[range]:
    """Parts of all ids, one for each task that lists them and holds its share of so many rows."""
    # A local folder is read as a whole, whatever the prefix: more tasks than cores only cost.
    per_core = 1 if storage.url.startswith("file:") else TASKS_PER_CORE
    wanted = max(context.defaultParallelism * per_core, -(-rows // ROWS_PER_TASK))
    # A power of two cuts between letters, or within one letter.
    count = min(2 ** (wanted - 1).bit_length(), len(WHOLE))
    size = len(WHOLE) // count
    return [range(start, start + size) for start in range(0, len(WHOLE), size)]
