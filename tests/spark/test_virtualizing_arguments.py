"""Files and options of `virtualize` that would leave arrays behind, or change nothing, are told."""

import h5py
import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe import spark as ice


class Place:
    def __init__(self, folder):
        self.folder = folder / "files"
        self.folder.mkdir()
        prefix = f"file://{self.folder}/"
        config = RepositoryConfig()
        store = icefloe.local_filesystem_store(str(self.folder))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
        access = {prefix: None}
        self.repo = Repository.create(
            str(folder / "repo"), config=config, authorize_virtual_chunk_access=access
        )

    def file(self, day, *names, dtype="i8", units="hours since 2026-01-01", count=2):
        hours = np.arange(day * 24, day * 24 + 12 * count, 12)
        data = xr.Dataset(
            dict.fromkeys(("t2m", *names), ("time", hours * 1.0)),
            coords={"time": ("time", hours.astype(dtype), {"units": units})},
        )
        path = self.folder / f"{day}{''.join(names)}{dtype}.nc"
        data.to_netcdf(path)
        return path

    def virtualize(self, spark, *files, **options):
        session = self.repo.writable_session("main")
        ice.virtualize(spark, session, [*files], **({"concat_dim": "time"} | options))
        session.commit("virtual")

    def refused(self, spark, told, *files, **options):
        session = self.repo.writable_session("main")
        with pytest.raises(InvalidInputError, match=told):
            ice.virtualize(spark, session, [*files], **({"concat_dim": "time"} | options))
        assert not session.has_uncommitted_changes

    def open(self):
        store = self.repo.readonly_session("main").store
        return xr.open_zarr(store, consolidated=False, chunks=None, decode_times=False)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_file_that_lacks_a_variable_of_the_dimension_leaves_no_array_shorter(spark, place):
    place.virtualize(spark, place.file(0, "rain"))
    told = r"/rain has the dimension time, too, and would stay at 2.*resize it"
    place.refused(spark, told, place.file(1))
    place.virtualize(spark, place.file(1, "rain"))
    assert place.open().sizes == {"time": 4}


def test_a_file_with_one_variable_more_is_told_to_drop_it(spark, place):
    place.virtualize(spark, place.file(0))
    more = place.file(1, "rain")
    place.refused(spark, r"differ in length.*drop=\['rain'\]", more)
    place.virtualize(spark, more, drop=["rain"])
    assert place.open().sizes == {"time": 4}


def test_a_file_that_is_there_already_is_refused(spark, place):
    first = place.file(0)
    place.refused(spark, r"/time would have the label 0 twice", first, first)
    place.virtualize(spark, first, place.file(1))
    place.refused(spark, r"/time would have the label 24 twice", place.file(2), place.file(1))
    place.virtualize(spark, place.file(2))
    assert place.open()["time"].values.tolist() == [0, 12, 24, 36, 48, 60]


@pytest.mark.parametrize("option", ["drop", "loadable"])
def test_names_of_no_variable_are_refused_with_those_that_there_are(spark, place, option):
    told = rf"no file has the variable notes of {option}=; there are t2m, time"
    place.refused(spark, told, place.file(0), **{option: ["notes", "t2m"]})


def test_a_variable_that_some_files_have_may_be_dropped(spark, place):
    place.virtualize(spark, place.file(0), place.file(1, "rain"), drop=["rain"])
    assert place.open().sizes == {"time": 4}


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_one_file_is_a_list_of_one(spark, place, kind):
    with pytest.raises(InvalidInputError, match=r"files is a list: \['/.*0i8.nc'\]"):
        ice.virtualize(spark, place.repo.writable_session("main"), kind(place.file(0)))


@pytest.mark.parametrize("dtypes", [("i8", "f8", "i4"), ("f8", "i4", "i8")])
def test_times_of_another_type_are_counted_in_the_one_that_is_there(spark, place, dtypes):
    files = [place.file(day, dtype=dtype) for day, dtype in enumerate(dtypes)]
    place.virtualize(spark, *files[:2])
    place.virtualize(spark, files[2])
    found = place.open()["time"]
    assert found.dtype == dtypes[0]
    assert found.values.tolist() == [0, 12, 24, 36, 48, 60]


def test_times_that_the_type_cannot_count_are_refused(spark, place):
    place.virtualize(spark, place.file(0))
    path = place.file(1, dtype="f8")
    with h5py.File(path, "a") as file:
        file["time"][0] = 24.5
    place.refused(spark, r"24.5 is no count of int64.*drop=\['time'\]", path)
