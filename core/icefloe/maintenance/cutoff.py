"""The cutoff of maintenance: what is older, for certain, may go; and by whose clock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from icefloe.clock import MAX_CLOCK_SKEW, now, to_datetime
from icefloe.errors import StorageError
from icefloe.storage import store_time

if TYPE_CHECKING:
    from datetime import datetime

    from icefloe.storage import Storage

_SECOND = timedelta(seconds=1)


def agreed_time(storage: Storage) -> datetime:
    """The time by the store's clock, which ours must agree with.

    Whoever says "older than a day" counts from this machine's clock. If that is ahead, the cutoff
    lies later than was meant, and what writers are uploading now would count as old.

    Raises:
        StorageError: the clocks differ by more than commits accept.
    """
    before = to_datetime(now())
    stored = store_time(storage)
    ahead, behind = before - stored, stored - to_datetime(now())
    if max(ahead, behind) > timedelta(seconds=MAX_CLOCK_SKEW):
        told = f"{ahead} ahead of" if ahead > behind else f"{behind} behind"
        raise StorageError(
            f"this machine's clock is {told} the clock of {storage.url}, so a cutoff does not mean "
            "what it says: set the clock. Nothing was changed",
            kind="clocks-disagree",
        )
    return stored


def is_before(modified: datetime, cutoff: datetime) -> bool:
    """Whether an object was written before the cutoff for certain.

    Some stores cut times down to whole seconds, so such an object may be a second younger.
    """
    return modified < cutoff if modified.microsecond else modified + _SECOND <= cutoff
