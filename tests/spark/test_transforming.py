"""Arrays from arrays: the values are numpy's, whatever the chunks."""

import numpy as np
import pytest
import zarr

from icefloe import AlreadyExistsError, InvalidInputError, NotFoundError, Repository
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


BOUNDARIES = {
    "reflect": {"mode": "symmetric"},
    "nearest": {"mode": "edge"},
    "periodic": {"mode": "wrap"},
    7.5: {"constant_values": 7.5},
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_beyond_the_ends_is_what_the_boundary_says(spark, repo, session, boundary):
    """The halo reaches over several chunks, and corners have both boundaries."""
    create(session, "out", chunks=(3, 4))

    def total(values):
        windows = np.lib.stride_tricks.sliding_window_view(values, (5, 13))
        return windows.sum(axis=(2, 3))

    plan = {"inputs": ["a"], "halo": {"y": 2, "x": 6}, "boundary": boundary}
    ice.transform(spark, session, "out", total, **plan)
    wide = np.pad(VALUES, ((2, 2), (6, 6)), **BOUNDARIES[boundary])
    np.testing.assert_allclose(committed(repo, session, "out")[:], total(wide), rtol=1e-12)


def test_a_boundary_of_its_own_for_each_dimension(spark, repo, session):
    create(session, "out")
    plan = {"halo": {"y": 1, "x": 1}, "boundary": {"x": "periodic"}}

    def neighbours(values):
        return np.roll(values, 1, axis=1) + np.roll(values, -1, axis=1)

    ice.transform(spark, session, "out", neighbours, inputs=["a"], **plan)
    np.testing.assert_allclose(committed(repo, session, "out")[:], neighbours(VALUES))


def test_several_outputs_are_computed_together_once(spark, repo, session, tmp_path):
    calls = tmp_path / "calls"

    def both(a):
        with calls.open("a") as file:
            file.write(f"{a.size}\n")
        return {"/low": np.floor(a * 10), "high": a + 1}

    outputs = {
        "low": {"dtype": "i2", "chunks": (6, 5), "fill_value": -1, "attributes": {"units": "K"}},
        "/high": {"chunks": (4, 10)},
    }
    staged = ice.transform(spark, session, outputs, both, inputs=["a"], block_bytes=1)
    low = committed(repo, session, "low")
    assert (low.dtype, low.chunks, dict(low.attrs)) == (np.int16, (6, 5), {"units": "K"})
    assert low.metadata.dimension_names == ("y", "x")
    np.testing.assert_array_equal(low[:], np.floor(VALUES * 10))
    high = zarr.open_array(repo.readonly_session("main").store, path="high", mode="r")
    np.testing.assert_array_equal(high[:], VALUES + 1)
    assert [each.path for each in staged.arrays] == ["/low", "/high"]
    sizes = [int(line) for line in calls.read_text().split()]
    assert sum(sizes) == VALUES.size, "every value was seen once"
    assert len(sizes) == 2 * 3, "blocks hold whole chunks of both: 12 by 10"


def test_several_outputs_as_a_tuple_of_a_region_with_a_halo(spark, repo, session):
    create(session, "up", chunks=(3, 4))
    create(session, "down", chunks=(3, 8))

    def both(a):
        return np.gradient(a, axis=1), -np.gradient(a, axis=1)

    plan = {"inputs": ["a"], "halo": {"x": 1}, "region": {"y": slice(2, 17)}}
    ice.transform(spark, session, {"up": None, "down": None}, both, **plan)
    wanted = np.zeros((17, 23))
    wanted[2:] = slope(VALUES)[2:]
    np.testing.assert_array_equal(committed(repo, session, "up")[:], wanted)
    down = zarr.open_array(repo.readonly_session("main").store, path="down", mode="r")
    np.testing.assert_array_equal(down[:], -wanted)


def test_outputs_that_are_there_or_not_are_told_apart(spark, session):
    with pytest.raises(AlreadyExistsError, match="give None"):
        ice.transform(spark, session, {"a": {}}, slope, inputs=["a"])
    with pytest.raises(NotFoundError):
        ice.transform(spark, session, {"none": None}, slope, inputs=["a"])
    with pytest.raises(InvalidInputError, match="no dimension is named z"):
        ice.transform(spark, session, "a", slope, inputs=["a"], halo={"z": 1})
    with pytest.raises(InvalidInputError, match="no boundary is called 'wrap'"):
        ice.transform(spark, session, "a", slope, inputs=["a"], boundary="wrap")
    with pytest.raises(Exception, match="the function made"):
        ice.transform(spark, session, "a", lambda a: a[1:], inputs=["a"])


def test_inputs_of_another_shape_are_refused(spark, session):
    create(session, "out", shape=(17, 22))
    with pytest.raises(InvalidInputError, match=r"a has the shape \(17, 23\), and /out"):
        ice.transform(spark, session, "out", slope, inputs=["a"])


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


def test_a_pyramid_of_whole_numbers_and_gaps(spark, repo, session):
    counts = np.random.default_rng(4).integers(0, 100, (7, 9)).astype("u1")
    create(session, "group/counts", (7, 9), (4, 4), dtype="u1")[:] = counts
    gaps = np.where(VALUES < 0.5, np.nan, VALUES)
    create(session, "gaps")[:] = gaps
    ice.pyramid(spark, session, "group/counts", levels=3, factors={"x": 2})
    ice.pyramid(spark, session, "gaps", levels=1, factors={"x": 23, "y": 17}, reduce=np.nanmax)
    first = committed(repo, session, "group/counts_1")
    pairs = np.pad(counts.astype("f8"), ((0, 0), (0, 1)), constant_values=np.nan)
    wanted = np.rint(np.nanmean(pairs.reshape(7, 5, 2), axis=2))
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first[:], wanted)
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="gaps_1", mode="r")[:].tolist() == [[np.nanmax(gaps)]]
    assert zarr.open_array(store, path="group/counts_3", mode="r").shape == (7, 2)
    (entry,) = zarr.open_group(store, path="group", mode="r").attrs["multiscales"]
    assert (entry["name"], entry["type"]) == ("counts", "mean")
    assert [each["path"] for each in entry["datasets"]] == [
        "counts", "counts_1", "counts_2", "counts_3",
    ]  # fmt: skip
    assert entry["datasets"][2]["coordinateTransformations"][0]["scale"] == [1.0, 4.0]


def test_a_pyramid_of_no_such_dimension_is_refused(spark, session):
    with pytest.raises(InvalidInputError, match="no dimension z"):
        ice.pyramid(spark, session, "a", levels=1, factors={"z": 2})
    with pytest.raises(InvalidInputError, match="at least 1"):
        ice.pyramid(spark, session, "a", levels=1, factors={"x": 0})
