"""An option that is not known is refused: what it was meant to change would stay as it is."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zarr

from icefloe import InvalidInputError, Repository
from icefloe.spark.option_list import OPTIONS, Use, check_options, known
from icefloe.spark.options import open_session
from icefloe.spark.reading import LongForm
from spark.jobs import create

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "repo")
    session = Repository.create(url).writable_session("main")
    create(session)[:] = 1
    session.commit("first")
    return url


@pytest.mark.parametrize(
    ("use", "name", "told"),
    [
        (Use.READ, "brnch", "did you mean 'branch'"),
        (Use.READ, "snapshot", "did you mean 'snapshot_id'"),
        (Use.READ, "snapshotId", "did you mean 'snapshot_id'"),
        (Use.READ, "asOf", "did you mean 'as_of'"),
        (Use.READ, "path", "the option 'url'"),
        (Use.READ, "on_duplicate", "only for write and writeStream"),
        (Use.WRITE, "as_of", "only for read"),
        (Use.WRITE, "tag", "only for read"),
        (Use.WRITE_STREAM, "write_key", "only for write"),
        (Use.READ_STREAM, "array", "only for read"),
        (Use.READ_STREAM, "colour", "there are .*from"),
    ],
)
def test_an_unknown_option_is_refused_with_those_that_there_are(use, name, told):
    with pytest.raises(InvalidInputError, match=told) as caught:
        check_options({"url": "x", name: "1"}, use)
    assert caught.value.kind == "unknown-option"
    assert "url, storage_options" in str(caught.value)


def test_cases_do_not_matter_and_what_spark_says_itself_is_no_option_of_ours():
    check_options({"URL": "x", "Array": "a", "AS_OF": "now"}, Use.READ)
    check_options({"checkpointLocation": "x", "queryName": "q"}, Use.WRITE_STREAM)


def test_a_stream_begins_at_the_latest_or_the_earliest(spark, url):
    stream = spark.readStream.format("icechunk-snapshots").option("url", url)
    with pytest.raises(Exception, match="'from' is 'latest' or 'earliest', not 'earlyest'"):
        stream.option("from", "earlyest").load()


def test_every_source_and_sink_refuses_unknown_options(spark, url, tmp_path):
    given = {"url": url, "array": "a", "brnch": "x"}
    with pytest.raises(Exception, match="no option 'brnch' for read"):
        spark.read.format("icechunk").options(**given).load()
    frame = spark.createDataFrame([(0, 0, 1.0)], "y long, x long, value double")
    with pytest.raises(Exception, match="no option 'brnch' for write"):
        frame.write.format("icechunk").mode("append").options(**given).save()
    stream = spark.readStream.format("rate").load().selectExpr("value y", "value x", "value")
    place = str(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="no option 'brnch' for writeStream"):
        stream.writeStream.format("icechunk").options(**given).queryName("q").option(
            "checkpointLocation", place
        ).start().processAllAvailable()
    with pytest.raises(Exception, match="no option 'brnch' for readStream"):
        spark.readStream.format("icechunk-snapshots").options(
            url=url, brnch="x"
        ).load().writeStream.format("noop").option(
            "checkpointLocation", place
        ).start().processAllAvailable()


def test_a_named_stream_of_rows_is_written(spark, url, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text('{"y": 0, "x": 1, "value": 7}')
    rows = spark.readStream.schema("y long, x long, value double").json(str(tmp_path / "rows"))
    query = rows.writeStream.format("icechunk").options(url=url, array="a").queryName("named")
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    query.start().awaitTermination()
    store = Repository.open(url).readonly_session("main").store
    assert zarr.open_array(store, path="a", mode="r")[0, 1] == 7


def test_the_branch_as_it_was_is_read(spark, url):
    repo = Repository.open(url)
    first = repo.lookup_snapshot(repo.lookup_branch("main"))
    with repo.transaction("main", message="later") as store:
        zarr.open_array(store, path="a")[:] = 2

    def mean(**options):
        reader = spark.read.format("icechunk").options(url=url, array="a", **options)
        return reader.load().selectExpr("avg(value)").first()[0]

    then = first.written_at + timedelta(microseconds=1)
    assert mean() == 2
    assert mean(as_of=then.isoformat()) == 1
    assert mean(AS_OF=then.astimezone(UTC).replace(tzinfo=None).isoformat(), branch="main") == 1
    assert mean(as_of=datetime.now(UTC).isoformat()) == 2
    assert mean(snapshot_id=first.id) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"branch": "main", "tag": "v1"},
        {"branch": "main", "snapshot_id": "x"},
        {"tag": "v1", "as_of": "2026-11-18"},
        {"snapshot_id": "x", "as_of": "2026-11-18"},
    ],
)
def test_options_that_contradict_each_other_are_refused(url, given):
    with pytest.raises(InvalidInputError, match="contradict each other"):
        open_session({"url": url, **given})


@pytest.mark.parametrize(
    "given",
    [{"decode": "maybe"}, {"as_of": "yesterday"}, {"columns": "z"}],
)
def test_an_option_without_sense_is_named(url, given):
    (name,) = given
    with pytest.raises(InvalidInputError, match=given[name]):
        LongForm.of({"url": url, "array": "a", **given})


def test_the_page_has_every_option_as_the_code_has_it():
    lines = [
        f"| `{option.name}` | {option.meaning} | {option.default} | "
        + " | ".join("x" if use in option.uses else "" for use in Use)
        + " |"
        for option in OPTIONS
    ]
    text = PAGE.read_text()
    assert "\n".join(lines) in text, "\n".join(lines)
    assert {option.name for option in OPTIONS} == {name for use in Use for name in known(use)}
