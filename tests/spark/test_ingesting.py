"""Files that cut across regions: every value once, and no chunk from two files."""

import numpy as np
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
