"""Drivers that are killed at every write to storage: nothing or everything, and a retry ends it."""

import json
import os
import signal
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
import zarr

import servers
from icefloe import Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.splitting import with_rule
from spark.jobs import create, expected, place
from spark.kills import At, kill, watch_writes
from spark.test_app import LOCAL, arguments, environment, values
from stateful.layout import check_layout

KEY = "day 1"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def repo(request, tmp_path):
    config = with_rule(RepositoryConfig(inline_chunk_threshold_bytes=0), "/a", (2, 3))
    if request.param == "local":
        return Repository.create(tmp_path / "repo", config=config)
    server = request.getfixturevalue("s3_server")
    options = {name: value for name, value in server.options.items() if name not in SECRETS}
    return Repository.create(server.root(), options, credentials=servers.credentials, config=config)


SECRETS = ("key", "secret")


def in_a_child(work):
    """How a process ends that does this: a signal's number below zero, or an exit code."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(repo, tip):
    """All is well, and nothing or everything of the write is there; the latter's id."""
    assert repo.verify("objects") == []
    assert repo.lookup_branch("main") == tip
    staged = [item for item in repo.ops_log() if item.kind.name == "NEW_DETACHED_SNAPSHOT"]
    found = repo.find_write(KEY)
    assert len(staged) == (found is not None)
    if found is not None:
        np.testing.assert_array_equal(values(repo, found), expected((17, 23)))
        check_layout(repo.storage, found)
    return found


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_flush_killed_at_any_write_leaves_nothing_or_all(spark, repo, tmp_path):
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    create(session)
    ice.write(spark, ice.plan(session, "a"), place)
    seen = tmp_path / "seen"

    def flush(number):
        die = At(number, kill)

        def tell(when, key):
            with seen.open("a") as log:
                log.write(f"{number} {when} {key.partition('/')[0]}\n")
            die()

        watch_writes(tell)
        session.flush("staged", write_key=KEY)

    found = []
    for number in count():
        code = in_a_child(lambda: flush(number))  # noqa: B023
        found.append(check(repo, tip))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    # What the last of those that died saw, it saw all of.
    moments = [line.split() for line in seen.read_text().splitlines()]
    last = [(when, what) for at, when, what in moments if int(at) == number - 1]
    assert last[-2:] == [("before", "repo"), ("after", "repo")]
    assert {what for _, what in last} == {"snapshots", "transactions", "overwritten", "repo"}
    assert found[:-2] == [None] * (number - 1), "not registered before the swap"
    assert found[-1] == found[-2] is not None, "registered by the swap, whoever heard of it"
    # Another driver, with chunks of its own.
    session = repo.writable_session("main")
    create(session)
    ice.write(spark, ice.plan(session, "a"), place)
    assert session.flush("staged", write_key=KEY) == found[-1]
    assert repo.merge_snapshots("main", [found[-1]], "published")
    store = repo.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], expected((17, 23)))
    assert repo.verify("objects") == []


def start(repo, *fate):
    flags = " ".join(f"--conf {name}={value}" for name, value in LOCAL.items())
    given = arguments(repo)
    if repo.storage.url.startswith("s3://"):
        options = {"endpoint_url": repo.storage._settings.options["endpoint_url"]}
        given += ["--storage-options", json.dumps(options)]
        given += ["--credentials", "servers:credentials"]
    return subprocess.Popen(
        [sys.executable, "-m", "spark.doomed_driver", *map(str, fate), *given],
        env=environment(PYSPARK_SUBMIT_ARGS=f"{flags} pyspark-shell"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("repo", ["local"], indirect=True)
def test_a_driver_killed_at_any_write_is_ended_by_its_retry(repo):
    tip = repo.lookup_branch("main")
    # Every driver is the retry of the one before.
    for number in count():
        driver = start(repo, "die", number)
        out, _ = driver.communicate(timeout=200)
        found = check(repo, tip)
        if driver.returncode == 0:
            break
        assert driver.returncode == -signal.SIGKILL
    assert number >= 8, "two moments of each of four files, at least"
    assert json.loads(out.splitlines()[-1])["snapshot_id"] == found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_drivers_that_swap_at_once_stage_one_snapshot(repo, tmp_path):
    tip = repo.lookup_branch("main")
    folder = tmp_path / "meeting"
    folder.mkdir()
    drivers = [start(repo, "meet", folder) for _ in range(2)]
    answers = [driver.communicate(timeout=200)[0].splitlines()[-1] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0]
    assert len(list(folder.iterdir())) == 2, "both were about to swap"
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["snapshot_id"] == check(repo, tip)
