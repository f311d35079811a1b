"""Files that differ only in how they count time, or in how hard they were compressed."""

import os
import subprocess
import sys

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import InvalidInputError, RepositoryConfig
from icefloe import spark as ice
from icefloe.spark.cf_times import TimeUnits
from spark.test_virtualizing import VIRTUAL, Place

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning"),
]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, RepositoryConfig(inline_chunk_threshold_bytes=16))


def save(place, number, units, times=(0, 6, 12, 18), dtype="i4", level=1, **attributes):
    times = np.array(times, dtype)
    data = xr.Dataset(
        {
            "t2m": (("time", "x"), np.full((len(times), 3), number, "f4")),
            "edges": (("time", "side"), np.stack([times, times + 6], axis=1)),
        },
        coords={"time": ("time", times, {"units": units, "bounds": "edges", **attributes})},
    )
    path = place.folder / f"{number}.nc"
    how = {"zlib": True, "complevel": level, "chunksizes": (4, 3)}
    data.to_netcdf(path, encoding={"t2m": how, "time": {"_FillValue": None}})
    return path


def counts(place, path="time"):
    store = place.repo.readonly_session("main").store
    return zarr.open_array(store, path=path, mode="r")[...]


def test_times_are_counted_from_where_the_first_file_begins(spark, place):
    files = [save(place, day, f"hours since 2026-01-0{day + 1}") for day in range(3)]
    place.virtualize(spark, files[:2], concat_dim="time")
    place.virtualize(spark, files[2:], concat_dim="time")
    wanted = np.arange(0, 72, 6)
    np.testing.assert_array_equal(counts(place), wanted)
    np.testing.assert_array_equal(counts(place, "edges"), np.stack([wanted, wanted + 6], axis=1))
    assert place.kinds("/t2m") == {VIRTUAL}
    found = xr.open_zarr(place.stores()[1], consolidated=False, chunks=None)
    wanted = np.datetime64("2026-01-01", "ns") + wanted * np.timedelta64(1, "h")
    np.testing.assert_array_equal(found.time, wanted)


def test_files_are_sorted_by_when_they_are_and_not_by_what_they_count(spark, place):
    files = [
        save(place, 1, "hours since 2026-01-02", [0, 6, 12, 18]),
        save(place, 0, "hours since 2025-12-31", [24, 30, 36, 42]),
    ]
    place.virtualize(spark, files, concat_dim="time", sort_by="time")
    np.testing.assert_array_equal(counts(place), np.arange(24, 72, 6))


def test_times_that_cannot_be_counted_so_are_refused_by_name(spark, place):
    files = [
        save(place, 0, "days since 2026-01-01", [0, 1, 2, 3]),
        save(place, 1, "hours since 2026-01-05"),
    ]
    with pytest.raises(InvalidInputError, match=r"/(time|edges), which .* 'days since 2026-01-01'"):
        ice.virtualize(spark, place.session(), files, concat_dim="time")
    other = save(place, 2, "days since 2026-01-05", [0, 1, 2, 3], calendar="noleap")
    with pytest.raises(InvalidInputError, match=r"'time' of .* has the attribute"):
        ice.virtualize(spark, place.session(), [files[0], other], concat_dim="time")


def test_how_hard_files_were_compressed_makes_no_difference(spark, place):
    files = [
        save(place, day, "hours since 2026-01-01", np.arange(4) + 4 * day, level=day + 1)
        for day in range(3)
    ]
    place.virtualize(spark, files[:2], concat_dim="time", drop=["edges"])
    place.virtualize(spark, files[2:], concat_dim="time", drop=["edges"])
    assert place.kinds("/t2m") == {VIRTUAL}
    place.check("t2m", np.repeat(np.arange(3, dtype="f4"), 4)[:, None] * np.ones(3, "f4"))


