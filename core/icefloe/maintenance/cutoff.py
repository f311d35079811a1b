"""The cutoff of a garbage collection: what is older, for certain, may go."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

_SECOND = timedelta(seconds=1)


def is_before(modified: datetime, cutoff: datetime) -> bool:
    """Whether an object was written before the cutoff for certain.

    Some stores cut times down to whole seconds, so such an object may be a second younger.
    """
    return modified < cutoff if modified.microsecond else modified + _SECOND <= cutoff
