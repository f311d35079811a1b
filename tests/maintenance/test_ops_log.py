"""Trimming: old backups go, and the official client still lists the last operations."""

import os
from datetime import UTC, datetime, timedelta

import icechunk
import pytest

from icefloe.assets import Assets
from icefloe.errors import InvalidInputError
from icefloe.maintenance.ops_log import trim_ops_log
from icefloe.maintenance.verify import verify
from icefloe.storage import open_storage
from maintenance.histories import assets, copy, official
from maintenance.watching import Killed, Watched, kill_at

OPERATIONS = 1200
PER_FILE = 90


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """1,200 operations, 90 to a file; two files that are no backups of the repo object."""
    path = tmp_path_factory.mktemp("busy") / "repo"
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = PER_FILE
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config)
    for number in range(OPERATIONS):
        repo.set_metadata({"n": number})
    (path / "overwritten" / "config.yaml.1").write_bytes(b"old")
    (path / "overwritten" / "notes").write_bytes(b"mine")
    for name in os.listdir(path / "overwritten"):
        os.utime(path / "overwritten" / name, ns=_older(path / "overwritten" / name))
    return path


def _older(file):
    # Backups are made before the time of their update is taken: keep that order, come what may.
    at = os.stat(file).st_mtime_ns - 1_000_000
    return at, at


def backups(path):
    return {name for name in os.listdir(path / "overwritten") if name.startswith("repo.")}


def listed(path):
    return len([*official(path).ops_log()])


@pytest.fixture
def repo(busy, tmp_path):
    return copy(busy, tmp_path / "repo")


def test_the_last_thousand_operations_stay_and_older_backups_go(repo):
    before = backups(repo)
    assert listed(repo) > OPERATIONS
    rehearsed = trim_ops_log(assets(repo), dry_run=True)
    assert backups(repo) == before
    result = trim_ops_log(assets(repo))
    assert result.backups_deleted == rehearsed.backups_deleted == len(before - backups(repo))
    assert OPERATIONS - 1000 - 5 <= result.backups_deleted <= OPERATIONS - 1000 + 5
    assert result.bytes_deleted == rehearsed.bytes_deleted > 0
    assert result.operations_kept == 1000
    assert result.failures == {}
    assert 1000 <= listed(repo) < 1000 + 2 * PER_FILE
    kept = set(os.listdir(repo / "overwritten"))
    assert {"config.yaml.1", "notes"} <= kept
    assert trim_ops_log(assets(repo)).backups_deleted == 0


def test_whatever_comes_later_the_last_thousand_stay_listed(repo):
    trim_ops_log(assets(repo))
    client = official(repo)
    for number in range(2 * PER_FILE):
        client.set_metadata({"n": number})
        if number % 10 == 0:
            assert listed(repo) >= 1000
    assert listed(repo) >= 1000
    assert trim_ops_log(assets(repo)).backups_deleted > PER_FILE
    assert listed(repo) >= 1000


def test_less_than_a_thousand_is_never_kept(repo):
    assert trim_ops_log(assets(repo), keep=1).operations_kept == 1000
    assert trim_ops_log(assets(repo), keep=timedelta(0)).operations_kept == 1000
    assert listed(repo) >= 1000


def test_more_is_kept_on_demand(repo):
    before = backups(repo)
    assert trim_ops_log(assets(repo), keep=10**6).backups_deleted == 0
    assert trim_ops_log(assets(repo), keep=timedelta(days=1)).backups_deleted == 0
    assert backups(repo) == before
    times = [item.updated_at for item in official(repo).ops_log()]
    age = datetime.now(UTC) - times[1100]
    assert 1050 < trim_ops_log(assets(repo), keep=age).operations_kept <= 1102
    assert listed(repo) >= 1050


@pytest.mark.parametrize("keep", [-1, timedelta(seconds=-1)])
def test_less_than_nothing_cannot_be_kept(busy, keep):
    with pytest.raises(InvalidInputError):
        trim_ops_log(assets(busy), keep=keep)


def test_a_backup_that_an_update_has_just_made_is_left_alone(repo):
    """It belongs to nobody yet: its update is between the copy and the swap."""
    (repo / "overwritten" / "repo.00000000000000.UNDERWAY").write_bytes(b"copy")
    trim_ops_log(assets(repo))
    assert "repo.00000000000000.UNDERWAY" in backups(repo)


def test_a_small_log_is_left_whole(copies):
    path = copies()
    before = backups(path)
    assert trim_ops_log(assets(path)).backups_deleted == 0
    assert backups(path) == before


def test_killed_at_any_step_the_log_can_be_trimmed_again(repo, tmp_path):
    storage = Watched(open_storage(copy(repo, tmp_path / "whole")))
    trim_ops_log(Assets(storage))
    expected = backups(tmp_path / "whole")
    for number in range(len(storage.calls)):
        path = copy(repo, tmp_path / f"killed-{number}")
        with pytest.raises(Killed):
            trim_ops_log(Assets(Watched(open_storage(path), kill_at(number))))
        trim_ops_log(assets(path))
        assert backups(path) == expected
        assert listed(path) >= 1000


def test_a_deletion_that_was_interrupted_half_way_is_finished_by_the_next(repo):
    garbage = sorted(backups(repo), reverse=True)[:100]
    for name in garbage[::2]:
        os.unlink(repo / "overwritten" / name)
    trim_ops_log(assets(repo))
    assert listed(repo) >= 1000
    assert not backups(repo) & set(garbage)


def test_a_trimmed_log_is_healthy(repo):
    trim_ops_log(assets(repo))
    assert {finding.severity for finding in verify(assets(repo))} <= {"info"}
