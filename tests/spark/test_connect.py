"""Spark Connect: the data sources work, and what cannot says so."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

from icefloe import Repository, RepositoryConfig
from spark.jobs import create, expected
from spark.test_app import environment


@pytest.mark.timeout(600)
def test_a_client_reads_writes_and_streams_and_is_told_what_it_cannot(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = Repository.create(tmp_path / "repo", config=config)
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("base")
    done = subprocess.run(
        [sys.executable, "-m", "spark.connect_client", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *_, answer, example = done.stdout.splitlines()
    assert example == "spark-connect"
    answers = json.loads(answer)
    assert answers["class"] == "pyspark.sql.connect.session"
    values = expected((17, 23)).astype("f8")
    assert answers["read"] == values[3, :4].tolist()
    values[0, 0], values[1, 1] = -5, -7
    store = repo.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], values)
    history = [item.message for item in repo.ancestry(branch="main")][::-1]
    assert history[2:] == ["write rows to /a", "write batch 0 to /a"], "each once"
    assert answers["snapshots"] == history
    for kind, told in answers["refused"].values():
        assert kind == "spark-connect"
        assert 'df.write.format("icechunk")' in told
        assert "icefloe.spark.app" in told
    assert repo.list_branches() == {"main"}, "a sliced write began nothing"
    assert repo.verify("objects") == []
