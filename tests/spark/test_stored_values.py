"""What jobs write is what arrays mean, and no value is cut off to fit a type."""

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import InvalidInputError, Repository
from icefloe import spark as ice

PACKED = {"scale_factor": 0.01, "add_offset": 285.0, "_FillValue": -32768}
FILES = ["one"]


@pytest.fixture
def repo(tmp_path):
    return Repository.create(str(tmp_path / "repo"))


@pytest.fixture
def session(repo):
    return repo.writable_session("main")


def create(session, dtype, **options):
    return zarr.create_array(
        session.store,
        name="p",
        shape=(4, 3),
        chunks=(2, 3),
        dtype=dtype,
        dimension_names=["y", "x"],
        **options,
    )


def piece(values):
    def open_file(name):
        yield "/p", {"y": slice(0, 4)}, np.broadcast_to(values, (4, 3))

    return open_file


def written(spark, session, values, how, **options):
    """Write the same everywhere, in one of the ways to do it."""
    if how == "write":
        ice.write(spark, ice.plan(session, "/p"), lambda block: values, **options)
    elif how == "ingest":
        ice.ingest(spark, session, FILES, piece(values), paths=["/p"], **options)
    else:
        zarr.create_array(session.store, name="q", shape=(4, 3), chunks=(2, 3), dtype="f8")
        ice.transform(
            spark, session, "/p", lambda each: np.full(each.shape, values), inputs=["/q"], **options
        )
    return zarr.open_array(session.store, path="p", mode="r")[...]


@pytest.mark.parametrize("how", ["write", "ingest"])
def test_values_are_packed_as_the_array_packs_them(spark, session, how):
    create(session, "i2", attributes=PACKED)
    written(spark, session, 281.5, how, decode=True)
    found = xr.open_zarr(session.store, consolidated=False, chunks=None)["p"]
    np.testing.assert_allclose(found, np.full((4, 3), 281.5))
    written(spark, session, np.nan, how, decode=True)
    found = xr.open_zarr(session.store, consolidated=False, chunks=None)["p"]
    assert found.isnull().all()
    assert (written(spark, session, 250, how, decode=False) == 250).all()


@pytest.mark.parametrize("how", ["write", "ingest"])
def test_a_packed_array_takes_values_only_of_a_kind_that_is_said(spark, session, how):
    create(session, "i2", attributes=PACKED)
    with pytest.raises(InvalidInputError, match=r"scale_factor, add_offset, _FillValue.*decode=T"):
        written(spark, session, 281.5, how)
    assert session.status().updated_chunks == {}


def test_slices_of_a_packed_array_are_packed(spark, repo, session):
    create(session, "i2", attributes=PACKED)
    session.commit("array")
    told = {"message": "all", "write_key": "key"}
    with pytest.raises(InvalidInputError, match="decode=True"):
        ice.write_sliced(spark, repo, "main", "p", lambda block: 281.5, **told)
    assert {*repo.list_branches()} == {"main"}
    ice.write_sliced(spark, repo, "main", "p", lambda block: 281.5, decode=True, **told)
    store = repo.readonly_session("main").store
    assert (zarr.open_array(store, path="p", mode="r")[...] == -350).all()


@pytest.mark.parametrize("how", ["write", "ingest", "transform"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i1", 300.7),
        ("i1", np.nan),
        ("u1", -1),
        ("u8", -1),
        ("i4", 2.0**31),
        ("f4", 1e300),
        ("bool", 0.5),
    ],
)
def test_a_value_that_the_type_has_no_room_for_is_refused(spark, session, dtype, value, how):
    create(session, dtype)
    with pytest.raises(
        InvalidInputError, match=f"/p has no room for .*: its type is {np.dtype(dtype)}"
    ):
        written(spark, session, value, how)


def test_a_value_that_packing_has_no_room_for_is_refused(spark, session):
    create(session, "i2", attributes=PACKED)
    with pytest.raises(InvalidInputError, match="/p has no room for 1000"):
        written(spark, session, 1000.0, "write", decode=True)


@pytest.mark.parametrize(
    ("dtype", "value"), [("i1", 44.0), ("u2", True), ("i4", np.int64(7)), ("f4", 0.1), ("f4", 3)]
)
def test_a_value_that_fits_is_cast(spark, session, dtype, value):
    create(session, dtype)
    found = written(spark, session, value, "write")
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.full((4, 3), value))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("U3", "long"),
        ("i8", np.datetime64("2026-01-01")),
        ("datetime64[s]", np.datetime64("2026-01-01T00:00:00.5")),
        ("i4", np.array([1, 2.5, 3], object)),
        ("f8", 1 + 2j),
    ],
)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_texts_times_objects_and_complex_numbers_are_not_cut_off(spark, session, dtype, value):
    create(session, dtype)
    with pytest.raises(InvalidInputError, match=r"/p (has no room|holds)"):
        written(spark, session, np.broadcast_to(value, (4, 3)), "ingest")


def test_what_is_masked_is_no_value(spark, session):
    """netCDF4 gives masked arrays, and what is under a mask means nothing."""
    create(session, "i2", attributes=PACKED)
    some = np.ma.masked_array(np.full((4, 3), 290.0), np.eye(4, 3, dtype=bool))

    def open_file(name):
        yield "/p", {}, some

    ice.ingest(spark, session, FILES, open_file, paths=["/p"], decode=True)
    stored = zarr.open_array(session.store, path="p", mode="r")[...]
    np.testing.assert_array_equal(stored, np.where(np.eye(4, 3), -32768, 500))
    with pytest.raises(InvalidInputError, match="no _FillValue"):
        ice.ingest(spark, session, FILES, open_file, paths=["/p"], decode=False)


def test_what_is_masked_is_nan_in_plain_floats(spark, session):
    create(session, "f4")
    some = np.ma.masked_array(np.full((4, 3), 290.0), np.eye(4, 3, dtype=bool))

    def open_file(name):
        yield "/p", {}, some

    ice.ingest(spark, session, FILES, open_file, paths=["/p"])
    stored = zarr.open_array(session.store, path="p", mode="r")[...]
    np.testing.assert_array_equal(stored, np.where(np.eye(4, 3), np.nan, 290))
