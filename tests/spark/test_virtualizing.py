"""Arrays of chunks that stay in files: both libraries read what h5py and xarray read there."""

import os
import uuid
from datetime import UTC, datetime

import h5py
import icechunk
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
import servers
from icefloe import InvalidInputError, NotFoundError, Repository, RepositoryConfig, StorageError
from icefloe import spark as ice
from icefloe.splitting import with_rule
from stateful.layout import check_layout

icechunk.set_logs_filter("error")

pytestmark = [
    # A busy machine takes long to start Spark, and the first test waits for it.
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning"),
]


class Place:
    """A folder of files, and a repository that may refer to them."""

    def __init__(self, folder, config):
        self.folder = folder / "files"
        self.folder.mkdir()
        self.prefix = f"file://{self.folder}/"
        self.path = str(folder / "repo")
        store = icefloe.local_filesystem_store(str(self.folder))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(self.prefix, store))
        self.repo = Repository.create(
            self.path, config=config, authorize_virtual_chunk_access={self.prefix: None}
        )

    def session(self):
        return self.repo.writable_session("main")

    def virtualize(self, spark, files, **options):
        session = self.session()
        staged = ice.virtualize(spark, session, files, **options)
        check_layout(self.repo.storage, session.commit("virtual"))
        return staged

    def stores(self):
        """What both libraries read of main."""
        access = {self.prefix: icechunk.credentials.LocalFileSystemAccess}
        official = icechunk.Repository.open(
            icechunk.local_filesystem_storage(self.path),
            authorize_virtual_chunk_access=icechunk.containers_credentials(access),
        )
        return [each.readonly_session("main").store for each in (self.repo, official)]

    def check(self, path, values):
        for store in self.stores():
            array = zarr.open_array(store, path=path, mode="r")
            np.testing.assert_array_equal(array[...], values)

    def check_dataset(self, wanted, group=None):
        for store in self.stores():
            with xr.open_zarr(store, group=group, consolidated=False, chunks=None) as found:
                xr.testing.assert_equal(found, wanted)

    def kinds(self, path):
        """Where the chunks of an array are."""
        refs = self.repo.readonly_session("main").refs(path)
        return {*refs.kind.tolist()}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, RepositoryConfig(inline_chunk_threshold_bytes=16))


NATIVE, INLINE, VIRTUAL = 0, 1, 2


def day(number, hours=24, chunks=(12, 4, 5), **attributes):
    """The data of one day, and how to store it."""
    rng = np.random.default_rng(number)
    time = np.arange(24 * number, 24 * number + hours)
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    wind = np.where(rng.random((hours, 4, 10)) < 0.2, np.nan, rng.random((hours, 4, 10)))
    data = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), 270 + 20 * rng.random((hours, 4, 10)), {"units": "K"}),
            "wind": (("time", "lat", "lon"), wind.astype("f4")),
            "time_bounds": (("time", "side"), np.stack([time, time + 1], axis=1)),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            "mask": (("lat", "lon"), rng.integers(0, 2, (4, 10)) * 0 + np.eye(4, 10, dtype=int)),
        },
        coords={
            "time": ("time", time, {"units": "hours since 2026-01-01"}),
            "lat": ("lat", np.linspace(40, 50, 4), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(10.0)),
        },
        attrs={"title": "Weather", "history": f"made for day {number}", **attributes},
    )
    encoding = {
        "t2m": {**packed, "zlib": True, "shuffle": True, "chunksizes": chunks},
        "wind": {"zlib": True, "complevel": 1, "fletcher32": True, "chunksizes": chunks},
        "time_bounds": {"chunksizes": (10, 2)},
    }
    return data, encoding


def save(folder, number, engine="netcdf4", **options):
    data, encoding = day(number, **options)
    path = folder / f"day-{number}.nc"
    data.to_netcdf(path, engine=engine, encoding=encoding, unlimited_dims=["time"])
    return path


def opened(files):
    parts = [xr.load_dataset(file) for file in files]
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")


