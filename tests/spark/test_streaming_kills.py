"""Streams killed at every point of a batch: no batch is lost, and none counts twice."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr

from icefloe import PackingConfig, Repository, RepositoryConfig
from spark.doomed_source import DoomedDataSource
from spark.jobs import create
from spark.stream_query import start
from spark.test_app import LOCAL, environment

BEGINS, BEFORE_SWAP, AFTER_SWAP, ENDS = 2, 11, 12, 13
"""Moments of a commit; those before are of the task, and those between are of other files."""


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    repo = Repository.create(str(tmp_path / "repo"), config=config)
    session = repo.writable_session("main")
    create(session, shape=(4, 50), chunks=(4, 1))
    session.commit("empty")
    return repo


class Files:
    """A source that gives one row for each file, and one batch for each row."""

    def __init__(self, folder):
        folder.mkdir()
        self.url = str(folder)

    def add(self, number):
        row = {"y": 0, "x": number, "value": number + 1}
        with open(f"{self.url}/{number:03}.json", "w") as file:
            json.dump(row, file)


class Commits:
    """A source whose rows are the commits of another repository."""

    def __init__(self, folder):
        self.url = str(folder)
        self._repo = Repository.create(self.url)

    def add(self, number):
        with self._repo.transaction("main", message=str(number)) as store:
            zarr.create_group(store, path=f"g{number}")


def applied(repo):
    """The batches in the history of main, oldest first."""
    keys = [item.metadata.get("icefloe.write_key") for item in repo.ancestry(branch="main")]
    found = [re.fullmatch(r"streaming query (\S+) batch (\d+) /a", key) for key in keys if key]
    assert len({match[1] for match in found}) <= 1, "one query"
    return [int(match[2]) for match in reversed(found)]


def row(repo):
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[0]


def check(repo, rows):
    """Exactly the rows of so many batches, each once."""
    batches = applied(repo)
    assert len(batches) == len(set(batches)) == rows
    assert batches == sorted(batches)
    values = np.zeros(50)
    values[:rows] = np.arange(rows) + 1
    np.testing.assert_array_equal(row(repo), values)
    assert repo.verify("objects") == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "moments"),
    [
        (Files, [BEGINS, BEFORE_SWAP, AFTER_SWAP]),
        pytest.param(Commits, [BEFORE_SWAP, AFTER_SWAP], marks=pytest.mark.slow),
    ],
)
def test_a_commit_of_a_batch_that_is_killed_counts_once(spark, repo, tmp_path, kind, moments):
    source, checkpoint = kind(tmp_path / "source"), tmp_path / "checkpoint"
    for number, moment in enumerate(moments):
        # A query that died starts again, ends its batch, and dies in the next one.
        source.add(number)
        fate = {"dies_in": number, "dies_at": moment}
        query = start(spark, source.url, repo.storage.url, checkpoint, **fate)
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            query.awaitTermination()
        check(repo, number + (moment >= AFTER_SWAP))
    source.add(number + 1)
    start(spark, source.url, repo.storage.url, checkpoint).awaitTermination()
    check(repo, number + 2)


def test_a_batch_write_that_is_killed_is_ended_by_its_retry(spark, repo):
    spark.dataSource.register(DoomedDataSource)
    frame = spark.createDataFrame([(0, 0, 1.0)], "y long, x long, value double").coalesce(1)
    writer = frame.write.format("doomed").mode("append")
    writer = writer.options(url=repo.storage.url, array="a", write_key="rows 1")
    for moment in (BEFORE_SWAP, AFTER_SWAP):
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            writer.option("dies_at", moment).save()
        # Spark aborts the write, whether it landed or not.
        assert (repo.find_write("rows 1", "main") is not None) == (moment == AFTER_SWAP)
        assert row(repo)[0] == (moment == AFTER_SWAP)
        assert repo.verify("objects") == []
    before = repo.lookup_branch("main")
    writer.option("dies_at", -1).save()
    assert repo.lookup_branch("main") == before


def run(folder, **given):
    """How a process ends that runs a query, and what it said."""
    flags = " ".join(f"--conf {name}={value}" for name, value in LOCAL.items())
    log = folder / "log"
    # Not a pipe: what the dead leave behind would keep it open.
    with log.open("wb") as said:
        done = subprocess.run(
            [sys.executable, "-m", "spark.stream_query", json.dumps(given)],
            env=environment(PYSPARK_SUBMIT_ARGS=f"{flags} pyspark-shell"),
            stdout=said,
            stderr=said,
            timeout=400,
        )
    return done.returncode, log.read_text()[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [Files, Commits])
def test_a_query_killed_at_any_point_of_a_batch_goes_on(repo, tmp_path, kind):
    source, checkpoint = kind(tmp_path / "source"), tmp_path / "checkpoint"
    given = {"source": source.url, "url": repo.storage.url, "checkpoint": str(checkpoint)}
    # After one file is before the next one.
    moments = [0, 1, BEGINS, *range(BEGINS + 1, AFTER_SWAP, 2), AFTER_SWAP, ENDS]
    moments += ["offsets", "commits"]
    if kind is Commits:
        moments = [0, BEFORE_SWAP, AFTER_SWAP, "commits"]
    for number, moment in enumerate(moments):
        source.add(number)
        if isinstance(moment, str):
            # Spark writes this file when a batch is planned, and that one when it is over.
            code, told = run(tmp_path, mark=str(checkpoint / moment / str(number)), **given)
        else:
            code, told = run(
                tmp_path, dies_in=str(number), dies_at=str(moment), victims="all", **given
            )
        assert code == -signal.SIGKILL, told
        is_there = moment == "commits" or (moment != "offsets" and moment >= AFTER_SWAP)
        check(repo, number + is_there)
    source.add(number + 1)
    code, told = run(tmp_path, **given)
    assert code == 0, told
    check(repo, number + 2)
    assert sorted(applied(repo)) == list(range(number + 2)), "no batch is left out"
