"""Arrays from arrays: the values are numpy's, whatever the chunks."""

import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, Repository
from icefloe import spark as ice
from spark.jobs import create
from stateful.layout import check_layout

VALUES = np.random.default_rng(3).random((17, 23))


@pytest.fixture
def repo(tmp_path):
    return Repository.create(str(tmp_path / "repo"))


@pytest.fixture
def session(repo):
    session = repo.writable_session("main")
    create(session)[:] = VALUES
    return session


def committed(repo, session, path):
    check_layout(repo.storage, session.commit("computed"))
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")


def slope(values):
    """Needs one neighbour on either side."""
    return np.gradient(values, axis=1)


def test_a_function_of_several_arrays(spark, repo, session):
    create(session, "b", chunks=(7, 7))[:] = 2 * VALUES
    create(session, "out", chunks=(3, 8))
    ice.transform(spark, session, "out", lambda a, b: b - a, inputs=["a", "b"])
    np.testing.assert_array_equal(committed(repo, session, "out")[:], 2 * VALUES - VALUES)


def test_a_halo_gives_neighbours(spark, repo, session):
    create(session, "out", chunks=(3, 4))
    plan = {"inputs": ["a"], "halo": {"x": 1}}
    ice.transform(spark, session, "out", slope, **plan, region={"y": slice(2, 17)})
    wanted = np.zeros((17, 23))
    wanted[2:] = slope(VALUES)[2:]
    np.testing.assert_array_equal(committed(repo, session, "out")[:], wanted)


def test_inputs_of_another_shape_are_refused(spark, session):
    create(session, "out", shape=(17, 22))
    with pytest.raises(InvalidInputError, match="another shape"):
        ice.transform(spark, session, "out", slope, inputs=["a"])


def test_other_chunks_same_values(spark, repo, session):
    zarr.open_array(session.store, path="a").attrs["units"] = "K"
    ice.rechunk(spark, session, "/a", "/b", (17, 2))
    array = committed(repo, session, "b")
    assert (array.chunks, array.attrs["units"]) == ((17, 2), "K")
    np.testing.assert_array_equal(array[:], VALUES)


def test_a_pyramid_of_means(spark, repo, session):
    ice.pyramid(spark, session, "a", levels=2, factors={"y": 2, "x": 3})
    first = committed(repo, session, "a_1")
    store = repo.readonly_session("main").store
    second = zarr.open_array(store, path="a_2", mode="r")
    assert (first.shape, second.shape) == ((9, 8), (5, 3))
    for fine, coarse in ((VALUES, first[:]), (first[:], second[:])):
        for (y, x), value in np.ndenumerate(coarse):
            group = fine[2 * y : 2 * y + 2, 3 * x : 3 * x + 3]
            np.testing.assert_allclose(value, group.mean(), rtol=1e-12)
