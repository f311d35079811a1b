"""Files that cut across regions: every value once, and no chunk from two files."""

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest
import zarr

from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.splitting import with_rule
from spark.jobs import create, expected
from stateful.layout import check_layout


@pytest.fixture
def repo(tmp_path):
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    return Repository.create(str(tmp_path / "repo"), config=config)


def save(folder, columns):
    """One file for some columns, all rows: it touches every region along the first axis."""
    place = folder / f"{columns.start:02}-{columns.stop:02}.npz"
    np.savez(place, start=columns.start, values=expected((17, 23))[:, columns])
    return str(place)


def open_file(name):
    with np.load(name) as data:
        start, values = int(data["start"]), data["values"]
    columns = slice(start, start + values.shape[1])
    yield "/a", (slice(0, 17), columns), values
    yield "/sums", (columns,), values.sum(axis=0)


def test_files_that_touch_many_regions(spark, repo, tmp_path):
    session = repo.writable_session("main")
    create(session)
    create(session, "sums", shape=(23,), chunks=(5,))[:] = -1.0
    files = [save(tmp_path, slice(x, min(x + 5, 20))) for x in range(0, 20, 5)]
    staged = ice.ingest(spark, session, files, open_file, paths=["a", "sums"])
    check_layout(repo.storage, session.commit("ingested", write_key="files"))
    store = repo.readonly_session("main").store
    wanted = expected((17, 23)).astype("f8")
    wanted[:, 20:] = 0
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], wanted)
    sums = np.where(np.arange(23) < 20, wanted.sum(axis=0), -1)
    np.testing.assert_array_equal(zarr.open_array(store, path="sums")[:], sums)
    assert [(each.regions, each.chunks) for each in staged.arrays] == [(6, 20), (1, 4)]


def test_two_files_in_one_chunk_are_an_error(spark, repo, tmp_path):
    session = repo.writable_session("main")
    create(session)
    create(session, "sums", shape=(23,), chunks=(5,))
    files = [save(tmp_path, slice(0, 7)), save(tmp_path, slice(7, 10))]
    with pytest.raises(Exception, match="a chunk takes one file"):
        ice.ingest(spark, session, files, open_file, paths=["a", "sums"])
    assert session.status().updated_chunks == {}


def test_two_pieces_of_one_file_in_one_chunk_are_an_error(spark, repo):
    session = repo.writable_session("main")
    create(session)

    def halves(name):
        yield "a", [slice(0, 2), slice(0, 5)], 1.0
        yield "a", [slice(2, 4), slice(0, 5)], 2.0

    with pytest.raises(Exception, match="two pieces of one"):
        ice.ingest(spark, session, ["one"], halves, paths=["a"])


def test_files_are_appended_with_the_rest_of_a_chunk(spark, repo, tmp_path):
    """The array ends within a chunk; what it has there stays."""
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    create(session, "sums", shape=(23,), chunks=(5,), dimension_names=["x"])[:] = 1.0
    create(session, "other", shape=(3,), chunks=(3,), dimension_names=["z"])[:] = 2.0
    session.commit("23 columns")

    def more(name):
        first = int(name)
        columns = slice(first, first + (7 if first == 0 else 5))
        values = expected((17, 40))[:, 23 + columns.start : 23 + columns.stop]
        yield "/a", [slice(None), columns], values
        yield "/sums", {"x": columns}, values.sum(axis=0)
        if first == 0:
            yield "/other", [slice(0, 3)], 5.0

    session = repo.writable_session("main")
    paths, append = ["a", "sums", "other"], {"x": 12}
    ice.ingest(spark, session, ["0", "7"], more, paths=paths, append=append)
    check_layout(repo.storage, session.commit("12 more"))
    assert len([*repo.ancestry(branch="main")]) == 3
    store = repo.readonly_session("main").store
    wanted = expected((17, 35))
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], wanted)
    sums = np.concatenate([np.ones(23), wanted.sum(axis=0)[23:]])
    np.testing.assert_array_equal(zarr.open_array(store, path="sums")[:], sums)
    assert zarr.open_array(store, path="other")[:].tolist() == [5.0] * 3


def test_a_piece_without_a_place_in_the_appended_dimension_is_all_of_it(spark, repo):
    session = repo.writable_session("main")
    create(session)

    def rows(name):
        yield "a", {"x": slice(0, 23)}, 3.0

    ice.ingest(spark, session, ["one"], rows, paths=["a"], append={"y": 5})
    session.commit("rows")
    array = zarr.open_array(repo.readonly_session("main").store, path="a")
    assert array[:, 0].tolist() == [0.0] * 17 + [3.0] * 5


