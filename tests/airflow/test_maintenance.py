"""Maintenance operators: small answers, nothing done twice, and errors that fail."""

from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_icechunk.ages import as_time
from airflow_icechunk.garbage import may_have_garbage
from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkRepackOperator,
    IcechunkRewriteManifestsOperator,
    IcechunkTrimOpsLogOperator,
    IcechunkVerifyOperator,
    VerificationFailedError,
)
from icefloe import Update, UpdateKind

HOUR = timedelta(hours=1)
HOUR_US = 3_600_000_000


def entry(kind, hours):
    return Update(kind=kind, updated_at=int(hours * HOUR_US))


@pytest.mark.parametrize(
    ("log", "answer"),
    [
        ([entry(UpdateKind.REPO_INITIALIZED, 0)], False),
        ([entry(UpdateKind.NEW_COMMIT, 5)], True),
        ([entry(UpdateKind.NEW_COMMIT, 9), entry(UpdateKind.GC_RAN, 8)], True),
        ([entry(UpdateKind.GC_RAN, 9), entry(UpdateKind.NEW_COMMIT, 7.9)], False),
        ([entry(UpdateKind.GC_RAN, 9), entry(UpdateKind.NEW_COMMIT, 8.1)], True),
        (
            [
                entry(UpdateKind.TAG_CREATED, 12),
                entry(UpdateKind.GC_RAN, 11),
                entry(UpdateKind.GC_RAN, 9),
                entry(UpdateKind.NEW_COMMIT, 8.5),
            ],
            False,
        ),
        ([entry(99, 9), entry(UpdateKind.GC_RAN, 8)], True),
    ],
    ids=["new", "never", "since", "long before", "in the grace", "later run", "unknown"],
)
def test_whether_there_may_be_garbage_is_read_from_the_log(log, answer):
    assert may_have_garbage(log, HOUR) is answer


def test_old_snapshots_are_released_and_the_repository_is_left_alone_if_there_are_none(
    repo, run, commit
):
    for row in range(3):
        commit(row)

    def expire(**arguments):
        return run(IcechunkExpireSnapshotsOperator(task_id="e", keep_last="2", **arguments))

    assert expire(older_than=HOUR)["released_snapshots"] == 0
    before = len([*repo.ops_log()])
    now = datetime.now(UTC).isoformat()
    assert expire(older_than=now, dry_run=True)["released_snapshots"] == 2
    assert len([*repo.ops_log()]) == before
    assert expire(older_than=now)["released_snapshots"] == 2
    assert len([*repo.ancestry(branch="main")]) == 3
    after = len([*repo.ops_log()])
    assert expire(older_than=now) == {
        "released_snapshots": 0,
        "deleted_branches": [],
        "deleted_tags": [],
        "dry_run": False,
    }
    assert len([*repo.ops_log()]) == after


def test_garbage_is_collected_and_an_unchanged_repository_is_skipped(repo, run, stage):
    stage(0)

    def collect(**arguments):
        arguments = {"grace": timedelta(0), "force": True, **arguments}
        return run(IcechunkGarbageCollectOperator(task_id="gc", **arguments))

    # Objects of the present second may be younger than the store can tell.
    dry = collect(dry_run=True, grace=timedelta(seconds=-2))
    assert (dry["skipped"], dry["dry_run"]) == (False, True)
    assert dry["snapshots_deleted"] == 1
    done = collect(grace=timedelta(seconds=-2))
    assert done["snapshots_deleted"] == 1
    assert collect(grace="0") == {"skipped": True, "dry_run": False}
    assert collect(skip_unchanged=False)["skipped"] is False


def test_a_grace_period_of_less_than_a_day_wants_force(repo, run, stage):
    stage(0)
    with pytest.raises(ValueError, match="younger than"):
        run(IcechunkGarbageCollectOperator(task_id="gc", grace=HOUR))


def test_a_sound_repository_passes_verification(repo, run, commit):
    commit(0)
    result = run(IcechunkVerifyOperator(task_id="v", level="data"))
    assert result == {"level": "data", "error": 0, "warning": 0}


def test_a_damaged_repository_fails_verification_without_a_retry(repo, run, commit, tmp_path):
    commit(0)
    for file in (tmp_path / "repo" / "manifests").iterdir():
        file.unlink()
    with pytest.raises(VerificationFailedError, match="things are wrong"):
        run(IcechunkVerifyOperator(task_id="v"))
    assert issubclass(VerificationFailedError, AirflowFailException)


def test_manifests_are_rewritten_as_a_commit(repo, run, commit, read):
    commit(0)
    before = read()
    tip = run(IcechunkRewriteManifestsOperator(task_id="r"))
    assert repo.lookup_branch("main") == tip
    assert repo.lookup_snapshot(tip).metadata["airflow.task_id"] == "r"
    assert read() == before


def test_small_chunks_are_repacked_once(repo, run, commit, read):
    for row in range(3):
        commit(row)
    before = read()
    first = run(IcechunkRepackOperator(task_id="r"))
    assert read() == before
    if first["snapshot_id"] is not None:
        assert repo.lookup_branch("main") == first["snapshot_id"]
    again = run(IcechunkRepackOperator(task_id="r"))
    assert again["snapshot_id"] is None


def test_the_ops_log_is_trimmed(repo, run, commit):
    commit(0)
    result = run(IcechunkTrimOpsLogOperator(task_id="t", keep="1000"))
    assert result["backups_deleted"] == 0
    assert result["operations_kept"] == len([*repo.ops_log()])


def test_ages_and_times():
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert as_time("older_than", moment) == moment
    assert as_time("older_than", moment.isoformat()) == moment
    hour_ago = datetime.now(UTC) - HOUR
    assert abs(as_time("older_than", "3600") - hour_ago) < timedelta(seconds=5)
    assert abs(as_time("older_than", HOUR) - hour_ago) < timedelta(seconds=5)
    with pytest.raises(ValueError, match="no time zone"):
        as_time("older_than", "2026-01-02")
