"""`to_icechunk` and the engine `icefloe`, beside the official library's."""

import os
import pickle
from datetime import UTC, datetime

import dask
import dask.array as da
import icechunk
import icechunk.xarray
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
import servers
from icefloe import ConflictError, InvalidInputError, MemoryStorage, ReadOnlyError, Repository
from icefloe.xarray import to_icechunk

icechunk.set_logs_filter("error")
VALUES = np.random.default_rng(11).random((40, 200))


def dataset(first=0, *, lazy=True):
    """Dask variables and others; a scalar, a coordinate, a packed time."""
    values = da.from_array(VALUES + first, chunks=(4, 100)) if lazy else VALUES + first
    time = np.datetime64("2024-01-01", "ns") + (first + np.arange(40)) * np.timedelta64(1, "h")
    return xr.Dataset(
        {
            "t2m": (("time", "x"), values, {"units": "K"}),
            "elevation": (("x",), np.arange(200.0)),
            "version": ((), 7),
        },
        coords={"time": time},
        attrs={"title": "fields"},
    )


def both(first=0):
    return xr.concat([dataset(lazy=False), dataset(40, lazy=False)], "time", data_vars="minimal")


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "repo")


@pytest.fixture
def repo(place):
    return Repository.create(place)


@pytest.fixture
def storage(place):
    return icechunk.local_filesystem_storage(place)


def committed(repo, *objects, **options):
    session = repo.writable_session("main")
    for each in objects:
        to_icechunk(each, session, **options)
    return session.commit("written")


def read(session):
    return xr.open_zarr(session.store, consolidated=False)


@pytest.mark.parametrize("lazy", [True, False], ids=["dask", "numpy"])
def test_the_official_library_reads_what_we_write(repo, storage, lazy):
    committed(repo, dataset(lazy=lazy))
    xr.testing.assert_identical(read(repo.readonly_session("main")), dataset())
    theirs = icechunk.Repository.open(storage).readonly_session("main")
    xr.testing.assert_identical(read(theirs), dataset())


@pytest.mark.parametrize("lazy", [True, False], ids=["dask", "numpy"])
def test_we_read_what_the_official_library_writes(place, storage, lazy):
    session = icechunk.Repository.create(storage).writable_session("main")
    icechunk.xarray.to_icechunk(dataset(lazy=lazy), session)
    session.commit("written")
    xr.testing.assert_identical(xr.open_dataset(place, engine="icefloe"), dataset())


def test_both_append_to_one_another(repo, place, storage):
    committed(repo, dataset())
    theirs = icechunk.Repository.open(storage)
    session = theirs.writable_session("main")
    later = dataset(40).drop_vars(["elevation", "version"])
    icechunk.xarray.to_icechunk(later, session, append_dim="time")
    session.commit("theirs")
    xr.testing.assert_identical(read(repo.readonly_session("main")), both())
    committed(repo, dataset(80).drop_vars(["elevation", "version"]), append_dim="time")
    for reader in (repo, theirs):
        found = read(reader.readonly_session("main"))
        assert found.sizes["time"] == 120
        xr.testing.assert_identical(found.t2m[80:], dataset(80).t2m)


@pytest.mark.parametrize("scheduler", ["threads", "synchronous", "processes"])
def test_append_and_region_with_every_scheduler(repo, storage, scheduler):
    options = {"chunkmanager_store_kwargs": {"scheduler": scheduler}, "split_every": 3}
    session = repo.writable_session("main")
    to_icechunk(dataset(), session, **options)
    # Once more in the same session: the fork stands on what is not committed.
    later = dataset(40).drop_vars(["elevation", "version"])
    to_icechunk(later, session, append_dim="time", **options)
    to_icechunk(
        (later[["t2m"]] * 2).drop_vars("time"), session, region={"time": slice(20, 60)}, **options
    )
    session.commit("written")
    expected = both().t2m.values
    expected[20:60] = (VALUES + 40) * 2
    theirs = icechunk.Repository.open(storage)
    for reader in (repo, theirs):
        assert np.array_equal(read(reader.readonly_session("main")).t2m, expected)


def test_a_region_may_be_found_by_the_indexes(repo):
    committed(repo, both().chunk(time=4, x=100))
    part = dataset(40)[["t2m"]].isel(time=slice(8, 20)).chunk(time=4) * 0 - 1
    committed(repo, part, region="auto")
    expected = both().t2m.values
    expected[48:60] = -1
    assert np.array_equal(read(repo.readonly_session("main")).t2m, expected)


