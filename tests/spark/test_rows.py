"""Rows to arrays: every value at its place, once, and everything else as it was."""

import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.splitting import with_rule
from spark.jobs import create, expected
from stateful.layout import check_layout, manifest_ids

# mapInArrow looks for pandas, and pyspark has not tried the version that it finds.
pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)


@pytest.fixture
def repo(tmp_path):
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    return Repository.create(str(tmp_path / "repo"), config=config)


def read(repo):
    store = repo.readonly_session("main").store
    return zarr.open_array(store, path="a", mode="r")[...]


def rows(spark, places, values):
    data = [(*map(int, place), float(each)) for place, each in zip(places, values, strict=True)]
    return spark.createDataFrame(data, "y long, x long, v double")


def everywhere(shape):
    return np.stack(np.indices(shape), axis=-1).reshape(-1, len(shape))


def test_scattered_rows_go_to_their_places_and_the_rest_stays(spark, repo):
    session = repo.writable_session("main")
    values = np.random.default_rng(1).random((17, 23))
    create(session)[:] = values
    first = session.commit("base")
    places = np.random.default_rng(2).permutation(everywhere((8, 23)))[:60]
    session = repo.writable_session("main")
    staged = ice.write_rows(spark, session, rows(spark, places, range(60)), "a", value="v")
    tip = session.commit("rows", write_key="rows 1")
    values[tuple(places.T)] = np.arange(60)
    np.testing.assert_array_equal(read(repo), values)
    check_layout(repo.storage, tip)
    touched = len(np.unique(places // (4, 5), axis=0))
    assert staged.arrays[0].chunks == touched
    before, after = (manifest_ids(repo.storage, each, "/a") for each in (first, tip))
    kept = {name for name, box in before.items() if box[0][0] >= 2}
    assert kept == before.keys() & after.keys()


def test_all_rows_of_a_new_array_by_coordinate(spark, repo):
    session = repo.writable_session("main")
    create(session)
    names = {"y": np.arange(17)[::-1] * 0.25, "x": np.arange(23) + 100}
    for name, values in names.items():
        array = create(
            session,
            name,
            shape=values.shape,
            chunks=(8,),
            dtype=values.dtype,
            dimension_names=[name],
        )
        array[:] = values
    data = [
        (float(names["y"][y]), int(x), float(expected((17, 23))[y, x]))
        for y, x in everywhere((17, 23)).tolist()
    ]
    frame = spark.createDataFrame(data, "lat double, pos int, v double")
    ice.write_rows(
        spark, session, frame, "a", value="v", columns=["lat", "pos"], coordinates=["lat"]
    )
    tip = session.commit("rows")
    np.testing.assert_array_equal(read(repo), expected((17, 23)))
    check_layout(repo.storage, tip)


def test_regions_without_rows_are_carried_over(spark, tmp_path):
    repo = Repository.create(str(tmp_path / "one"), config=RepositoryConfig())
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("one manifest")
    repo = Repository.open(repo.storage, config=with_rule(RepositoryConfig(), "/a", (2, 3)))
    session = repo.writable_session("main")
    ice.write_rows(spark, session, rows(spark, [(16, 22)], [-1.0]), "a", value="v")
    tip = session.commit("one row")
    values = expected((17, 23)).astype("f8")
    values[16, 22] = -1.0
    np.testing.assert_array_equal(read(repo), values)
    check_layout(repo.storage, tip)
    assert len(manifest_ids(repo.storage, tip, "/a")) == 6


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([(1, 1), (9, 9), (1, 1)], r"several rows have a value for \(1, 1\)"),
        ([(17, 0)], "no position in 17 elements"),
        ([(-1, 0)], "no position in 17 elements"),
    ],
    ids=["twice", "after-the-end", "before-the-start"],
)
def test_rows_that_share_a_place_or_have_none_fail_the_write(spark, repo, places, told):
    session = repo.writable_session("main")
    create(session)
    frame = rows(spark, places, range(len(places)))
    with pytest.raises(Exception, match=told):
        ice.write_rows(spark, session, frame, "a", value="v")
    assert session.status().updated_chunks == {}


def test_any_of_the_rows_that_share_a_place_may_count(spark, repo):
    session = repo.writable_session("main")
    create(session)
    frame = rows(spark, [(1, 1), (1, 1)], [5, 6])
    ice.write_rows(spark, session, frame, "a", value="v", on_duplicate="any")
    session.commit("one of them")
    assert read(repo)[1, 1] in (5.0, 6.0)


def test_columns_must_fit_the_dimensions(spark, repo):
    session = repo.writable_session("main")
    create(session)
    frame = rows(spark, [(1, 1)], [5])
    with pytest.raises(InvalidInputError, match="a column for each of the 2"):
        ice.write_rows(spark, session, frame, "a", value="v", columns=["y"])
    with pytest.raises(InvalidInputError, match=r"columns is a list of names: \['y', 'x'\]"):
        ice.write_rows(spark, session, frame, "a", value="v", columns="y,x")
    with pytest.raises(InvalidInputError, match="such a column as 'v'"):
        ice.write_rows(spark, session, frame, "a", value="v", coordinates=["v"])
