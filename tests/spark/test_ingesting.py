"""Files that cut across regions: every value once, and no chunk from two files."""

import numpy as np
import pytest
import zarr

from icefloe import Repository, RepositoryConfig
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
