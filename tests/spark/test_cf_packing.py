"""Packed values mean what the CF conventions say, to readers and to writers of rows."""

import base64
import struct

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from icefloe import InvalidInputError, Repository
from icefloe import spark as ice
from icefloe.spark.reading import LongForm
from icefloe.spark.row_sink import publish, row_target, write_partition

FLOAT_FILL = base64.standard_b64encode(struct.pack("<d", -9999.0)).decode()


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "repo")


def make(url, values, **attributes):
    session = Repository.create(url).writable_session("main")
    zarr.create_array(
        session.store, name="t", data=values, attributes=attributes, dimension_names=["x"]
    )
    session.commit("base")


def table(url, size, **options):
    form = LongForm.of({"url": url, "array": "t", **options})
    (batch,) = form.batches(((0, size),))
    return batch


def stored(url):
    store = Repository.open(url).readonly_session("main").store
    return zarr.open_array(store, path="t", mode="r")[...]


def write(url, rows, **options):
    target = row_target({"url": url, "array": "t", **options})
    publish(Repository.open(url), "main", "/t", [write_partition(target, iter([rows]))], "m", "key")


CASES = {
    "packed": (np.array([0, 500, -1], "i2"), {"scale_factor": 0.01, "add_offset": 273.15}),
    "with-fill": (
        np.array([0, 500, -32768], "i2"),
        {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768},
    ),
    "fill-of-integers": (np.array([1, -1, 2], "i4"), {"_FillValue": -1}),
    "unsigned": (np.array([-1, 1, -2], "i1"), {"_Unsigned": "true", "_FillValue": -1}),
    "fill-of-floats": (np.array([1.5, -9999, 2.5], "f4"), {"_FillValue": FLOAT_FILL}),
    "missing-value": (np.array([1.5, -9999, 2.5], "f4"), {"missing_value": -9999.0}),
}


@pytest.mark.parametrize(("values", "attributes"), CASES.values(), ids=CASES)
def test_values_are_what_xarray_says_and_are_written_back_as_they_were(url, values, attributes):
    make(url, values, **attributes)
    batch = table(url, 3)
    found = np.array([np.nan if v is None else v for v in batch.column("value").to_pylist()])
    plain = {name: -9999.0 if value == FLOAT_FILL else value for name, value in attributes.items()}
    decoded = xr.conventions.decode_cf_variable("t", xr.Variable("x", values, plain))
    np.testing.assert_allclose(found, decoded.values.astype("f8"), rtol=1e-6)
    with Repository.open(url).transaction("main", message="clear") as store:
        zarr.open_array(store, path="t")[:] = values[1]
    write(url, batch)
    np.testing.assert_array_equal(stored(url), values)


@pytest.mark.parametrize(
    ("values", "attributes", "written"),
    [
        ([1, -1, -2], {"_FillValue": -1, "missing_value": [-2, -3]}, [1, -1, -1]),
        ([1, 2, 1e20], {"missing_value": 1e20}, [1, 2, 1e20]),
    ],
    ids=["two-kinds", "rounded"],
)
def test_all_that_stands_for_no_value_is_null(url, values, attributes, written):
    make(url, np.array(values, "f4"), **attributes)
    batch = table(url, 3)
    assert batch.column("value").null_count == sum(value not in (1, 2) for value in values)
    write(url, batch)
    np.testing.assert_array_equal(stored(url), np.array(written, "f4"))


@pytest.mark.parametrize(("values", "attributes"), CASES.values(), ids=CASES)
def test_raw_values_are_there_for_those_who_ask(url, values, attributes):
    make(url, values, **attributes)
    batch = table(url, 3, decode="false")
    assert batch.column("value").to_pylist() == values.tolist()
    write(url, batch, decode="false")
    np.testing.assert_array_equal(stored(url), values)


@pytest.mark.parametrize(
    "attributes",
    [
        {"_FillValue": "NaN"},
        {"_FillValue": float("nan")},
        {"scale_factor": 1, "add_offset": 0.0},
        {"units": "K"},
        {"_FillValue": base64.standard_b64encode(struct.pack("<d", np.nan)).decode()},
    ],
)
def test_attributes_that_change_nothing_leave_the_type_alone(url, attributes):
    make(url, np.array([1.5, np.nan], "f4"), **attributes)
    column = table(url, 2).column("value")
    assert column.type == pa.float32()
    assert column.null_count == 0