def test_netcdf_files_follow_each_other_and_those_of_a_later_commit(spark, place):
    first = [save(place.folder, 0), save(place.folder, 1)]
    more = [save(place.folder, 2), save(place.folder, 3, hours=13)]
    staged = place.virtualize(spark, first, concat_dim="time")
    assert {each.path: each.chunks for each in staged.arrays}["/t2m"] == 8
    place.check_dataset(opened(first))
    place.virtualize(spark, more, concat_dim="time")
    place.check_dataset(opened([*first, *more]))
    assert [place.kinds(path) for path in ("/t2m", "/wind", "/mask")] == [{VIRTUAL}] * 3
    # Coordinates are copied, and what is small and does not fill the chunks of its file.
    assert place.kinds("/time") == place.kinds("/time_bounds") == {NATIVE}
    assert place.repo.verify("data") == []
    for store in place.stores():
        group = zarr.open_group(store, mode="r")
        assert dict(group.attrs) == {"title": "Weather"}, "the history differs from file to file"
        assert group["t2m"].attrs["scale_factor"] == 0.01
        assert group["t2m"].metadata.dimension_names == ("time", "lat", "lon")
    # Nothing virtual can follow a chunk that is not full: so little is copied.
    last = save(place.folder, 4, hours=12)
    place.virtualize(spark, [last], concat_dim="time")
    place.check_dataset(opened([*first, *more, last]))
    assert place.kinds("/t2m") == {VIRTUAL, NATIVE}
    # What the arrays have of other dimensions must be what a file has.
    change(last, latitude)
    with pytest.raises(InvalidInputError, match=r"/lat has other values than .*day-4.nc"):
        ice.virtualize(spark, place.session(), [last], concat_dim="time")


def test_files_are_sorted_by_a_coordinate(spark, place):
    files = [save(place.folder, number, "h5netcdf") for number in (2, 0, 1)]
    place.virtualize(spark, files, concat_dim="time", sort_by="time", drop=["wind", "mask"])
    wanted = opened([files[1], files[2], files[0]]).drop_vars(["wind", "mask"])
    place.check_dataset(wanted)


