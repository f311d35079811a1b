"""What tasks of the row sinks wrote is committed once, whoever commits meanwhile. No Spark runs."""

from itertools import count

import numpy as np
import pyarrow as pa
import pytest
import zarr

from concurrency.hooks import At, Hooked
from icefloe import ConflictError, InvalidInputError, Repository, RepositoryConfig, open_storage
from icefloe.spark.row_sink import publish, row_target, write_partition
from icefloe.spark.rows import locate
from spark.jobs import create, expected
from stateful.layout import check_layout

KEY = "streaming query 1 batch 1 /a"


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "repo")
    repo = Repository.create(url, config=RepositoryConfig(inline_chunk_threshold_bytes=0))
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("base")
    return url


def batch(y, x, value):
    columns = {"y": [y], "x": [x], "value": [value]}
    return pa.RecordBatch.from_pydict(columns)


def written(url, y, x, value):
    """What a task reports that wrote one row over the tip of now."""
    return write_partition(row_target({"url": url, "array": "a"}), iter([batch(y, x, value)]))


def rival(url, y, x, value):
    with Repository.open(url).transaction("main", message="rival") as store:
        zarr.open_array(store, path="a")[y, x] = value


def read(url):
    store = Repository.open(url).readonly_session("main").store
    return zarr.open_array(store, path="a", mode="r")[...]


def commits(url):
    """How often the batch was committed."""
    history = Repository.open(url).ancestry(branch="main")
    found = [item.metadata.get("icefloe.write_key") for item in history if item.message == "batch"]
    assert set(found) <= {KEY}
    return len(found)


def changed(*places):
    values = expected((17, 23)).astype("f8")
    for y, x, value in places:
        values[y, x] = value
    return values


def test_what_a_dead_attempt_staged_does_not_stand_for_the_next_one(url):
    class Dead(Repository):
        def merge_snapshots(self, *args, **options):
            raise OSError("killed")

    first = [written(url, 0, 0, -1.0)]
    rival(url, 16, 22, -9.0)
    first.append(written(url, 8, 10, -2.0))
    with pytest.raises(OSError, match="killed"):
        publish(Dead.open(url), "main", "/a", first, "batch", KEY)
    # Both tasks stand on the snapshot now that one of them stood on before.
    second = [written(url, 0, 0, -1.0), written(url, 8, 10, -2.0)]
    rival(url, 16, 21, -8.0)
    for _ in range(2):
        publish(Repository.open(url), "main", "/a", second, "batch", KEY)
    wanted = changed((0, 0, -1), (8, 10, -2), (16, 22, -9), (16, 21, -8))
    np.testing.assert_array_equal(read(url), wanted)
    assert commits(url) == 1


@pytest.mark.parametrize("y", [16, 0], ids=["elsewhere", "same-chunk"])
def test_a_rival_at_any_moment_is_merged_or_refused(tmp_path, url, y):
    for number in count():
        items = [written(url, 0, number, -1.0)]
        meeting = At(number, lambda: rival(url, y, 22, -9.0 - number))  # noqa: B023
        repo = Repository.open(Hooked(open_storage(url), meeting))
        meeting.arm()
        key = f"{KEY} {number}"
        try:
            publish(repo, "main", "/a", items, "batch", key)
        except ConflictError:
            assert y == 0
            assert number // 5 == 4, "only the chunk that the rival wrote, too"
            assert repo.find_write(key, "main") is None
            publish(repo, "main", "/a", [written(url, 0, number, -1.0)], "batch", key)
        if not meeting.fired:
            break
        assert read(url)[0, number] == -1
        assert read(url)[y, 22] == -9 - number
    assert number > 8
    check_layout(open_storage(url), Repository.open(url).lookup_branch("main"))


def test_fill_values_where_there_is_no_chunk_change_nothing_and_count(url):
    session = Repository.open(url).writable_session("main")
    create(session, "b")
    session.commit("nothing in it")
    target = row_target({"url": url, "array": "b"})
    items = [write_partition(target, iter([batch(0, 0, 0.0)]))]
    for _ in range(2):
        publish(Repository.open(url), "main", "/b", items, "batch", KEY)
    assert commits(url) == 1


def test_the_same_chunk_in_two_partitions_is_refused(url):
    items = [written(url, 0, 0, -1.0), written(url, 1, 1, -2.0)]
    with pytest.raises(InvalidInputError, match=r"chunk \(0, 0\) of /a are in several"):
        publish(Repository.open(url), "main", "/a", items, "batch", KEY)
    np.testing.assert_array_equal(read(url), changed())


def test_positions_are_whole_numbers(url):
    target = row_target({"url": url, "array": "a"})
    with pytest.raises(InvalidInputError, match="column y holds double"):
        locate(target, batch(1.5, 0, 0.0))


@pytest.mark.parametrize(
    ("coordinate", "given"),
    [
        (np.arange(17), 1.5),
        (np.arange(17).astype("M8[D]"), np.datetime64("1970-01-02T06", "us")),
    ],
    ids=["numbers", "times"],
)
def test_a_value_between_two_of_a_coordinate_has_no_place(url, coordinate, given):
    session = Repository.open(url).writable_session("main")
    zarr.create_array(session.store, name="y", data=coordinate, dimension_names=["y"])
    session.commit("coordinate")
    target = row_target({"url": url, "array": "a", "coordinates": "y"})
    exact = np.array([given]).astype(coordinate.dtype).astype(np.array([given]).dtype)
    assert locate(target, batch(exact[0], 0, 0.0)).positions[0].tolist() == [1]
    with pytest.raises(InvalidInputError, match="not among the labels of /y"):
        locate(target, batch(given, 0, 0.0))