@pytest.mark.parametrize(
    "attributes",
    [{"scale_factor": "much"}, {"scale_factor": 0}, {"add_offset": [1, 2]}, {"_FillValue": "?"}],
)
def test_an_attribute_without_sense_is_named_with_the_way_out(url, attributes):
    make(url, np.array([1, 2], "i2"), **attributes)
    (name,) = attributes
    with pytest.raises(InvalidInputError, match=f"{name} of /t .*decode=false"):
        table(url, 2)
    assert table(url, 2, decode="false").column("value").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1e9, "no room for 1000000000.0"),
        (-54.53, "stands for no value"),
    ],
)
def test_a_value_that_cannot_be_packed_is_named(url, value, told):
    make(url, np.zeros(2, "i2"), scale_factor=0.01, add_offset=273.15, _FillValue=-32768)
    rows = pa.RecordBatch.from_pydict({"x": [0], "value": [value]})
    with pytest.raises(InvalidInputError, match=told):
        write(url, rows)


def test_null_needs_a_fill_value(url):
    make(url, np.zeros(2, "i2"), scale_factor=0.01)
    rows = pa.RecordBatch.from_pydict({"x": [0], "value": pa.array([None], pa.float64())})
    with pytest.raises(InvalidInputError, match="column value has nulls, and /t has no _FillValue"):
        write(url, rows)


def test_packed_coordinates_are_labels_in_what_they_mean(url):
    session = Repository.create(url).writable_session("main")
    zarr.create_array(session.store, name="t", data=np.arange(3), dimension_names=["x"])
    zarr.create_array(
        session.store,
        name="x",
        data=np.array([1, 2, 3], "i2"),
        attributes={"scale_factor": 0.25, "add_offset": 10},
        dimension_names=["x"],
    )
    session.commit("base")
    batch = table(url, 3)
    assert batch.column("x").to_pylist() == [10.25, 10.5, 10.75]
    write(url, pa.RecordBatch.from_pydict({"x": [10.5], "value": [7]}))
    assert stored(url).tolist() == [0, 7, 2]


def test_the_mean_of_packed_values_is_that_of_what_they_mean(spark, url):
    raw = np.array([40, 60, 90, -999], "i2")
    make(url, raw, scale_factor=0.5, add_offset=250.0, _FillValue=-999)
    frame = spark.read.format("icechunk").options(url=url, array="t").load()
    assert frame.selectExpr("avg(value)").first()[0] == pytest.approx(250 + 190 / 6)
    assert frame.where("value is null").count() == 1


def create_packed(session):
    raw = np.array([[10, 20, 30, -1], [30, 40, -1, -1]], "i2")
    packing = {"scale_factor": 0.5, "add_offset": 100.0, "_FillValue": -1}
    zarr.create_array(
        session.store,
        name="t",
        data=raw,
        chunks=(2, 2),
        attributes=packing,
        dimension_names=["y", "x"],
    )


@pytest.mark.parametrize(
    ("reduce", "expected"), [(np.mean, [[25, -1]]), (np.nanmax, [[40, 30]])], ids=["mean", "nanmax"]
)
def test_a_pyramid_leaves_out_what_stands_for_no_value(spark, url, reduce, expected):
    session = Repository.create(url).writable_session("main")
    create_packed(session)
    ice.pyramid(spark, session, "t", levels=1, factors={"y": 2, "x": 2}, reduce=reduce)
    found = zarr.open_array(session.store, path="t_1", mode="r")
    assert found[:].tolist() == expected
    assert found.attrs["scale_factor"] == 0.5


def test_a_pyramid_of_whole_numbers_with_a_fill_value_is_rounded(spark, url):
    session = Repository.create(url).writable_session("main")
    data = np.array([1, 2, 7, -9], "i4")
    zarr.create_array(
        session.store, name="t", data=data, attributes={"_FillValue": -9}, dimension_names=["x"]
    )
    ice.pyramid(spark, session, "t", levels=1, factors={"x": 2}, reduce=np.nanmean)
    assert zarr.open_array(session.store, path="t_1", mode="r")[:].tolist() == [2, 7]


def test_a_function_of_packed_arrays_has_to_say_what_it_takes(spark, url):
    session = Repository.create(url).writable_session("main")
    create_packed(session)
    with pytest.raises(
        InvalidInputError, match=r"/t has scale_factor.* decode=True .*decode=False"
    ):
        ice.transform(spark, session, {"/out": {}}, np.negative, inputs=["/t"])
    assert session.node("/out") is None
    ice.transform(spark, session, {"/out": {}}, lambda t: t - 100, inputs=["/t"], decode=True)
    found = zarr.open_array(session.store, path="out", mode="r")[:]
    np.testing.assert_array_equal(found, [[5, 10, 15, np.nan], [15, 20, np.nan, np.nan]])
    ice.transform(spark, session, {"/raw": {}}, lambda t: t, inputs=["/t"], decode=False)
    raw = zarr.open_array(session.store, path="t", mode="r")
    assert zarr.open_array(session.store, path="raw", mode="r")[:].tolist() == raw[:].tolist()
    ice.transform(spark, session, "/t", lambda t: t + 1, inputs=["/t"], decode=True)
    assert raw[:].tolist() == [[12, 22, 32, -1], [32, 42, -1, -1]]