def layouts(file):
    """Every way to keep values that can be referred to or copied."""
    values = np.arange(120).reshape(10, 12)
    rng = np.random.default_rng(1)
    file.create_dataset("plain", data=values.astype("<i4"), chunks=(4, 5))
    file.create_dataset("big", data=values.astype(">f8"), chunks=(4, 5), shuffle=True)
    gzip = {"chunks": (5, 12), "compression": "gzip", "compression_opts": 9}
    file.create_dataset("gzip", data=values.astype("u2"), **gzip)
    file.create_dataset("checked", data=values.astype("i8"), **gzip, shuffle=True, fletcher32=True)
    file.create_dataset("whole", data=rng.random((10, 12)))
    file.create_dataset("half", data=rng.random((10, 12)).astype("f2"), chunks=(3, 3))
    file.create_dataset("flags", data=values % 2 == 0, chunks=(5, 6))
    file.create_dataset("complex", data=values * (1 + 2j), chunks=(10, 6))
    file.create_dataset("codes", data=np.array([b"ab", b"c", b""] * 4), chunks=(6,))
    sparse = file.create_dataset("sparse", (10, 12), "f4", chunks=(5, 6), fillvalue=7)
    sparse[7, 8] = 1
    file.create_dataset("unwritten", (300, 500), "f8", fillvalue=np.nan)
    file.create_dataset("nothing", (0, 12), "f8", chunks=(1, 12), maxshape=(None, 12))
    names = np.array(["Köln", "", "a long name"], object)
    file.create_dataset("names", data=names, dtype=h5py.string_dtype())
    file.create_dataset("one", data=np.float32(2.5))
    file["deep/er/grid"] = rng.random((4, 4))
    file["deep/er"].attrs["depth"] = np.array([2])
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((3, 2))
    compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, plan)
    h5py.Dataset(compact)[...] = [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("options", [{}, {"userblock_size": 1024, "libver": "latest"}], ids=str)
def test_every_layout_reads_as_h5py_reads_it(spark, place, options):
    path = place.folder / "lay outs #1?%41.h5"
    with h5py.File(path, "w", **options) as file:
        layouts(file)
    place.virtualize(spark, [path], into="/h5")
    with h5py.File(path) as file:
        for name, dataset in _datasets(file).items():
            text = h5py.check_string_dtype(dataset.dtype)
            is_text = text is not None and text.length is None
            place.check(f"h5/{name}", dataset.asstr()[...] if is_text else dataset[...])
    for name in ("plain", "big", "gzip", "checked", "whole", "half", "flags", "complex", "codes"):
        assert place.kinds(f"/h5/{name}") == {VIRTUAL}, name
    assert len(place.repo.readonly_session("main").refs("/h5/sparse")) == 1
    assert len(place.repo.readonly_session("main").refs("/h5/unwritten")) == 0
    store = place.stores()[1]
    assert zarr.open_group(store, path="h5/deep/er", mode="r").attrs["depth"] == 2
    assert place.repo.verify("data") == []


def _datasets(file):
    found = {}
    file.visititems(lambda name, node: found.update({name: node} if hasattr(node, "dtype") else {}))
    return found


def test_filters_that_only_netcdf_brings_along(spark, place):
    values = np.arange(4000).reshape(2, 2000)
    path = place.folder / "filters.nc"
    names = ["bzip2", "zstd", "blosc_lz4"]
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("y", 2)
        data.createDimension("x", 2000)
        for name in names:
            how = {"compression": name, "chunksizes": (1, 2000)}
            data.createVariable(name, "i4", ("y", "x"), **how)[:] = values
    place.virtualize(spark, [path])
    for name in names:
        place.check(name, values)
        assert place.kinds(f"/{name}") == {VIRTUAL}


def test_dimensions_that_files_do_not_have(spark, place):
    """Each file is one step, with a time of its own."""
    files = []
    for step in range(3):
        path = place.folder / f"{step}.nc"
        data = xr.Dataset(
            {"rain": (("y", "x"), np.full((2, 3), float(step)))},
            coords={"y": [1.0, 2.0], "time": ((), step, {"units": "days since 2026-01-01"})},
        )
        data.to_netcdf(path)
        files.append(path)
    place.virtualize(spark, files, concat_dim="time")
    place.check("rain", np.arange(3.0)[:, None, None] * np.ones((2, 3)))
    place.check("time", [0, 1, 2])
    place.check("y", [1.0, 2.0])
    assert place.kinds("/rain") == {VIRTUAL}


def test_files_without_names_for_dimensions_and_regions_of_their_own(spark, tmp_path):
    place = Place(tmp_path, with_rule(RepositoryConfig(), "/a", (3, 2)))
    files = []
    for number in range(5):
        path = place.folder / f"{number}.h5"
        with h5py.File(path, "w") as file:
            values = 1000 * number + np.arange(80).reshape(8, 10)
            file.create_dataset("a", data=values, chunks=(4, 2), shuffle=True)
        files.append(path)
    staged = place.virtualize(spark, files[:3], concat_dim=0)
    assert [(each.regions, each.chunks) for each in staged.arrays] == [(6, 30)]
    place.virtualize(spark, files[3:], concat_dim=0)
    wanted = [1000 * number + np.arange(80).reshape(8, 10) for number in range(5)]
    place.check("a", np.concatenate(wanted))


def test_thousands_of_chunks(spark, place):
    path = place.folder / "many.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("a", data=np.arange(40_000, dtype="u4"), chunks=(2,))
    staged = place.virtualize(spark, [path])
    assert staged.chunks == 20_000
    for store in place.stores():
        array = zarr.open_array(store, path="a", mode="r")
        assert array[39_000:39_020].tolist() == [*range(39_000, 39_020)]


def test_a_file_that_changed_is_not_read(spark, place):
    files = [save(place.folder, 0)]
    place.virtualize(spark, files, concat_dim="time")
    later = datetime.now(UTC).timestamp() + 100
    os.utime(files[0], (later, later))
    array = zarr.open_array(place.stores()[0], path="t2m", mode="r")
    with pytest.raises(StorageError, match="has changed") as caught:
        array[0]
    assert caught.value.kind == "virtual-chunk-modified"
    place.repo = place.repo.reopen()
    Repository.open(place.path).reset_branch("main", _first(place.repo))
    place.virtualize(spark, files, concat_dim="time", checksum=False)
    os.utime(files[0], (later + 100, later + 100))
    place.check("t2m", _raw(files[0], "t2m"))


def _first(repo):
    return [*repo.ancestry(branch="main")][-1].id


def _raw(path, name):
    with h5py.File(path) as file:
        return file[name][...]


def hdf5(place, name, make):
    path = place.folder / name
    with h5py.File(path, "w") as file:
        make(file)
    return path


BIG = (1024, 1024)
MISTAKES = {
    "lzf": (
        lambda file: file.create_dataset("a", BIG, "f4", chunks=(512, 512), compression="lzf"),
        {},
        r"'a' of file://.*/0.h5: zarr has no codec for its filter 32000 \(lzf\).*loadable=\['a'\]",
    ),
    "records": (
        lambda file: file.create_dataset("a", 3, np.dtype([("x", "f4"), ("y", "i2")])),
        {},
        r"'a' of file://.*/0.h5: zarr has no type for .*drop=\['a'\]",
    ),
    "group": (lambda file: None, {"group": "/none"}, r"0.h5 has no group '/none'"),
    "sort": (
        lambda file: file.create_dataset("a", BIG, "f4"),
        {"sort_by": "time"},
        r"0.h5 has no values of 'time' to sort by",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_zarr_cannot_say_is_told_by_file_and_variable(spark, place, mistake):
    make, options, told = MISTAKES[mistake]
    session = place.session()
    with pytest.raises(InvalidInputError, match=told):
        ice.virtualize(spark, session, [hdf5(place, "0.h5", make)], **options)
    assert not session.has_uncommitted_changes


def test_a_chunk_without_the_filters_of_the_others_is_copied_if_wanted(spark, place):
    def make(file):
        dataset = file.create_dataset("a", BIG, "i4", chunks=(512, 1024), compression="gzip")
        dataset[...] = 1
        raw = np.full((512, 1024), 2, "i4").tobytes()
        dataset.id.write_direct_chunk((512, 0), raw, filter_mask=1)

    path = hdf5(place, "0.h5", make)
    with pytest.raises(InvalidInputError, match=r"chunk \(1, 0\) was stored without the filters"):
        ice.virtualize(spark, place.session(), [path])
    place.virtualize(spark, [path], loadable=["a"])
    place.check("a", _raw(path, "a"))
    assert place.kinds("/a") == {NATIVE}


def test_a_file_that_is_none_or_is_not_there(spark, place):
    path = place.folder / "text.nc"
    path.write_text("no HDF5")
    with pytest.raises(InvalidInputError, match=r"text.nc cannot be read as HDF5 or NetCDF 4"):
        ice.virtualize(spark, place.session(), [path])
    with pytest.raises(NotFoundError, match=r"no file .*gone.nc"):
        ice.virtualize(spark, place.session(), [place.folder / "gone.nc"])
    with pytest.raises(InvalidInputError, match=r"no virtual chunk container has .* Add one") as e:
        ice.virtualize(spark, place.session(), ["/elsewhere/a.nc"])
    assert e.value.kind == "no-container-for-virtual-chunk"
    with pytest.raises(InvalidInputError, match="2 files: say along which concat_dim"):
        ice.virtualize(spark, place.session(), [path, path])
    with pytest.raises(InvalidInputError, match="counted from 0"):
        ice.virtualize(spark, place.session(), [path], concat_dim=-1)
    with pytest.raises(InvalidInputError, match="secret"):
        ice.virtualize(spark, place.session(), [path], storage_options={"secret": "x"})


def change(path, edit):
    with netCDF4.Dataset(path, "a") as data:
        edit(data)


def units(data):
    data["lat"].units = "degrees_south"


def latitude(data):
    data["lat"][0] = 39


def another(data):
    data.createVariable("snow", "f4", ("time",))


DISAGREEMENTS = {
    "units": (units, r"'lat' of .*day-1.nc has the attribute units .*south"),
    "latitude": (latitude, r"'lat' has other values in .*day-1.nc"),
    "another": (
        another,
        r"'snow' of .*day-1.nc is not in all files: .* drop=.'snow'.",
    ),
}


@pytest.mark.parametrize("how", DISAGREEMENTS)
def test_files_that_do_not_agree_are_named(spark, place, how):
    edit, told = DISAGREEMENTS[how]
    files = [save(place.folder, number) for number in range(2)]
    change(files[1], edit)
    session = place.session()
    with pytest.raises(InvalidInputError, match=told) as caught:
        ice.virtualize(spark, session, files, concat_dim="time")
    assert caught.value.kind == "inconsistent-files"
    assert not session.has_uncommitted_changes


def test_files_that_do_not_fill_their_chunks_are_named(spark, place):
    def make(number, length):
        def write(file):
            data = np.full((length, 1024, 256), number, "f4")
            time = file.create_dataset("time", data=10 * number + np.arange(float(length)))
            time.make_scale("time")
            how = {"chunks": (4, 1024, 256), "maxshape": (None, 1024, 256)}
            dataset = file.create_dataset("a", data=data, **how)
            dataset.dims[0].attach_scale(time)

        return hdf5(place, f"{number}.h5", write)

    files = [make(0, 4), make(1, 3), make(2, 4)]
    with pytest.raises(
        InvalidInputError, match=r"1.h5 has 3 elements .* chunks of 4.*loadable=\['a'\]"
    ):
        ice.virtualize(spark, place.session(), files, concat_dim="time")
    place.virtualize(spark, [files[0], files[2], files[1]], concat_dim="time")
    place.check("a", np.repeat([0, 2, 1], [4, 4, 3])[:, None, None] * np.ones((1024, 256)))
    with pytest.raises(InvalidInputError, match=r"/a ends within a chunk, at 11 of chunks of 4"):
        ice.virtualize(spark, place.session(), files[:1], concat_dim="time")


@pytest.mark.s3
def test_files_on_s3(spark, s3_server, tmp_path):
    folder = uuid.uuid4().hex
    local = tmp_path / "files"
    local.mkdir()
    files = [save(local, number) for number in range(2)]
    for file in files:
        s3_server.client().upload_file(str(file), s3_server.bucket, f"{folder}/{file.name}")
    prefix = f"s3://{s3_server.bucket}/{folder}/"
    place = {"endpoint_url": s3_server.endpoint, "region": "us-east-1"}
    options = {"allow_http": True, "force_path_style": True, "s3_compatible": True}
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.s3_store(**place, **options))
    )
    public = {
        "endpoint_url": s3_server.endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    url = s3_server.root()
    repo = Repository.create(
        url,
        public,
        credentials=servers.credentials,
        config=config,
        authorize_virtual_chunk_access={prefix: servers.credentials},
    )
    session = repo.writable_session("main")
    urls = [prefix + file.name for file in files]
    ice.virtualize(
        spark,
        session,
        urls,
        concat_dim="time",
        storage_options=public,
        credentials=servers.credentials,
    )
    session.commit("from s3")
    bucket, _, name = url.removeprefix("s3://").partition("/")
    keys = {"access_key_id": s3_server.key, "secret_access_key": s3_server.secret}
    official = icechunk.Repository.open(
        icechunk.s3_storage(
            bucket=bucket, prefix=name, allow_http=True, force_path_style=True, **place, **keys
        ),
        authorize_virtual_chunk_access=icechunk.containers_credentials(
            {prefix: icechunk.s3_credentials(**keys)}
        ),
    )
    wanted = opened(files)
    for each in (repo, official):
        store = each.readonly_session("main").store
        with xr.open_zarr(store, consolidated=False, chunks=None) as found:
            xr.testing.assert_equal(found, wanted)
    assert repo.verify("objects") == []
    with pytest.raises(NotFoundError):
        ice.virtualize(
            spark,
            repo.writable_session("main"),
            [prefix + "gone.nc"],
            storage_options=public,
            credentials=servers.credentials,
        )


def test_files_without_a_single_element(spark, place):
    def make(file):
        file.create_dataset("names", (0,), h5py.string_dtype(), maxshape=(None,))
        file.create_dataset("a", (0, 4), "f4", chunks=(2, 4), maxshape=(None, 4))

    files = [hdf5(place, f"{number}.h5", make) for number in range(2)]
    place.virtualize(spark, files, concat_dim=0)
    place.check("names", np.array([], object))
    place.check("a", np.zeros((0, 4)))
