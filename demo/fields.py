"""Synthetic weather of one July: hourly temperature and precipitation on a lat/lon grid.

Everything follows from the seed and the hour, so each writer computes its own day, and whoever
checks the archive computes the same values again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    type Field = NDArray[np.float32]
    type Spectrum = NDArray[np.complex128]

type Source = Literal["sound", "drifting", "broken"]
"""The state of the sensors: sound, reading too warm in one region, or broken in another."""

SOURCES: tuple[Source, ...] = ("sound", "drifting", "broken")
SEED = 20260701
FIRST_DAY = date(2026, 7, 1)
HOURS = 24
LATITUDES = np.arange(89.5, -90, -1.0)
LONGITUDES = np.arange(-179.5, 180, 1.0)
SHAPE = (LATITUDES.size, LONGITUDES.size)
LAND_SHARE = 0.3

_DRIFT_AT = (24.0, 52.0)
_DRIFT_KELVIN = 2.5
_DRIFT_DEGREES = 22.0
_BROKEN_BAND = (18.0, 27.0)
_KELVIN = 273.15


def day_number(day: str) -> int:
    """How many days after the first; days are written as 2026-07-02."""
    return (date.fromisoformat(day) - FIRST_DAY).days


def day_name(number: int) -> str:
    return (FIRST_DAY + timedelta(days=number)).isoformat()


def hours_of(day: str) -> slice:
    """Where the day lies on the time axis."""
    return slice(HOURS * day_number(day), HOURS * (day_number(day) + 1))


def temperature(hours: Sequence[int] | NDArray[np.int64], source: Source = "sound") -> Field:
    """2 m temperature in kelvin, in steps of 1/64 K.

    Drifting stations read too warm; a broken sensor reports degrees Celsius in a band of
    longitudes.

    Raises:
        ValueError: there is no such source.
    """
    if source not in SOURCES:
        raise ValueError(f"no such source: {source}; there are {', '.join(SOURCES)}")
    latitude = np.radians(LATITUDES)[:, None]
    thermal_equator = np.radians(9)
    annual = 301 - 52 * np.sin(latitude - thermal_equator) ** 2 - 14 * np.sin(-latitude).clip(0)
    annual = annual + 6 * land() * np.sin(latitude) - 22 * elevation()
    swing = (0.6 + 6.5 * land()) * np.cos(latitude - thermal_equator).clip(0)
    storms = 1.2 + 5.5 * np.sin(latitude) ** 2 * np.cos(latitude)
    found = np.empty((len(hours), *SHAPE), dtype=np.float32)
    for at, hour in enumerate(hours):
        solar = (hour + LONGITUDES / 15) * np.pi / 12
        weather = storms * _synoptic().at(float(hour))
        found[at] = annual + swing * np.cos(solar - 14 * np.pi / 12) + weather
    if source == "drifting":
        found += _drift()
    found = _rounded(found, 64)
    if source == "broken":
        west, east = _BROKEN_BAND
        found[:, :, (west <= LONGITUDES) & (east > LONGITUDES)] -= np.float32(_KELVIN)
    return found


def precipitation(hours: Sequence[int] | NDArray[np.int64]) -> Field:
    """Rain in mm/h, in steps of 1/128: none in most places, a lot in few."""
    wet = _zone(7, 6) * 0.9 + _zone(52, 13) * 0.55 + _zone(-50, 14) * 0.65 - _zone(25, 9) * 0.5
    found = np.empty((len(hours), *SHAPE), dtype=np.float32)
    for at, hour in enumerate(hours):
        solar = (hour + LONGITUDES / 15) * np.pi / 12
        showers = 0.35 * land() * _zone(7, 14) * np.cos(solar - 16 * np.pi / 12)
        front = _fronts().at(float(hour)) * 1.05 + _cells().at(float(hour)) * 0.3
        excess = (front + wet + showers - 1.45).clip(0)
        found[at] = 2.4 * excess**1.8
    return _rounded(found, 128)


@cache
def land() -> NDArray[np.float64]:
    """1 on land, 0 at sea: the highest parts of a rough landscape."""
    return (_relief() > np.quantile(_relief(), 1 - LAND_SHARE)).astype(np.float64)


@cache
def elevation() -> NDArray[np.float64]:
    """Of the land, from 0 to 1."""
    height = (_relief() - np.quantile(_relief(), 1 - LAND_SHARE)).clip(0)
    return np.asarray((height / height.max()) ** 1.5)


@dataclass(frozen=True, slots=True)
class _Waves:
    """Noise that drifts east and changes its shape, as a sum of waves: known at every hour."""

    spectrum: Spectrum
    frequency: NDArray[np.float64]
    """Radians per hour."""
    scale: float

    def at(self, hour: float) -> NDArray[np.float64]:
        moved = self.spectrum * np.exp(-1j * self.frequency * hour)
        return np.fft.irfft2(moved, s=(2 * SHAPE[0], SHAPE[1]))[: SHAPE[0]] / self.scale


def _waves(
    seed: int, *, size: float, slope: float, speed: float, largest: float, stretch: float = 1.0
) -> _Waves:
    """Noise of deviation 1.

    Args:
        seed: tells one from another.
        size: degrees, below which it is smooth.
        slope: how fast amplitude falls with the wave number.
        speed: eastward, degrees per hour.
        largest: the wave number where amplitudes are highest, about.
        stretch: how much longer structures are along a meridian than along a parallel.
    """
    rng = np.random.default_rng([SEED, seed])
    # Twice the latitudes: what wraps around at the poles is cut off.
    south = np.fft.fftfreq(2 * SHAPE[0], d=1 / 360)[:, None]
    east = np.fft.rfftfreq(SHAPE[1], d=1 / 360)[None, :]
    number = np.hypot(south * stretch, east)
    number[0, 0] = 1
    # Few waves around the globe are weak, else one of them would fill the map.
    amplitude = number**-slope * np.exp(-((number * size / 360) ** 2) - (largest / number) ** 2)
    amplitude[0, 0] = 0
    phases = rng.normal(size=number.shape) + 1j * rng.normal(size=number.shape)
    turning = rng.normal(0, 0.015, number.shape) * np.sqrt(number)
    spectrum: Spectrum = np.multiply(amplitude, phases)
    waves = _Waves(spectrum, np.radians(east * speed) + turning, 1.0)
    return _Waves(waves.spectrum, waves.frequency, float(waves.at(0.0).std()))


@cache
def _relief() -> NDArray[np.float64]:
    return _waves(25, size=3, slope=2.2, speed=0, largest=2.5).at(0.0)


@cache
def _synoptic() -> _Waves:
    return _waves(2, size=9, slope=1.6, speed=0.8, largest=3)


@cache
def _fronts() -> _Waves:
    return _waves(3, size=6, slope=1.6, speed=0.9, largest=6, stretch=0.55)


@cache
def _cells() -> _Waves:
    return _waves(4, size=2.5, slope=1.0, speed=0.6, largest=10)


@cache
def _drift() -> Field:
    """How much too warm the stations of one region read."""
    latitude, longitude = _DRIFT_AT
    north = LATITUDES[:, None] - latitude
    east = (LONGITUDES - longitude) * np.cos(np.radians(latitude))
    distance = np.hypot(north, east) / _DRIFT_DEGREES
    reach = np.exp(-(distance**4)) * (0.75 + 0.25 * _synoptic().at(0.0))
    return np.asarray(_DRIFT_KELVIN * reach * land(), dtype=np.float32)


def _zone(latitude: float, width: float) -> NDArray[np.float64]:
    return np.asarray(np.exp(-(((LATITUDES - latitude) / width) ** 2))[:, None])


def _rounded(values: ArrayLike, steps: int) -> Field:
    return (np.round(np.asarray(values) * steps) / steps).astype(np.float32)
