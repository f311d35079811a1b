"""Dask takes arrays of one name for one array, so names must tell versions apart."""

import os
import pickle

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import MemoryStorage, Repository
from icefloe.xarray import to_icechunk


def field(value):
    return xr.Dataset({"a": (("x", "y"), np.full((4, 4), value)), "x": np.arange(4)})


def commit(repo, value):
    session = repo.writable_session("main")
    to_icechunk(field(value), session, mode="w", encoding={"a": {"chunks": (2, 2)}})
    return session.commit(f"all {value}")


def difference(new, old):
    return int((new.a - old.a).max().compute(scheduler="synchronous"))


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    """URL and options; on S3 no file's time changes with a commit."""
    if request.param == "local":
        return str(tmp_path / "repository"), {}
    server = request.getfixturevalue("s3_server")
    return server.root(), server.options


def by_url(repo, place):
    url, options = place
    return xr.open_dataset(url, engine="icefloe", chunks={}, storage_options=options)


def by_repository(repo, place):
    return xr.open_dataset(repo, engine="icefloe", chunks={})


def by_session(repo, place):
    return xr.open_dataset(repo.readonly_session("main"), engine="icefloe", chunks={})


def by_writable_session(repo, place):
    return xr.open_dataset(repo.writable_session("main"), engine="icefloe", chunks={})


def by_store(repo, place):
    return xr.open_zarr(repo.readonly_session("main").store, chunks={}, consolidated=False)


def by_writable_store(repo, place):
    return xr.open_zarr(repo.writable_session("main").store, chunks={}, consolidated=False)


def by_tree(repo, place):
    url, options = place
    tree = xr.open_datatree(url, engine="icefloe", chunks={}, storage_options=options)
    return tree.to_dataset()


def by_chunking_later(repo, place):
    url, options = place
    return xr.open_dataset(url, engine="icefloe", storage_options=options).chunk({"x": 2})


DOORS = [
    by_url,
    by_repository,
    by_session,
    by_writable_session,
    by_store,
    by_writable_store,
    by_tree,
    by_chunking_later,
]


@pytest.mark.parametrize("door", DOORS)
def test_two_versions_of_one_branch_are_two_arrays(place, door):
    url, options = place
    repo = Repository.create(url, options)
    commit(repo, 1)
    # The time of a local folder must not be what tells them apart.
    if "://" not in url:
        os.utime(url, (1, 1))
    old = door(repo, place)
    commit(repo, 101)
    if "://" not in url:
        os.utime(url, (1, 1))
    new = door(repo, place)
    assert difference(new, old) == 100
    assert difference(old, new) == -100


@pytest.mark.parametrize("door", [by_url, by_repository, by_session, by_store, by_tree])
def test_one_version_opened_twice_is_one_array(place, door):
    repo = Repository.create(*place)
    commit(repo, 1)
    first, second = door(repo, place), door(repo, place)
    assert first.a.data.name == second.a.data.name


def test_uncommitted_changes_are_neither_the_base_nor_another_session():
    repo = Repository.create(MemoryStorage())
    commit(repo, 1)
    session, other = repo.writable_session("main"), repo.writable_session("main")
    base = by_store(repo, None)
    before = xr.open_zarr(session.store, chunks={}, consolidated=False)
    zarr.open_array(session.store, path="a")[:] = 5
    zarr.open_array(other.store, path="a")[:] = 7
    after = xr.open_zarr(session.store, chunks={}, consolidated=False)
    others = xr.open_dataset(other, engine="icefloe", chunks={})
    names = {each.a.data.name for each in (base, before, after, others)}
    assert len(names) == 4
    assert difference(others, after) == 2
    assert difference(others, base) == 6


def test_a_store_says_that_it_is_read_only_of_a_session_that_is_not():
    repo = Repository.create(MemoryStorage())
    commit(repo, 1)
    session = repo.writable_session("main")
    store = session.store.with_read_only(True)
    before = xr.open_zarr(store, chunks={}, consolidated=False)
    zarr.open_array(session.store, path="a")[:] = 5
    after = xr.open_zarr(store, chunks={}, consolidated=False)
    assert before.a.data.name != after.a.data.name


def test_a_zarr_array_in_dask_is_named_after_its_version():
    repo = Repository.create(MemoryStorage())
    commit(repo, 1)
    names = []
    for value in (1, 101):
        commit(repo, value)
        session = repo.writable_session("main")
        arrays = [zarr.open_array(session.store, path="a", mode="r")]
        arrays.append(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r"))
        names += [da.from_zarr(array).name for array in arrays]
    assert len({*names}) == 4
    again = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert da.from_zarr(again).name == names[-1]


def test_two_repositories_with_the_same_snapshots_have_arrays_of_their_own(tmp_path):
    first = Repository.create(str(tmp_path / "a"))
    commit(first, 1)
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").rglob("*"):
        target = tmp_path / "b" / path.relative_to(tmp_path / "a")
        target.mkdir(exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    second = Repository.open(str(tmp_path / "b"))
    assert by_store(first, None).a.data.name != by_store(second, None).a.data.name


def test_what_was_opened_is_an_ordinary_dataset():
    repo = Repository.create(MemoryStorage())
    commit(repo, 1)
    plain = xr.open_zarr(repo.readonly_session("main").store, chunks=None, consolidated=False)
    ours = xr.open_dataset(repo, engine="icefloe")
    xr.testing.assert_identical(ours, plain)
    xr.testing.assert_identical(ours.isel(x=0).load(), plain.isel(x=0).load())
    assert type(ours.chunk({}).a.variable) is xr.Variable
    stacked = xr.open_dataset(repo, engine="icefloe")
    stacked = stacked.stack(z=("x", "y")).unstack().transpose("x", "y").isel(x=slice(1))
    stacked = stacked.drop_vars("y").chunk({"x": 1})
    xr.testing.assert_equal(stacked.compute(), plain.isel(x=slice(1)))
    copy = pickle.loads(pickle.dumps(ours.load()))
    xr.testing.assert_identical(copy.a.chunk({}), plain.a.chunk({}))
    assert type((ours.a + 1).variable) is xr.Variable