def test_what_is_written_by_threads_is_packed(repo, place):
    committed(repo, dataset())
    objects = os.listdir(f"{place}/chunks")
    # elevation, and the twenty blocks of t2m
    assert len(objects) <= 2


def test_nothing_is_committed(repo):
    session = repo.writable_session("main")
    to_icechunk(dataset(), session)
    assert session.has_uncommitted_changes
    assert repo.readonly_session("main").paths() == []
    xr.testing.assert_identical(read(session), dataset())


def test_modes(repo):
    committed(repo, dataset())
    session = repo.writable_session("main")
    with pytest.raises(FileExistsError):
        to_icechunk(dataset(), session)
    to_icechunk(dataset(1)[["t2m"]], session, mode="a")
    assert np.array_equal(read(session).t2m, VALUES + 1)
    assert "elevation" in read(session)
    to_icechunk(dataset(2)[["t2m"]], session, mode="w")
    assert "elevation" not in read(session)
    with pytest.raises(ValueError, match="mode='r\\+'"):
        to_icechunk(dataset(), session, mode="r+")


def test_a_data_array_comes_back_under_its_name(repo):
    committed(repo, dataset().t2m, group="named")
    committed(repo, dataset().t2m.rename(None), group="nameless")
    committed(repo, dataset().time, group="coordinate")
    store = repo.readonly_session("main").store
    found = xr.open_dataarray(store, engine="zarr", group="named", consolidated=False)
    xr.testing.assert_identical(found, dataset().t2m)
    for group, expected in (("nameless", None), ("coordinate", "time")):
        found = xr.open_dataarray(store, engine="zarr", group=group, consolidated=False)
        assert found.name == expected


def test_a_tree_is_written_group_by_group(repo, place, storage):
    tree = xr.DataTree.from_dict(
        {"/": dataset()[["version"]], "/fine": dataset(), "/fine/copy": dataset()}
    )
    encoding = {"/fine/copy": {"t2m": {"dtype": "float32"}}}
    committed(repo, tree, group="trees/one", encoding=encoding)
    found = xr.open_datatree(place, engine="icefloe", group="trees/one")
    xr.testing.assert_identical(found["fine"].to_dataset(), dataset())
    assert found["fine/copy"].t2m.dtype == np.float32
    theirs = icechunk.Repository.open(storage).readonly_session("main").store
    found = xr.open_datatree(theirs, engine="zarr", group="trees/one", consolidated=False)
    xr.testing.assert_identical(found["fine"].to_dataset(), dataset())


def test_encoding(repo):
    packed = {"t2m": {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -1, "chunks": (4, 50)}}
    committed(repo, dataset(), encoding=packed)
    array = zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")
    assert (array.dtype, array.chunks) == (np.int16, (4, 50))
    found = read(repo.readonly_session("main")).t2m
    np.testing.assert_allclose(found, VALUES, atol=0.001)
    with pytest.raises(ValueError, match="unexpected encoding"):
        to_icechunk(dataset(), repo.writable_session("main"), encoding={"t2m": {"x": 1}}, mode="w")


def test_blocks_that_share_a_chunk(repo):
    skewed = dataset().chunk(time=3)
    chunks = {"t2m": {"chunks": (4, 100)}}
    session = repo.writable_session("main")
    with pytest.raises(ValueError, match="overlap multiple Dask chunks"):
        to_icechunk(skewed, session, encoding=chunks)
    with pytest.raises(ConflictError, match="written by two forks"):
        to_icechunk(skewed, session, encoding=chunks, mode="w", safe_chunks=False)
    to_icechunk(skewed, session, encoding=chunks, mode="w", align_chunks=True)
    assert np.array_equal(read(session).t2m, VALUES)


def test_two_blocks_that_share_the_only_chunk(repo):
    values = da.from_array(np.arange(4), chunks=((3, 1),))
    session = repo.writable_session("main")
    with pytest.raises(ConflictError, match="1 chunks of /a were written by two forks"):
        to_icechunk(
            xr.Dataset({"a": (("x",), values)}),
            session,
            encoding={"a": {"chunks": (4,)}},
            safe_chunks=False,
        )


def test_what_two_variables_share_is_computed_once(repo):
    counted = []

    def count(block):
        counted.append(1)
        return block

    shared = da.from_array(VALUES, chunks=(20, 200)).map_blocks(count, meta=VALUES[:0])
    committed(
        repo,
        xr.Dataset({"one": (("a", "b"), shared + 1), "two": (("a", "b"), shared * 2)}),
        chunkmanager_store_kwargs={"scheduler": "synchronous"},
    )
    assert len(counted) == 2


