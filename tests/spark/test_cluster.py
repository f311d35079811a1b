"""A standalone cluster: executors, workers and stragglers are lost, values are not."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr

import servers
from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe.splitting import with_rule
from spark.cluster import CREDENTIALS, standalone
from spark.jobs import expected
from spark.test_app import arguments, submit, values
from stateful.layout import check_layout, manifest_ids

pytestmark = pytest.mark.timeout(600)

KEY = "day 1"
CHUNKS, REGIONS = 25, 6
LOCAL = pytest.param("local", id="local")
S3 = pytest.param("s3", marks=pytest.mark.s3, id="s3")
both = pytest.mark.parametrize("repo", [LOCAL, S3], indirect=True)
local = pytest.mark.parametrize("repo", [LOCAL], indirect=True)
s3 = pytest.mark.parametrize("repo", [S3], indirect=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def repo(request, tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    config = with_rule(config, "/a", (2, 3))
    if request.param == "local":
        return Repository.create(str(tmp_path / "repo"), config=config)
    server = request.getfixturevalue("s3_server")
    return Repository.create(server.root(), server.options, config=config)


def run(cluster, repo, job, params=None, **conf):
    """Let a cluster run a job, which finds its credentials where it runs."""
    more = {}
    if repo.storage.url.startswith("s3://"):
        more["storage-options"] = json.dumps(public(repo))
    given = arguments(repo, f"spark.jobs:{job}", KEY, params=json.dumps(params or {}), **more)
    return submit(given, cluster.conf(**conf), **CREDENTIALS)


def public(repo):
    """The options that a repository on S3 was opened with, without the secret ones."""
    return {
        name: value
        for name, value in repo.storage._settings.options.items()
        if name not in servers.credentials()
    }


def doom(tmp_path, stage, writes, victims=1):
    """Settings of an application whose executor dies in a stage, after a task's first writes."""
    fate = {"stage": stage, "writes": writes, "victims": victims, "marker": str(tmp_path / "died")}
    return {"python_daemon_module": "spark.doomed_daemon", "executorEnv_DOOM": json.dumps(fate)}


def official(repo, snapshot_id):
    """The values, read by the official library."""
    url = repo.storage.url
    if url.startswith("s3://"):
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        storage = icechunk.s3_storage(
            bucket=bucket,
            prefix=prefix,
            endpoint_url=public(repo)["endpoint_url"],
            region="us-east-1",
            allow_http=True,
            force_path_style=True,
            access_key_id=servers.KEY,
            secret_access_key=servers.SECRET,
        )
    else:
        storage = icechunk.local_filesystem_storage(url.removeprefix("file://"))
    session = icechunk.Repository.open(storage).readonly_session(snapshot_id=snapshot_id)
    return zarr.open_array(session.store, path="a", mode="r")[...]


def objects(repo, folder):
    pages = repo.storage.list(f"{folder}/")
    return {item.key.removeprefix(f"{folder}/") for page in pages for item in page}


def check(repo, done):
    """The right chunks are staged, once; how many chunks and manifests nothing refers to."""
    assert done.returncode == 0, done.stderr[-4000:]
    staged = repo.find_write(KEY)
    wanted = expected((17, 23))
    np.testing.assert_array_equal(values(repo, staged), wanted)
    np.testing.assert_array_equal(official(repo, staged), wanted)
    check_layout(repo.storage, staged)
    assert repo.verify("objects") == []
    repo.publish("main", staged)
    refs = repo.readonly_session("main").refs("/a")
    chunks = {str(refs[row].chunk_id) for row in range(len(refs))}
    manifests = set(manifest_ids(repo.storage, staged, "/a"))
    assert (len(chunks), len(manifests)) == (CHUNKS, REGIONS)
    orphans = tuple(
        len(objects(repo, folder) - live)
        for folder, live in (("chunks", chunks), ("manifests", manifests))
    )
    soon = datetime.now(UTC) + timedelta(days=1)
    found = repo.garbage_collect(soon, force=True)
    assert (found.chunks_deleted, found.manifests_deleted) == orphans
    assert objects(repo, "chunks") == chunks
    assert objects(repo, "manifests") == manifests
    np.testing.assert_array_equal(values(repo, staged), wanted)
    assert repo.verify("objects") == []
    return orphans


@local
def test_executors_write_and_the_driver_stages(cluster, repo):
    assert check(repo, run(cluster, repo, "write_all")) == (0, 0)


