"""The data sources: arrays as tables, rows into arrays, and streams that count once."""

import shutil

import numpy as np
import pytest
import zarr

from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe.spark import IcechunkDataSource, IcechunkSnapshotsDataSource
from icefloe.spark.filtering import FilteringReader
from icefloe.spark.reading import ArrayReader, LongForm
from icefloe.splitting import with_rule
from spark.jobs import create, expected
from stateful.layout import check_layout


@pytest.fixture
def spark(spark):
    spark.dataSource.register(IcechunkDataSource)
    spark.dataSource.register(IcechunkSnapshotsDataSource)
    return spark


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "repo")


@pytest.fixture
def repo(url):
    """`a` counts its elements; `y` is a coordinate that falls, `x` has none."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    repo = Repository.create(url, config=with_rule(config, "/a", (2, 3)))
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    y = create(session, "y", shape=(17,), chunks=(17,), dtype="f4", dimension_names=["y"])
    y[:] = 8 - np.arange(17) / 2
    session.commit("base")
    return repo


def table(spark, url, **options):
    reader = spark.read.format("icechunk").option("url", url).option("array", "/a")
    return reader.options(**options).load()


def read(repo, path="a"):
    store = repo.readonly_session("main").store
    return zarr.open_array(store, path=path, mode="r")[...]


def test_an_array_is_a_table(spark, repo, url):
    frame = table(spark, url)
    assert [(each.name, each.dataType.simpleString()) for each in frame.schema] == [
        ("y", "float"),
        ("x", "bigint"),
        ("value", "double"),
    ]
    found = np.zeros((17, 23))
    for row in frame.collect():
        found[int((8 - row.y) * 2), row.x] += row.value
    np.testing.assert_array_equal(found, expected((17, 23)))


def test_filters_give_what_spark_says_and_read_only_their_chunks(spark, repo, url):
    frame = table(spark, url)
    y, x = 8 - np.arange(17)[:, None] / 2, np.arange(23)
    wanted = {
        "y >= 3 and y < 4.5 and x < 7": (y >= 3) & (y < 4.5) & (x < 7),
        "x in (1, 2, 9) and y = 8 and not (x = 2)": np.isin(x, (1, 9)) & (y == 8),
        "x > 100": (x > 100) & (y > 100),
        "value = 102": expected((17, 23)) == 102,
    }
    for condition, met in wanted.items():
        found = sorted(row.value for row in frame.where(condition).collect())
        assert found == sorted(expected((17, 23))[met]), condition
    # Without the chunks of the first eight rows, only what needs none of them can be read.
    refs = repo.readonly_session("main").refs("/a")
    gone = [refs[row].chunk_id for row in range(len(refs)) if refs.index[row][0] < 2]
    repo.storage.delete([f"chunks/{chunk_id}" for chunk_id in gone])
    assert frame.where("y <= 4.0 and x >= 15").count() == 9 * 8
    with pytest.raises(Exception, match="chunks/"):
        frame.where("y > 4.0").count()


def test_filters_are_right_on_the_default_settings_of_spark(spark, repo, url):
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        frame = table(spark, url)
        assert frame.count() == 17 * 23
        assert frame.where("y >= 3 and y < 4.5 and x < 7").count() == 3 * 7
    finally:
        spark.conf.set(setting, "true")


def test_the_log_says_once_that_filters_leave_out_no_chunks(repo, url, caplog):
    from pyspark.sql.datasource import DataSourceReader

    from icefloe.spark import filtering

    reader = FilteringReader(LongForm.of({"url": url, "array": "a"}))

    def plan(enable_pushdown):
        """Asks as Spark does, which refuses a reader that says it can filter."""
        return reader.pushFilters.__func__ is DataSourceReader.pushFilters

    filtering._tell_once.cache_clear()
    assert [plan(False), plan(False), plan(True)] == [True, True, False]
    (record,) = caplog.records
    assert "filterPushdown.enabled to true" in record.getMessage()


def test_filters_prune_partitions(repo, url):
    from pyspark.sql.datasource import EqualTo, GreaterThan, LessThan

    from icefloe.spark import reading

    reader = FilteringReader(LongForm.of({"url": url, "array": "a"}))
    filters = [GreaterThan(("y",), 3.0), LessThan(("y",), 4.5), EqualTo(("x",), 7)]
    assert reader.pushFilters(filters) == filters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PARTITION_ELEMENTS", 1)
        assert [part.box for part in reader.partitions()] == [
            ((8, 10), (7, 8)),
        ]
        whole = ArrayReader(LongForm.of({"url": url, "array": "a"}))
        assert len(whole.partitions()) == 25


def test_columns_are_read_as_asked(spark, repo, url):
    frame = table(spark, url, columns="t,y", coordinates="false", value="t")
    rows = frame.where("y = 3").orderBy("t").collect()
    assert [tuple(row) for row in rows] == [(each, 3) for each in expected((17, 23))[3]]
    with pytest.raises(Exception, match="there is no column z"):
        table(spark, url, columns="z")


def test_older_snapshots_and_tags_can_be_read(spark, repo, url):
    base = repo.lookup_branch("main")
    repo.create_tag("v1", base)
    with repo.transaction("main", message="later") as store:
        zarr.open_array(store, path="a")[:] = 0
    assert table(spark, url).selectExpr("sum(value)").first()[0] == 0
    wanted = expected((17, 23)).sum()
    for ref in ({"tag": "v1"}, {"snapshot_id": base}):
        assert table(spark, url, **ref).selectExpr("sum(value)").first()[0] == wanted


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("bool", [True, False]),
        ("u1", [0, 255]),
        ("u8", [0, 2**64 - 1]),
        (">i4", [-5, 5]),
        ("f2", [0.5, -2.0]),
        ("M8[h]", [0, 24]),
    ],
)
def test_types_survive(repo, url, dtype, values):
    session = repo.writable_session("main")
    array = create(session, "typed", shape=(2,), chunks=(1,), dtype=dtype)
    array[:] = np.array(values, dtype)
    session.commit("typed")
    form = LongForm.of({"url": url, "array": "typed", "columns": "value", "coordinates": "false"})
    (batch,) = form.batches(((0, 2),))
    found = np.array(batch.column(0).to_pylist()).astype(dtype)
    assert found.tolist() == np.array(values, dtype).tolist()


def test_secrets_are_refused(spark, repo, url):
    with pytest.raises(Exception, match="key may be secret") as caught:
        table(spark, url, storage_options='{"key": "hunter2"}')
    assert "hunter2" not in str(caught.value)


def rows(spark, places, values, parts=3):
    data = [(*map(int, place), float(each)) for place, each in zip(places, values, strict=True)]
    return spark.createDataFrame(data, "y long, x long, value double").repartition(parts, "y")


def append(frame, url, **options):
    writer = frame.write.format("icechunk").mode("append").option("url", url).option("array", "a")
    writer = writer.option("coordinates", "false")
    writer.options(**options).save()


def test_rows_are_appended_in_one_commit_once(spark, repo, url):
    before = len(list(repo.ancestry(branch="main")))
    places = [(y, x) for y in (0, 4, 9) for x in range(23)]
    frame = rows(spark, places, range(len(places)))
    for _ in range(2):
        append(frame, url, write_key="rows 1", message="three rows")
    wanted = expected((17, 23)).astype("f8")
    wanted[tuple(np.transpose(places))] = np.arange(len(places))
    np.testing.assert_array_equal(read(repo), wanted)
    assert len(list(repo.ancestry(branch="main"))) == before + 1
    check_layout(repo.storage, repo.lookup_branch("main"))


def test_a_chunk_in_two_partitions_is_an_error_and_nothing_is_written(spark, repo, url):
    tip = repo.lookup_branch("main")
    frame = rows(spark, [(0, 0), (1, 0), (2, 0), (3, 0)], [1, 2, 3, 4], parts=4)
    with pytest.raises(Exception, match="in several partitions"):
        append(frame, url)
    assert repo.lookup_branch("main") == tip


def test_chunks_of_fill_value_go(spark, repo, url):
    places = [(y, x) for y in range(4) for x in range(5)]
    append(rows(spark, places, [0.0] * 20, parts=1), url)
    session = repo.readonly_session("main")
    assert len(session.refs("/a")) == 24
    assert not read(repo)[:4, :5].any()


def start(spark, source, url, checkpoint):
    frame = (
        spark.readStream.schema("y long, x long, value double").option("maxFilesPerTrigger", 1)
    ).json(str(source))
    stream = frame.coalesce(1).writeStream.format("icechunk").option("url", url)
    stream = stream.option("array", "a").option("coordinates", "false")
    stream = stream.option("checkpointLocation", str(checkpoint))
    return stream.trigger(availableNow=True).start()


def test_a_replayed_batch_is_written_once(spark, repo, url, tmp_path):
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    source.mkdir()
    for batch in range(3):
        (source / f"{batch}.json").write_text(f'{{"y": {batch}, "x": 1, "value": {-1 - batch}}}')
    before = len(list(repo.ancestry(branch="main")))
    start(spark, source, url, checkpoint).awaitTermination()
    assert read(repo)[:3, 1].tolist() == [-1, -2, -3]
    assert len(list(repo.ancestry(branch="main"))) == before + 3
    # A driver that died after our commit and before Spark's own: its last batch comes again.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    with repo.transaction("main", message="meanwhile") as store:
        zarr.open_array(store, path="a")[2, 1] = 7
    start(spark, source, url, checkpoint).awaitTermination()
    assert len(list(repo.ancestry(branch="main"))) == before + 4
    assert read(repo)[2, 1] == 7, "the batch was not applied again"
    # Another query is another writer.
    shutil.rmtree(checkpoint)
    start(spark, source, url, checkpoint).awaitTermination()
    assert read(repo)[2, 1] == -3


def test_new_snapshots_are_a_stream(spark, repo, url, tmp_path):
    def seen():
        stream = spark.readStream.format("icechunk-snapshots").option("url", url)
        query = (
            stream.option("from", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [
            row.message
            for row in spark.read.parquet(str(tmp_path / "out")).orderBy("written_at").collect()
        ]

    assert seen() == [item.message for item in repo.ancestry(branch="main")][::-1]
    for number in range(2):
        with repo.transaction("main", message=f"new {number}") as store:
            zarr.create_group(store, path=f"g{number}")
    assert seen()[-2:] == ["new 0", "new 1"]
    assert len(seen()) == 4
