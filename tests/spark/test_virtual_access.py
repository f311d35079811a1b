"""Executors read virtual chunks of the containers that the reader trusts, and of no others."""

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import spark as ice
from spark.test_app import arguments, submit


@pytest.fixture
def prefix(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "day.bin").write_bytes(np.arange(20, dtype="<i4").tobytes())
    return f"file://{folder}/"


@pytest.fixture
def repo(tmp_path, prefix):
    """Array `v` is virtual; `a` is for what is made of it."""
    config = icefloe.RepositoryConfig()
    store = icefloe.local_filesystem_store(prefix.removeprefix("file://"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    repo = icefloe.Repository.create(tmp_path / "repo", config=config)
    with repo.transaction("main", message="virtual") as store:
        form = {"shape": (20,), "chunks": (10,), "dtype": "i4", "dimension_names": ["x"]}
        zarr.create_array(store, name="v", compressors=None, fill_value=0, **form)
        zarr.create_array(store, name="a", **form)
        for part in range(2):
            store.set_virtual_ref(f"v/c/{part}", f"{prefix}day.bin", offset=40 * part, length=40)
    return repo


def double(spark, session):
    ice.transform(spark, session, "/a", lambda values: 2 * values, inputs=["/v"])


def test_the_data_source_reads_what_an_option_names(spark, repo, prefix):
    source = spark.read.format("icechunk").option("url", repo.storage.url).option("array", "/v")
    with pytest.raises(Exception, match="authorize_virtual_chunk_access"):
        source.load().collect()
    table = source.option("virtual_chunks", prefix).load()
    assert sorted(row.value for row in table.collect()) == [*range(20)]


def test_a_job_reads_what_an_argument_names(repo, prefix):
    job = "spark.test_virtual_access:double"
    done = submit([*arguments(repo, job=job), "--virtual-chunks", prefix])
    assert done.returncode == 0, done.stderr[-3000:]
    store = repo.readonly_session(snapshot_id=repo.find_write("day 1")).store
    assert zarr.open_array(store, path="a", mode="r")[...].tolist() == [*range(0, 40, 2)]
