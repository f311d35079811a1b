"""Other chunks, same values; and no value is read more often than it must be."""

import numpy as np
import pytest
import zarr

from icefloe import AlreadyExistsError, InvalidInputError, Repository
from icefloe import spark as ice
from icefloe.spark.rechunking import chunks_between, times_read
from spark.jobs import create
from stateful.layout import check_layout

VALUES = np.random.default_rng(3).random((40, 30))


@pytest.fixture
def repo(tmp_path):
    return Repository.create(str(tmp_path / "repo"))


@pytest.fixture
def session(repo):
    session = repo.writable_session("main")
    options = {"attributes": {"units": "K"}, "fill_value": -1.0}
    create(session, "a", (40, 30), (1, 30), **options)[:] = VALUES
    return session


def read(repo, path):
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")


def check(array, chunks):
    assert (array.chunks, dict(array.attrs), array.fill_value) == (chunks, {"units": "K"}, -1.0)
    assert array.metadata.dimension_names == ("y", "x")
    np.testing.assert_array_equal(array[:], VALUES)


def test_a_copy_with_other_chunks(spark, repo, session):
    ice.rechunk(spark, session, "/a", "/b", chunks=(17, 4))
    check_layout(repo.storage, session.commit("other chunks"))
    check(read(repo, "a"), (1, 30))
    check(read(repo, "b"), (17, 4))
    with pytest.raises(AlreadyExistsError, match="/b"):
        ice.rechunk(spark, repo.writable_session("main"), "a", "b", chunks=(1, 1))
    with pytest.raises(InvalidInputError, match="no chunks of /a"):
        ice.rechunk(spark, repo.writable_session("main"), "a", "c", chunks=(1,))


def test_an_array_changes_its_chunks_in_place(spark, repo, session):
    session.commit("rows")
    session = repo.writable_session("main")
    # What is not committed yet counts, too.
    zarr.open_array(session.store, path="a")[0] = VALUES[0]
    ice.rechunk(spark, session, "a", chunks=(40, 5))
    check_layout(repo.storage, session.commit("columns"))
    check(read(repo, "a"), (40, 5))
    assert repo.verify("data") == []


def test_rows_become_columns_by_way_of_chunks_in_between(spark, repo, session):
    session.commit("rows")
    session = repo.writable_session("main")
    # Room for four rows, or for three columns.
    memory = 4 * 30 * 8
    assert chunks_between((40, 30), (1, 30), (40, 1), 8, memory) == (4, 3)
    ice.rechunk(spark, session, "a", "columns", chunks=(40, 1), memory=memory)
    tip = session.commit("columns")
    check_layout(repo.storage, tip)
    check(read(repo, "columns"), (40, 1))
    # The array in between left nothing behind but garbage.
    assert {*repo.readonly_session("main").paths()} == {"/a", "/columns"}
    assert repo.verify("data") == []


def test_times_that_a_value_is_read():
    hours, grid = 8760, (721, 1440)
    limit = 2**26
    assert times_read((hours, *grid), (24, *grid), (48, *grid), limit) == 1
    assert times_read((hours, *grid), (24, *grid), (hours, 10, 10), limit) > 100
    between = chunks_between((hours, *grid), (24, *grid), (hours, 10, 10), 4, 4 * limit)
    assert between is not None
    assert times_read((hours, *grid), (24, *grid), between, limit) < 1.5
    assert times_read((hours, *grid), between, (hours, 10, 10), limit) < 1.5
    assert np.prod(between) * 4 > 2**20, "chunks in between are not tiny"
    assert chunks_between((0, 5), (1, 5), (5, 1), 8, 10) is None