@s3
def test_an_executor_that_dies_leaves_only_orphans(cluster, repo, tmp_path):
    done = run(cluster, repo, "write_chunk_by_chunk", **doom(tmp_path, stage=0, writes=2))
    assert (tmp_path / "died").exists()
    assert check(repo, done) == (2, 0)


PARTS = 21
"""Tasks that a write is cut into if it is told to aim at 24: none is shorter than a chunk."""
FILES = 5


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("job", "params", "stage", "writes", "orphans"),
    [
        ("write_chunk_by_chunk", {"tasks": 24}, 0, 1, (1, PARTS)),
        ("write_chunk_by_chunk", {"tasks": 24}, 1, 1, (0, PARTS + 1)),
        ("ingest_columns", {}, 0, 3, (3, FILES)),
        ("ingest_columns", {}, 1, 1, (0, FILES + 1)),
    ],
    ids=["chunks-of-parts", "joining-parts", "chunks-of-files", "joining-files"],
)
def test_an_executor_may_die_in_any_stage(
    cluster, repo, tmp_path, job, params, stage, writes, orphans
):
    done = run(cluster, repo, job, params, **doom(tmp_path, stage, writes))
    assert (tmp_path / "died").exists()
    assert check(repo, done) == orphans


@pytest.mark.slow
@both
def test_a_worker_may_die_with_its_executor(cluster, repo, tmp_path):
    done = run(cluster, repo, "write_chunk_by_chunk", **doom(tmp_path, 0, 2, victims=2))
    cluster.add_worker()
    assert (tmp_path / "died").exists()
    assert check(repo, done) == (2, 0)


@pytest.mark.slow
@local
def test_rows_survive_an_executor_that_dies_before_the_shuffle(cluster, repo, tmp_path):
    done = run(cluster, repo, "write_all_rows", {"marker": str(tmp_path / "died")})
    assert (tmp_path / "died").exists()
    assert check(repo, done) == (0, 0)


@pytest.mark.slow
@local
def test_rows_survive_an_executor_that_dies_with_its_part_of_the_shuffle(cluster, repo, tmp_path):
    # Only the last stage writes to storage. Others may have begun there, too, and do so again.
    done = run(cluster, repo, "write_all_rows", **doom(tmp_path, stage=None, writes=2))
    assert (tmp_path / "died").exists()
    chunks, manifests = check(repo, done)
    assert chunks >= 2
    assert manifests >= 0


@pytest.mark.slow
@local
def test_rows_that_change_when_they_are_computed_again_fail_clearly(cluster, repo, tmp_path):
    fate = doom(tmp_path, stage=None, writes=2)
    done = run(cluster, repo, "write_all_rows", {"noisy": True}, **fate)
    assert (tmp_path / "died").exists()
    assert done.returncode != 0
    assert "indeterminate" in done.stderr
    assert repo.find_write(KEY) is None
    # What a retry finds, where the rows are those that they were.
    chunks, _ = check(repo, run(cluster, repo, "write_all_rows"))
    assert chunks >= 2


@pytest.mark.slow
@both
def test_speculation_overtakes_a_straggler(cluster, repo):
    conf = {
        "speculation": "true",
        "speculation_interval": "200ms",
        "speculation_multiplier": "1.5",
        "speculation_quantile": "0.5",
        "speculation_minTaskRuntime": "1s",
    }
    assert check(repo, run(cluster, repo, "straggle", **conf)) == (1, 0)


@pytest.mark.slow
@s3
def test_no_secret_is_in_tasks_settings_logs_or_events(cluster, repo, tmp_path):
    pickles, events = tmp_path / "pickles", tmp_path / "events"
    pickles.mkdir()
    events.mkdir()
    conf = {"eventLog_enabled": "true", "eventLog_dir": f"file://{events}"}
    done = run(cluster, repo, "keep_pickles", {"folder": str(pickles)}, **conf)
    check(repo, done)
    secret = servers.SECRET.encode()
    assert secret not in (done.stdout + done.stderr).encode()
    kept = [item for item in (pickles, events, cluster.folder) for item in files_in(item)]
    assert any(b"write_part" in item.read_bytes() for item in files_in(pickles))
    assert any(b"SparkListenerApplicationEnd" in item.read_bytes() for item in files_in(events))
    assert [item for item in kept if secret in item.read_bytes()] == []


def files_in(folder):
    return [item for item in Path(folder).rglob("*") if item.is_file()]
