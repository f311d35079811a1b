"""The demonstration: a weather archive that grows, is corrected, and is read as it was."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zarr

import icefloe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    type Field = NDArray[np.float32]

LATITUDES, LONGITUDES, HOURS = 90, 180, 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the run left behind: everything it prints is computed from the repository."""

    first_snapshot: str
    last_snapshot: str
    tagged_mean: float
    corrected_mean: float


def temperature(day: int) -> Field:
    """Hourly 2 m temperature in kelvin: warm tropics, a daily cycle after the sun, weather."""
    weather = np.random.default_rng(day).normal(0, 1.5, (HOURS, LATITUDES, LONGITUDES))
    latitude = np.linspace(-89, 89, LATITUDES)[:, None]
    solar_time = np.arange(HOURS)[:, None, None] + np.linspace(0, 24, LONGITUDES)
    climate = 303 - 55 * np.sin(np.radians(latitude)) ** 2
    cycle = 6 * np.sin((solar_time - 9) * np.pi / 12) * np.cos(np.radians(latitude))
    return (climate + cycle + weather).astype(np.float32)


def run(folder: Path, say: Callable[[str], None] = print) -> Outcome:
    """Tell the story in a repository below `folder`, which must not hold one yet."""
    repo = icefloe.Repository.create(folder)
    say(f"Created {repo.storage.url}")

    with repo.transaction("main", message="Create the archive") as store:
        group = zarr.group(store, attributes={"title": "Synthetic hourly temperature"})
        group.create_array(
            "t2m",
            shape=(HOURS, LATITUDES, LONGITUDES),
            chunks=(6, 45, 90),
            dtype="float32",
            dimension_names=("time", "latitude", "longitude"),
            attributes={"units": "K"},
        )[:] = temperature(0)
    first = repo.lookup_branch("main")
    say(f"  {first}  one day of {HOURS} x {LATITUDES} x {LONGITUDES} values")

    for day in (1, 2):
        started = time.perf_counter()
        with repo.transaction("main", message=f"Append day {day}", metadata={"day": day}) as store:
            array = zarr.open_array(store, path="t2m")
            array.resize((HOURS * (day + 1), LATITUDES, LONGITUDES))
            array[HOURS * day :] = temperature(day)
        spent = time.perf_counter() - started
        say(f"  {repo.lookup_branch('main')}  day {day} appended in {spent:.2f} s")

    repo.create_tag("three-days", repo.lookup_branch("main"))
    say("Tagged three-days")

    with repo.transaction("main", message="Correct a sensor offset on day 1") as store:
        array = zarr.open_array(store, path="t2m")
        array[HOURS : 2 * HOURS] = np.asarray(array[HOURS : 2 * HOURS]) - np.float32(0.5)
    last = repo.lookup_branch("main")
    say(f"  {last}  day 1 corrected")

    tagged, corrected = (
        float(np.asarray(zarr.open_array(session.store, path="t2m", mode="r")[HOURS:48]).mean())
        for session in (repo.readonly_session(tag="three-days"), repo.readonly_session("main"))
    )
    say(f"Mean of day 1: {tagged:.3f} K at the tag, {corrected:.3f} K on main")
    _say_history(repo, folder, say)
    return Outcome(first, last, tagged, corrected)


def _say_history(repo: icefloe.Repository, folder: Path, say: Callable[[str], None]) -> None:
    say("History of main, newest first")
    for snapshot in repo.ancestry(branch="main"):
        say(f"  {snapshot.id}  {snapshot.written_at:%Y-%m-%d %H:%M:%S}  {snapshot.message}")
    say("Operations, newest first")
    for update in repo.ops_log():
        say(f"  {update.kind.name.lower().replace('_', ' '):<18} {update.name or ''}")
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    say(f"On disk: {len(files)} objects, {size:.1f} MiB")