def test_a_misspelled_dimension_is_refused_with_those_that_there_are(spark, place):
    files = [save(place, day, "hours since 2026-01-01") for day in range(2)]
    session = place.session()
    with pytest.raises(InvalidInputError, match="concat_dim='tiem'; there are side, time, x"):
        ice.virtualize(spark, session, files, concat_dim="tiem")
    assert not session.has_uncommitted_changes
    place.virtualize(spark, files, concat_dim="run", new_dim=True, drop=["edges"])
    assert counts(place, "t2m").shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("units", "values", "old", "wanted"),
    [
        ("hours since 2026-01-01", [0, 5], "hours since 2026-01-02 06:00", [30, 35]),
        ("days since 2026-01-01", [24], "hours since 2026-01-01", [1]),
        ("hours since 2026-01-01", [1.5], "days since 2026-01-01", [36.0]),
        ("seconds since 1970-01-01", [-1], "days since 1970-01-02T00:00:00Z", [0]),
        ("days since 2000-01-01", [0.1, 1e6 / 3], "days since 1999-12-31", [-0.9, 1e6 / 3 - 1]),
    ],
)
def test_counts_are_carried_over_exactly(units, values, old, wanted):
    found = TimeUnits.of(units).recode(np.array(values), TimeUnits.of(old), np.array(wanted).dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_what_is_no_unit_of_time_or_another_calendar_is_left_alone():
    for units, calendar in [
        ("K", None),
        (None, None),
        ("months since 2026-01-01", None),
        ("days since yesterday", None),
        ("days since 2026-02-30", None),
        ("days since 2026-01-01", "noleap"),
        ("days since 0001-01-01", None),
    ]:
        assert TimeUnits.of(units, calendar) is None
    assert TimeUnits.of("days since 0001-01-01", "proleptic_gregorian") is not None


FILTERS = {"bzip2": 307, "zstd": 32015, "blosc_lz4": 32001}


def save_filtered(path, name):
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("y", 5)
        data.createDimension("x", 700)
        how = {"compression": name, "chunksizes": (2, 400), "shuffle": name == "zstd"}
        data.createVariable("v", "i4", ("y", "x"), **how)[:] = np.arange(3500).reshape(5, 700)


def save_unknown(path):
    """What a program would write that has a filter of its own."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((4,))
    plan.set_filter(32013, h5py.h5z.FLAG_OPTIONAL, (1,))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((4,))
        dataset = h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT32, space, plan)
        dataset.write_direct_chunk((0,), b"whatever")
        file["plain"] = np.arange(3)


READ = """
import sys, h5py, numpy as np
from icefloe.spark.hdf5 import read_values, read_variables
from icefloe.spark.hdf5_files import open_hdf5
with open_hdf5("file://" + sys.argv[1], {}) as opened:
    (one,) = [v for v in read_variables(opened, "/", frozenset()) if v.name == "v"]
    assert not h5py.h5z.filter_avail(int(sys.argv[2]))
    try:
        values = np.frombuffer(read_values(opened, "/", one), one.dtype).reshape(one.shape)
        assert (values == np.arange(3500).reshape(5, 700)).all()
        print("read")
    except Exception as error:
        print(type(error).__name__, error)
"""


def read_without_plugins(path, code):
    """In a process that has no filters but those of the library."""
    plain = {name: value for name, value in os.environ.items() if "HDF5_PLUGIN" not in name}
    environment = {**plain, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(code)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", FILTERS)
def test_small_variables_are_read_without_plugins_of_the_library(tmp_path, name):
    save_filtered(tmp_path / "a.nc", name)
    assert read_without_plugins(tmp_path / "a.nc", FILTERS[name]) == "read"


def test_a_filter_that_nothing_decodes_is_named(spark, place):
    path = place.folder / "a.h5"
    save_unknown(path)
    told = read_without_plugins(path, 32013)
    assert told.startswith("InvalidInputError variable 'v' of")
    assert "filter 32013" in told
    with pytest.raises(InvalidInputError, match=r"variable 'v' of .*filter 32013.*drop="):
        ice.virtualize(spark, place.session(), [path])
    place.virtualize(spark, [path], drop=["v"])
    place.check("plain", np.arange(3))
