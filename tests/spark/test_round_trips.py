"""Rows say where they belong in the same words, read or written: written back, nothing changes."""

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.spark.reading import LongForm
from icefloe.spark.row_sink import publish, row_target, write_partition
from icefloe.spark.rows import from_batch, locate, to_batch
from spark.jobs import create, expected

# mapInArrow looks for pandas, and pyspark has not tried the version that it finds.
pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)
LABELS = {
    "ascending": np.arange(17),
    "descending": np.arange(17)[::-1].copy(),
    "descending-u1": np.arange(17, dtype="u1")[::-1].copy(),
    "large": np.arange(17, dtype="u8")[::-1] + np.uint64(2**63),
    "big-endian": np.arange(17, dtype=">i2")[::-1].copy(),
    "unsorted": np.random.default_rng(1).permutation(17) * 3 - 5,
    "floats": 90 - np.arange(17, dtype="f4") * np.float32(0.1),
    "half-floats": 90 - np.arange(17, dtype="f2"),
    "doubles": np.random.default_rng(2).random(17),
    "with-one-nan": np.array([np.nan, *range(16)]),
    "hours": np.datetime64("2026-11-18T00", "h") - np.arange(17),
    "nanoseconds": np.datetime64("2026-11-18T00", "ns")
    - np.arange(17) * np.timedelta64(1500, "ns"),
    "texts": np.array([f"station {at}" for at in range(17)][::-1], np.dtypes.StringDType()),
    "no-coordinate": None,
}


TEXTS = np.array(["a"] * 17, np.dtypes.StringDType())


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "repo")


def make(url, labels, name="y"):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = Repository.open_or_create(url, config=config).writable_session("main")
    create(session)[:] = expected((17, 23))
    if labels is not None:
        zarr.create_array(session.store, name=name, data=labels, dimension_names=[name])
    session.commit("base")


def table(url, **options):
    form = LongForm.of({"url": url, "array": "a", **options})
    return pa.Table.from_batches(form.batches(((0, 17), (0, 23))))


def clear(url):
    with Repository.open(url).transaction("main", message="clear") as store:
        zarr.open_array(store, path="a")[:] = 0


def write(url, rows, **options):
    target = row_target({"url": url, "array": "a", **options})
    publish(
        Repository.open(url),
        "main",
        "/a",
        [write_partition(target, iter(rows.to_batches()))],
        "rows",
        "key",
    )


def read(url, path="a"):
    store = Repository.open(url).readonly_session("main").store
    return zarr.open_array(store, path=path, mode="r")[...]


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("coordinates", ["true", "false"])
def test_rows_that_are_read_and_written_back_change_nothing(url, labels, coordinates):
    make(url, labels)
    rows = table(url, coordinates=coordinates)
    clear(url)
    order = np.random.default_rng(3).permutation(len(rows))
    write(url, rows.take(pa.array(order)), coordinates=coordinates)
    np.testing.assert_array_equal(read(url), expected((17, 23)))


def test_the_option_coordinates_means_the_same_on_both_sides(url):
    make(url, LABELS["descending"])
    for text, first in {"true": 16, "TRUE": 16, "y": 16, "false": 0, "": 0}.items():
        rows = table(url, coordinates=text)
        assert rows["y"][0].as_py() == first, text
        target = row_target({"url": url, "array": "a", "coordinates": text})
        (batch,) = rows.slice(0, 1).to_batches()
        assert locate(target, batch).positions[0].tolist() == [0], text
    for side in (lambda **given: table(url, **given), lambda **given: write(url, None, **given)):
        with pytest.raises(InvalidInputError, match="column as 'z'"):
            side(coordinates="z")
        with pytest.raises(InvalidInputError, match="column 'x' has no coordinate"):
            side(coordinates="y,x")


@pytest.mark.parametrize(
    ("labels", "given", "told"),
    [
        ("ascending", [17], "y = 17 is not among the labels of /y"),
        ("ascending", [1.5], "y = 1.5 is not among"),
        ("ascending", [float("nan")], "y = nan is not among"),
        ("descending-u1", [260], "y = 260 is not among"),
        ("large", [-1], "y = -1 is not among"),
        ("floats", [60.05], "y = 60.05 is not among"),
        ("hours", [np.datetime64("2026-11-18T00:30", "us")], "is not among"),
        ("hours", ["2026-11-18"], "holds string"),
        ("texts", ["station 17"], "y = station 17 is not among"),
        ("texts", [3], "holds int64"),
        ("ascending", [None], "column y has nulls"),
        ("no-coordinate", [None], "column y has nulls"),
        ("no-coordinate", [17], "y = 17 is no position in 17"),
        ("no-coordinate", [1.0], "column y holds double"),
    ],
)
def test_a_label_that_there_is_not_is_named_and_nothing_is_written(url, labels, given, told):
    make(url, LABELS[labels])
    kind = pa.int64() if given == [None] else None
    rows = pa.table({"y": pa.array(given, kind), "x": [0], "value": [1.0]})
    with pytest.raises(InvalidInputError, match=told):
        write(url, rows)
    np.testing.assert_array_equal(read(url), expected((17, 23)))


