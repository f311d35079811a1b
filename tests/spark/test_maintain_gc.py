"""Garbage collection on Spark: what goes, and what is left, is what one machine decides."""

import os
import pickle
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import icechunk
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import servers
from benchmarks.garbage_collection import build as build_many
from icefloe import Repository
from icefloe import spark as ice
from icefloe.assets import Assets
from icefloe.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.format.ids import encode_ids
from icefloe.format.status import Availability
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from icefloe.spark.maintain.jobs import Place
from icefloe.spark.maintain.staging import Staging
from icefloe.storage import open_storage
from maintenance.histories import (
    CHUNK_BYTES,
    FOLDERS,
    FUTURE,
    assets,
    build,
    contents,
    copy,
    files,
    official,
    plans,
    seen,
    times_between,
    write_chunk,
)
from maintenance.messy import Messy
from maintenance.test_backends import keys, official_s3, upload
from maintenance.test_clocks import Elsewhere
from spark.maintaining import Broken, Failing, Reviving, Stubborn, Waking


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return Messy(tmp_path_factory.mktemp("messy") / "repo")


@pytest.fixture
def copies(messy, tmp_path):
    numbers = count()
    return lambda: copy(messy.path, tmp_path / f"copy-{next(numbers)}")


def collect(spark, path, cutoff, **options):
    options = {"force": True} | options
    return ice.maintain.garbage_collect(spark, Repository.open(path), cutoff, **options)


def staged(path):
    return [*Path(path).glob("icefloe/staging/*")]


def test_the_messy_history_is_left_as_one_machine_leaves_it(spark, messy, copies):
    ours, theirs = copies(), copies()
    rehearsed = collect(spark, ours, messy.end, dry_run=True)
    assert (files(ours), seen(ours)) == (files(messy.path), seen(messy.path))
    assert staged(ours) == []
    summary = collect(spark, ours, messy.end)
    expected = garbage_collect(assets(theirs), messy.end, force=True)
    assert summary == expected
    assert replace(rehearsed, dry_run=False) == expected
    assert files(ours) == files(theirs)
    assert seen(ours)["snapshots"] == seen(theirs)["snapshots"]
    assert contents(ours) == contents(theirs)
    assert staged(ours) == []
    assert official(ours).garbage_collect(FUTURE).bytes_deleted == 0
    assert [*verify(assets(ours), "objects")] == []


@given(plans, st.floats(0, 1))
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_history_is_left_as_one_machine_leaves_it(spark, plan, fraction):
    with TemporaryDirectory() as name:
        history = build(Path(name, "repo"), plan)
        ours, theirs = copy(history.path, Path(name, "a")), copy(history.path, Path(name, "b"))
        times = times_between(ours)
        cutoff = times[int(fraction * (len(times) - 1))]
        expected = garbage_collect(assets(theirs), cutoff, force=True)
        assert collect(spark, ours, cutoff) == expected
        assert files(ours) == files(theirs)
        assert seen(ours)["snapshots"] == seen(theirs)["snapshots"]
        assert contents(ours) == contents(theirs)


def test_the_same_is_refused(spark, copies):
    path = copies()
    before = files(path)
    young = datetime.now(UTC) - timedelta(hours=23)
    with pytest.raises(InvalidInputError, match="force=True"):
        collect(spark, path, young, force=False)
    with pytest.raises(ReadOnlyError, match="read-only"):
        collect(spark, open_storage(path, read_only=True), FUTURE)
    Repository.open(path).set_status(Availability.READ_ONLY, "holiday")
    with pytest.raises(ReadOnlyError, match="holiday"):
        collect(spark, path, FUTURE)
    assert files(path) == before


def test_a_dry_run_of_what_cannot_be_written_needs_another_place(spark, copies, tmp_path):
    path = copies()
    expected = garbage_collect(assets(path), FUTURE, dry_run=True)
    quiet = open_storage(path, read_only=True)
    with pytest.raises(ReadOnlyError, match="staging"):
        collect(spark, quiet, FUTURE, dry_run=True)
    elsewhere = tmp_path / "elsewhere"
    assert collect(spark, quiet, FUTURE, dry_run=True, staging=str(elsewhere)) == expected
    assert staged(elsewhere) == []
    assert not (path / "icefloe").exists()


@pytest.mark.parametrize("damage", [None, b"garbage"])
def test_nothing_is_deleted_if_a_live_manifest_is_missing_or_damaged(spark, damage, copies, messy):
    path = copies()
    repo = official(path)
    manifest = path / "manifests" / repo.list_manifest_files(repo.lookup_branch("main"))[0].id
    manifest.unlink()
    if damage:
        manifest.write_bytes(damage)
    before = files(path), seen(path)
    with pytest.raises(FormatError if damage else NotFoundError, match=manifest.name):
        collect(spark, path, messy.end)
    assert (files(path), seen(path)) == before
    assert staged(path) == []


def garbage_of(copies, cutoff, folder):
    """The files that a collection deletes."""
    path = copies()
    before = files(path)
    garbage_collect(assets(path), cutoff, force=True)
    return sorted(name for name in before - files(path) if name.startswith(folder))


@pytest.fixture
def sleeper(copies, tmp_path):
    """A repository, and a cutoff that makes the chunk of an open session look like garbage."""
    path = copies()
    fork = official(path).writable_session("main").fork()
    write_chunk(fork, 3, 123)
    tmp_path.joinpath("session").write_bytes(pickle.dumps(fork))
    time.sleep(0.01)
    cutoff = datetime.now(UTC)
    time.sleep(0.01)
    return path, cutoff


