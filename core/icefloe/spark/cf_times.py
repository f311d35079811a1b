"""Times that are stored as counts, in units of CF such as `hours since 2026-01-01`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEPS = {
    "days": 86_400_000_000,
    "hours": 3_600_000_000,
    "minutes": 60_000_000,
    "seconds": 1_000_000,
    "milliseconds": 1_000,
    "microseconds": 1,
}
_NAMES = {
    **{name: name for name in _STEPS},
    **{name[:-1]: name for name in _STEPS},
    "d": "days",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "min": "minutes",
    "mins": "minutes",
    "s": "seconds",
    "sec": "seconds",
    "secs": "seconds",
    "ms": "milliseconds",
    "msec": "milliseconds",
    "us": "microseconds",
}
_UNITS = re.compile(r"\s*(\w+)\s+since\s+(.+?)\s*", re.IGNORECASE)
_REFERENCE = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ]+(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6})\d*)?)?)?)?\s*(?:Z|UTC|[+]?0?0:?00)?"
)
_GREGORIAN = np.datetime64("1582-10-15", "us")
_CALENDARS = frozenset({"standard", "gregorian", "proleptic_gregorian"})


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """Units of time counts.

    Attributes:
        text: as they are written.
        step: microseconds of one.
        reference: where counting begins, in microseconds since 1970.
    """

    text: str
    step: int
    reference: int

    @classmethod
    def of(cls, units: Any, calendar: Any = None) -> TimeUnits | None:
        """The units that attributes tell; None if there are none, or in another calendar."""
        if not isinstance(units, str) or (found := _UNITS.fullmatch(units)) is None:
            return None
        name = _NAMES.get(found[1].lower())
        reference = _reference(found[2])
        known = str(calendar or "standard").lower()
        if name is None or reference is None or known not in _CALENDARS:
            return None
        if known != "proleptic_gregorian" and reference < _GREGORIAN:
            # The days before were counted by another calendar.
            return None
        return cls(units, _STEPS[name], int(reference.astype(np.int64)))

    def encode(self, times: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Times as counts.

        Raises:
            InvalidInputError: the type has no room for one of them, such as 00:30 in whole hours.
        """
        exact = times.astype("M8[us]")
        odd = np.isnat(times) | (exact != times)
        return self._counts(exact.astype(np.int64), dtype, times, odd)

    def recode(self, counts: NDArray[Any], old: TimeUnits, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Counts in other units as counts in these.

        Raises:
            InvalidInputError: the type has no room for one of them.
        """
        if counts.dtype.kind in "iu":
            moments = counts.astype(np.int64) * old.step + old.reference
            odd = (moments - old.reference) // old.step != counts
        else:
            steps = counts.astype("f8") * old.step
            odd = ~(np.abs(steps) < 2.0**62)
            moments = np.rint(np.where(odd, 0, steps)).astype(np.int64) + old.reference
            # Digits of floats end somewhere: a day is 86,400,000,000 of them.
            odd |= np.abs(np.rint(steps) - steps) > np.abs(np.spacing(counts)) * old.step
        return self._counts(moments, dtype, counts, odd)

    def _counts(
        self,
        moments: NDArray[np.int64],
        dtype: np.dtype[Any],
        told: NDArray[Any],
        odd: NDArray[np.bool_],
    ) -> NDArray[Any]:
        since = moments - self.reference
        if dtype.kind in "iu":
            counts = (since // self.step).astype(dtype)
            odd = odd | (counts.astype(np.int64) * self.step != since)
        else:
            counts = (since / self.step).astype(dtype)
            near = np.abs(np.spacing(counts)).astype("f8") * self.step
            odd = odd | (np.abs(counts.astype("f8") * self.step - since) > near)
        if bool(odd.any()):
            raise InvalidInputError(
                f"{told[odd][0]} is no count of {dtype} in {self.text!r}", kind="inexact-time"
            )
        return counts


def _reference(text: str) -> np.datetime64 | None:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    year, month, day, *rest = (part or "0" for part in found.groups())
    hour, minute, second, fraction = (*rest,)
    date = f"{int(year):04}-{int(month):02}-{int(day):02}"
    time = f"{int(hour):02}:{int(minute):02}:{int(second):02}.{fraction:0<6}"
    try:
        return np.datetime64(f"{date}T{time}", "us")
    except ValueError:
        return None