@pytest.mark.parametrize(
    "labels",
    [np.arange(17) // 2, np.array([0.0, -0.0, *range(1, 16)]), np.full(17, np.nan), TEXTS],
    ids=["numbers", "zeros", "nans", "texts"],
)
def test_labels_that_are_there_twice_are_refused_by_label_and_fine_by_position(url, labels):
    make(url, labels)
    with pytest.raises(InvalidInputError, match=r"/y has the label .* at several places"):
        row_target({"url": url, "array": "a"})
    rows = table(url, coordinates="false")
    clear(url)
    write(url, rows, coordinates="false")
    np.testing.assert_array_equal(read(url), expected((17, 23)))


def test_a_label_may_be_told_in_a_wider_type(url):
    make(url, LABELS["floats"])
    rows = pa.table({"y": pa.array([89.9], pa.float64()), "x": [2], "value": [7]})
    write(url, rows)
    assert read(url)[1, 2] == 7


@pytest.mark.parametrize("dtype", ["i1", "u4", "u8", ">i8", "f2", "f4", "?", "M8[ns]", "T"])
def test_values_go_through_the_shuffle_as_they_are(url, dtype):
    session = Repository.create(url).writable_session("main")
    values = {
        "M8[ns]": np.arange(5).astype("M8[us]").astype(dtype),
        "T": np.array([*"abcde"], np.dtypes.StringDType()),
    }.get(dtype)
    values = np.array([0, 1, 5, 3, 2]).astype(dtype) if values is None else values
    zarr.create_array(session.store, name="a", data=values, dimension_names=["y"])
    session.commit("base")
    target = row_target({"url": url, "array": "a"})
    form = LongForm.of({"url": url, "array": "a"})
    (batch,) = form.batches(((0, 5),))
    back = from_batch(target, to_batch(locate(target, batch)))
    assert back.values.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("dtype", "value"), [("i4", 1.5), ("u1", 256), ("u1", -1), ("i4", float("nan")), ("f4", 1e300)]
)
def test_a_value_that_the_array_has_no_room_for_is_named(url, dtype, value):
    session = Repository.create(url).writable_session("main")
    create(session, dtype=dtype)
    session.commit("base")
    rows = pa.table({"y": [0], "x": [0], "value": [value]})
    with pytest.raises(InvalidInputError, match="/a has no room for"):
        write(url, rows)


def test_dimensions_without_names_have_the_same_columns_on_both_sides(url):
    session = Repository.create(url).writable_session("main")
    create(session, dimension_names=None)[:] = expected((17, 23))
    session.commit("base")
    rows = table(url)
    assert rows.column_names == ["dim_0", "dim_1", "value"]
    clear(url)
    write(url, rows)
    np.testing.assert_array_equal(read(url), expected((17, 23)))


def test_spark_writes_back_what_it_read_in_both_ways(spark, url):
    make(url, LABELS["descending"])
    reader = spark.read.format("icechunk").option("url", url).option("array", "a")
    rows = spark.createDataFrame(reader.load().toArrow())
    for way in ("source", "write_rows"):
        clear(url)
        if way == "source":
            sink = rows.coalesce(1).write.format("icechunk").mode("append")
            sink.option("url", url).option("array", "a").save()
        else:
            session = Repository.open(url).writable_session("main")
            ice.write_rows(spark, session, rows, "a", value="value")
            session.commit(way)
        np.testing.assert_array_equal(read(url), expected((17, 23)))


def test_an_unknown_label_or_column_fails_the_rows_of_a_session_by_name(spark, url):
    make(url, LABELS["descending"])
    session = Repository.open(url).writable_session("main")
    frame = spark.createDataFrame([(99, 0, 1.0)], "y long, x long, value double")
    with pytest.raises(InvalidInputError, match="y = 99 is not among the labels of /y"):
        ice.write_rows(spark, session, frame, "a", value="value")
    wrong = {
        "no column 'kelvin'; they have y, x, value": frame,
        "no column 'y'; they have lat, x, kelvin": frame.toDF("lat", "x", "kelvin"),
        "column x holds string, and positions": frame.selectExpr("y", "'a' x", "value kelvin"),
        "column y holds string, and the labels": frame.selectExpr("'a' y", "x", "value kelvin"),
        "column kelvin holds string, and /a holds float64": frame.selectExpr(
            "y", "x", "'a' kelvin"
        ),
    }
    for told, rows in wrong.items():
        with pytest.raises(InvalidInputError, match=told):
            ice.write_rows(spark, session, rows, "a", value="kelvin")
    assert not session.has_uncommitted_changes
    with pytest.raises(Exception, match="no column 'value'; they have lat, x, kelvin"):
        frame.toDF("lat", "x", "kelvin").write.format("icechunk").mode("append").options(
            url=url, array="a", columns="lat,x"
        ).save()