@pytest.mark.parametrize("moment", ["the driver looks again", "executors look again"])
def test_a_commit_between_mark_and_sweep_keeps_the_old_chunk_it_needs(
    spark, moment, sleeper, copies
):
    path, cutoff = sleeper
    if moment == "the driver looks again":
        storage = Waking(path, "delete", "manifests/")
    else:
        # All manifests that had to go are gone, so the driver has looked for the last time.
        gone = garbage_of(copies, cutoff, "manifests/")
        storage = Waking(path, "get_ranges", "icefloe/staging/", after=gone)
    summary = collect(spark, storage, cutoff)
    assert storage.marker.exists()
    assert summary.chunks_deleted > 0
    assert [*verify(assets(path), "objects")] == []
    assert contents(path)["branch", "main"][3] == bytes([124]) * CHUNK_BYTES


def test_it_starts_over_when_somebody_comes_to_need_what_was_to_go(spark, messy, copies, tmp_path):
    path = copies()
    tmp_path.joinpath("doomed").write_text(messy.detached)
    storage = Reviving(path, "get_many", "manifests/")
    summary = collect(spark, storage, messy.end)
    assert summary.restarts == 1
    assert official(path).lookup_tag("revived") == messy.detached
    assert [*verify(assets(path), "objects")] == []
    assert summary == replace(expected_of(spark, path, copies, messy), restarts=1)


def expected_of(spark, path, copies, messy):
    """What one machine says of a repository with that tag."""
    other = copies()
    official(other).create_tag("revived", messy.detached)
    expected = garbage_collect(assets(other), messy.end, force=True)
    assert files(other) == files(path)
    return expected


def test_a_task_that_fails_amid_its_deletions_is_run_again_and_counts_once(spark, messy, copies):
    ours, theirs = copies(), copies()
    storage = Failing(ours, "delete", "chunks/")
    expected = garbage_collect(assets(theirs), messy.end, force=True)
    assert collect(spark, storage, messy.end) == expected
    assert storage.marker.exists()
    assert files(ours) == files(theirs)


def test_a_task_that_keeps_failing_leaves_garbage_and_nothing_worse(spark, messy, copies):
    path = copies()
    with pytest.raises(Exception, match="the connection broke"):
        collect(spark, Broken(path, "delete", "manifests/"), messy.end)
    assert [*verify(assets(path), "objects")] == []
    assert staged(path) == []
    clean = copies()
    garbage_collect(assets(clean), messy.end, force=True)
    collect(spark, path, messy.end)
    assert files(path) == files(clean)


def test_after_a_phase_with_failures_the_later_ones_are_skipped(spark, messy, copies):
    path = copies()
    summary = collect(spark, Stubborn(path, "delete", "manifests/"), messy.end)
    assert summary.objects_failed_to_delete == 1
    assert summary.delete_errors == ("no",)
    assert summary.skipped_phases == ("chunks",)
    assert summary.chunks_deleted == 0
    assert [*verify(assets(path), "objects")] == []


def test_what_killed_runs_left_is_removed(spark, messy, copies):
    path = copies()
    folder = path / "icefloe" / "staging"
    folder.mkdir(parents=True)
    (folder / "old-1").write_bytes(b"ids")
    os.utime(folder / "old-1", (0, 0))
    (folder / "young-1").write_bytes(b"ids")
    collect(spark, path, messy.end)
    assert [item.name for item in staged(path)] == ["young-1"]


def test_exactly_the_planted_orphans_among_ten_thousand_objects_go(spark, tmp_path):
    path = tmp_path / "repo"
    live = 24 * 20 * 20
    ids = build_many(path, 10_000, (24, 20, 20))
    assert collect(spark, path, FUTURE, dry_run=True).chunks_deleted == 400
    summary = collect(spark, path, FUTURE)
    assert (summary.chunks_deleted, summary.bytes_deleted) == (400, 400)
    assert summary.objects_listed == 10_000 + len(files(path)) - live
    assert {item.name for item in (path / "chunks").iterdir()} == {
        name.decode() for name in encode_ids(ids[:live]).tolist()
    }


@pytest.mark.s3
def test_on_s3_the_same_goes_and_no_secret_travels(spark, s3_server, messy, copies):
    options = dict(s3_server.options)
    del options["key"], options["secret"]
    storage = open_storage(s3_server.root(), options, credentials=servers.credentials)
    upload(messy.path, storage)
    path = copies()
    expected = garbage_collect(assets(path), FUTURE, force=True)
    repo = Repository.open(storage)
    summary = ice.maintain.garbage_collect(spark, repo, FUTURE, force=True)
    assert summary == expected
    assert keys(storage, *FOLDERS) == files(path)
    assert keys(storage, "icefloe/") == set()
    secretive = Assets(open_storage(storage.url, s3_server.options))
    place = Place.of(secretive)
    assert servers.SECRET.encode() not in pickle.dumps(place)
    # The driver's own work goes on with the secrets that it was given.
    assert place.open() is secretive
    assert Staging.new(secretive.storage, None).storage is secretive.storage
    assert [*verify(Assets(storage), "objects")] == []
    location = official_s3(s3_server, storage.url)
    assert icechunk.Repository.open(location).garbage_collect(FUTURE).bytes_deleted == 0


def test_a_driver_whose_clock_is_ahead_of_the_stores_collects_nothing(spark, copies):
    path = copies()
    before = files(path)
    repo = Repository.open(Elsewhere(open_storage(path), -timedelta(hours=48)))
    with pytest.raises(StorageError) as caught:
        ice.maintain.garbage_collect(spark, repo, datetime.now(UTC) - timedelta(hours=25))
    assert caught.value.kind == "clocks-disagree"
    assert files(path) == before
