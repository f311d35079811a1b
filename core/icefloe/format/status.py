"""The availability of a repository."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format import wire
from icefloe.format.ragged import Ragged
from icefloe.format.writing import TableRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.format.reading import Tables


class Availability(IntEnum):
    """Whether a repository takes writes, reads only, or neither."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Availability since `set_at` (microseconds since the epoch), and why it is limited.

    A number that no `Availability` has comes from a newer writer; it is kept as it is.
    """

    availability: Availability | int
    set_at: int
    reason: str | None = None


def status_rows(statuses: Sequence[RepoStatus]) -> TableRows:
    """The tables to write."""
    return TableRows(
        wire.REPO_STATUS,
        len(statuses),
        {
            "availability": np.array([int(status.availability) for status in statuses], np.uint8),
            "set_at": np.array([status.set_at for status in statuses], np.uint64),
            "limited_availability_reason": Ragged.of_text(status.reason for status in statuses),
        },
    )


def read_status(present: NDArray[np.bool_], tables: Tables) -> tuple[RepoStatus | None, ...]:
    """A status for each row of `present`, None where there is none."""
    reasons = tables.text("limited_availability_reason").tolist()
    found = iter(
        RepoStatus(_availability(value), set_at, None if reason is None else reason.decode())
        for value, set_at, reason in zip(
            tables.scalar("availability").tolist(),
            tables.scalar("set_at").tolist(),
            reasons,
            strict=True,
        )
    )
    return tuple(next(found) if there else None for there in present.tolist())


def _availability(value: int) -> Availability | int:
    return Availability(value) if value in set(Availability) else value