def test_appending_along_no_dimension_is_an_error(spark, repo):
    session = repo.writable_session("main")
    create(session)
    with pytest.raises(InvalidInputError, match="no array has a dimension time"):
        ice.ingest(spark, session, ["one"], open_file, paths=["a"], append={"time": 5})


UNITS = {"units": "hours since 2026-01-01"}


def series(session, times=(0, 1), attributes=UNITS, dtype="i4"):
    """`t2m` and its coordinate."""
    create(session, "t2m", shape=(2, 3), chunks=(1, 3), dimension_names=["time", "x"])[:] = 1
    zarr.create_array(
        session.store,
        name="time",
        data=np.array(times, dtype),
        attributes=attributes,
        dimension_names=["time"],
    )


def two_rows(name):
    yield "/t2m", {"time": slice(0, 1)}, 5.0
    yield "/t2m", {"time": slice(1, 2)}, 6.0


@pytest.mark.parametrize(
    ("given", "attributes", "dtype", "wanted"),
    [
        ([2, 3], UNITS, "i4", [0, 1, 2, 3]),
        (np.array(["2026-01-01T02", "2026-01-02"], "M8[h]"), UNITS, "i4", [0, 1, 2, 24]),
        (np.array(["2026-01-01T02:30", "2026-01-02"], "M8[ns]"), UNITS, "f8", [0, 1, 2.5, 24]),
        ([datetime(2026, 1, 1, 2), datetime(2026, 1, 2)], UNITS, "i4", [0, 1, 2, 24]),
        ([date(2026, 1, 2), date(2026, 1, 3)], UNITS, "i4", [0, 1, 24, 48]),
        ([pd.Timestamp("2026-01-01T02"), pd.Timestamp("2026-01-02")], UNITS, "i4", [0, 1, 2, 24]),
        (["2026-01-01T02", "2026-01-02"], UNITS, "i4", [0, 1, 2, 24]),
        ([4.5, 5.0], {"scale_factor": 0.5}, "i2", [0, 1, 9, 10]),
    ],
    ids=["counts", "times", "parts", "datetimes", "dates", "pandas", "texts", "packed"],
)
def test_labels_of_what_is_appended_are_written_in_the_same_commit(
    spark, repo, given, attributes, dtype, wanted
):
    session = repo.writable_session("main")
    series(session, attributes=attributes, dtype=dtype)
    session.commit("two hours")
    session = repo.writable_session("main")
    ice.ingest(spark, session, ["one"], two_rows, paths=["t2m"], append={"time": given})
    session.commit("two more")
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="time")[:].tolist() == wanted
    assert zarr.open_array(store, path="t2m")[:, 0].tolist() == [1, 1, 5, 6]
    assert len([*repo.ancestry(branch="main")]) == 3


def test_an_append_that_leaves_an_array_behind_is_refused_and_changes_nothing(spark, repo):
    session = repo.writable_session("main")
    series(session)
    create(session, "tp", shape=(2,), chunks=(1,), dimension_names=["time"])
    session.commit("two hours")
    wrong = {
        "/time has the dimension time, too, and would stay at 2: give its labels": {"time": 2},
        "/tp has the dimension time, too, and would stay at 2: put it into paths": {"time": [2, 3]},
        r"/time would have the label 1 twice": {"time": [1, 2]},
        "is no count of int32 in 'hours since": {"time": np.array(["2026-01-01T02:30"], "M8[m]")},
        "/time counts time, and the labels are .* no ISO times": {"time": ["a"]},
        "labels of time have time zones": {"time": [datetime(2026, 1, 1, 2, tzinfo=UTC)]},
        "labels of time are objects, such as None": {"time": [None]},
        "has no room for 2.5": {"time": [2.5]},
    }
    for told, append in wrong.items():
        session = repo.writable_session("main")
        with pytest.raises(InvalidInputError, match=told):
            ice.ingest(spark, session, ["one"], two_rows, paths=["t2m"], append=append)
        assert not session.has_uncommitted_changes, told


def test_a_coordinate_that_grew_without_labels_is_an_error(spark, repo):
    session = repo.writable_session("main")
    series(session)
    with pytest.raises(InvalidInputError, match="/time would have the label 0 twice"):
        ice.ingest(spark, session, ["one"], two_rows, paths=["t2m", "time"], append={"time": 2})


def test_files_may_give_the_labels_themselves(spark, repo):
    session = repo.writable_session("main")
    series(session)

    def with_labels(name):
        yield from two_rows(name)
        yield "/time", [slice(0, 2)], [7, 8]

    ice.ingest(spark, session, ["one"], with_labels, paths=["t2m", "time"], append={"time": 2})
    assert zarr.open_array(session.store, path="time")[:].tolist() == [0, 1, 7, 8]
