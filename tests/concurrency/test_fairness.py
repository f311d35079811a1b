"""Writers of one branch in tight loops take turns, and nobody waits long."""

import asyncio
import multiprocessing
import time

import icechunk
import pytest
import zarr

from concurrency.hooks import PATIENCE, create, write
from icefloe import ConflictDetector, MemoryStorage, Repository
from icefloe.turns import MAX_PAUSE, Turns, turns_of

CHUNK = 600


def run_ours(url, options, number, start, seconds, answers):
    repo = Repository.open(url, options)
    waits = []
    start.wait(PATIENCE)
    until = time.time() + seconds
    while (began := time.time()) < until:
        session = repo.writable_session("main")
        asyncio.run(session.set_chunk("/a", (number,), b"x" * CHUNK))
        session.commit(f"{number}", rebase_with=ConflictDetector())
        waits.append(time.time() - began)
    answers.put(("ours", len(waits), max(waits)))


def run_publishing(url, options, number, start, seconds, answers):
    repo = Repository.open(url, options)
    waits = []
    start.wait(PATIENCE)
    until = time.time() + seconds
    while (began := time.time()) < until:
        session = repo.writable_session("main")
        asyncio.run(session.set_chunk("/a", (number,), b"x" * CHUNK))
        repo.publish("main", session.flush("staged"))
        waits.append(time.time() - began)
    answers.put(("ours", len(waits), max(waits)))


def run_official(place, number, start, seconds, answers):
    repo = icechunk.Repository.open(icechunk.s3_storage(**place))
    waits = []
    start.wait(PATIENCE)
    until = time.time() + seconds
    while (began := time.time()) < until:
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="a", mode="r+")
        array[number * CHUNK : (number + 1) * CHUNK] = len(waits) % 250
        session.commit(f"{number}", rebase_with=icechunk.ConflictDetector())
        waits.append(time.time() - began)
    answers.put(("official", len(waits), max(waits)))


def race(url, options, seconds, ours, official=(), run=run_ours):
    """What each writer tells: its kind, how many commits it made, and the longest one."""
    repo = Repository.create(url, options)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(
            store, name="a", shape=(16 * CHUNK,), chunks=(CHUNK,), dtype="u1", compressors=None
        )
    spawn = multiprocessing.get_context("spawn")
    start, answers = spawn.Barrier(ours + len(official) + 1), spawn.Queue()
    common = (start, seconds, answers)
    # What fails must not be waited for when the tests end.
    writers = [
        spawn.Process(target=run, args=(url, options, number, *common), daemon=True)
        for number in range(ours)
    ]
    writers += [
        spawn.Process(target=run_official, args=(place, 8 + number, *common), daemon=True)
        for number, place in enumerate(official)
    ]
    for writer in writers:
        writer.start()
    start.wait(PATIENCE)
    told = [answers.get(timeout=60 + seconds) for _ in writers]
    for writer in writers:
        writer.join()
    landed = len([*repo.ancestry(branch="main")]) - 2
    assert landed == sum(count for _, count, _ in told)
    return told


def test_three_writers_in_tight_loops_take_turns(tmp_path):
    told = race(str(tmp_path / "repo"), None, 5, 3)
    counts = [count for _, count, _ in told]
    assert max(counts) <= 4 * min(counts), told


@pytest.mark.slow
@pytest.mark.parametrize("writers", [2, 4, 8])
def test_up_to_eight_writers_are_fair_within_a_factor_of_four(tmp_path, writers):
    told = race(str(tmp_path / "repo"), None, 20, writers)
    counts = [count for _, count, _ in told]
    assert max(counts) <= 4 * min(counts), told
    assert max(longest for *_, longest in told) < 10, told


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize(("run", "least"), [(run_ours, 20), (run_publishing, 10)])
def test_beside_an_official_client_in_a_tight_loop_ours_land_every_second(s3_server, run, least):
    url = s3_server.root()
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    place = {
        "bucket": bucket,
        "prefix": prefix,
        "endpoint_url": s3_server.endpoint,
        "allow_http": True,
        "access_key_id": s3_server.key,
        "secret_access_key": s3_server.secret,
        "region": "us-east-1",
        "force_path_style": True,
    }
    told = race(url, s3_server.options, 20, 1, [place], run)
    assert {kind: count for kind, count, _ in told}["ours"] >= least, told


def committed(repo, at):
    session = repo.writable_session("main")
    write(session, at)
    return session.commit("ours", rebase_with=ConflictDetector())


@pytest.fixture
def sleeps(monkeypatch):
    """How long the writers slept; nobody does."""
    slept = []
    monkeypatch.setattr("icefloe.turns.time.sleep", slept.append)
    return slept


def test_a_writer_that_is_alone_never_pauses(sleeps):
    repo = create(MemoryStorage())
    for at in range(5):
        committed(repo, at)
    assert sleeps == []


def test_a_writer_that_met_another_lets_it_go_first(sleeps):
    plain = MemoryStorage()
    ours = create(plain)
    committed(ours, 0)
    rival = ours.writable_session("main")
    write(rival, 1)
    turns_of(plain.url, "main").tip = "somebody else's"
    committed(ours, 2)
    assert len(sleeps) == 1
    assert 0 < sleeps[0] <= MAX_PAUSE


def test_the_more_races_were_lost_the_less_is_waited(sleeps):
    turns = Turns()
    for times in range(1, 50):
        turns.lost(times, took=60.0)
    assert all(pause <= MAX_PAUSE / times for times, pause in enumerate(sleeps, 1))
    assert len(sleeps) < 5
    assert turns.patience(1) == 0
    assert turns.patience(10) <= MAX_PAUSE