def test_a_fork_takes_writes_too(repo):
    session = repo.writable_session("main")
    to_icechunk(dataset(), session)
    fork = session.fork()
    to_icechunk(dataset(1)[["t2m"]].drop_vars("time"), fork, region={"time": slice(0, 40)})
    session.merge(pickle.loads(pickle.dumps(fork)))
    assert np.array_equal(read(session).t2m, VALUES + 1)


def test_a_reader_takes_no_writes(repo):
    with pytest.raises((ReadOnlyError, ValueError), match="read-only"):
        to_icechunk(dataset(), repo.readonly_session("main"))
    with pytest.raises(InvalidInputError, match="split_every"):
        to_icechunk(dataset(), repo.writable_session("main"), split_every=1)


@pytest.mark.s3
def test_processes_write_to_s3_without_credentials_in_their_pickles(s3_server):
    public = {key: it for key, it in s3_server.options.items() if key not in ("key", "secret")}
    url = s3_server.root()
    repo = Repository.create(url, public, credentials=servers.credentials)
    fork = repo.writable_session("main").fork()
    assert s3_server.secret.encode() not in pickle.dumps(fork)
    committed(repo, dataset(), chunkmanager_store_kwargs={"scheduler": "processes"})
    found = xr.open_dataset(url, engine="icefloe", storage_options=s3_server.options)
    xr.testing.assert_identical(found, dataset())


def test_the_engine_opens_any_version(repo, place):
    first = committed(repo, dataset())
    repo.create_tag("v1", first)
    repo.create_branch("dev", first)
    between = datetime.now(UTC)
    committed(repo, dataset(1), mode="w")
    new, old = VALUES + 1, VALUES
    for expected, options in (
        (new, {}),
        (new, {"branch": "main"}),
        (old, {"branch": "main", "as_of": between}),
        (old, {"branch": "dev"}),
        (old, {"tag": "v1"}),
        (old, {"snapshot_id": first}),
    ):
        for chunks in (None, {}, {"time": 8}):
            with xr.open_dataset(place, engine="icefloe", chunks=chunks, **options) as found:
                assert np.array_equal(found.t2m, expected)
    assert np.array_equal(xr.open_dataset(repo, engine="icefloe").t2m, new)
    raw = xr.open_dataset(place, engine="icefloe", decode_times=False, drop_variables="elevation")
    assert raw.time.dtype == np.int64
    assert "elevation" not in raw


def test_the_engine_opens_a_group_and_a_storage():
    storage = MemoryStorage()
    committed(Repository.create(storage), dataset(), group="deep/down")
    found = xr.open_dataset(storage, engine="icefloe", group="deep/down")
    xr.testing.assert_identical(found, dataset())


def test_lazy_data_travels_to_processes(repo, place):
    committed(repo, dataset())
    found = xr.open_dataset(place, engine="icefloe", chunks={})
    with dask.config.set(scheduler="processes"):
        assert float(found.t2m.sum()) == pytest.approx(VALUES.sum())
    again = pickle.loads(pickle.dumps(xr.open_dataset(place, engine="icefloe")))
    xr.testing.assert_identical(again, dataset())


@pytest.mark.parametrize("by", ["sessions", "snapshot ids"])
def test_versions_do_not_mix_in_one_computation(by):
    storage = MemoryStorage()
    repo = Repository.create(storage)
    ids = [committed(repo, dataset(each), mode="w") for each in (0, 1)]
    if by == "sessions":
        old, new = (read(repo.readonly_session(snapshot_id=each)) for each in ids)
    else:
        old, new = (
            xr.open_dataset(storage.url, engine="icefloe", snapshot_id=each, chunks={})
            for each in ids
        )
    difference = new.t2m.variable - old.t2m.variable
    np.testing.assert_allclose(difference.compute(), 1)


def test_a_writable_session_opens_lazily_and_does_not_mix_with_later_changes(repo):
    session = repo.writable_session("main")
    to_icechunk(dataset(), session)
    before = xr.open_zarr(session.store, consolidated=False, chunks={}).t2m
    to_icechunk(dataset(1)[["t2m"]], session, mode="a")
    after = xr.open_zarr(session.store, consolidated=False, chunks={}).t2m
    assert before.data.name != after.data.name


def test_the_engine_says_what_it_is():
    assert "icefloe" in xr.backends.list_engines()
    with pytest.raises(icefloe.NotFoundError, match="there is no repository"):
        xr.open_dataset("memory://nothing-here", engine="icefloe")
