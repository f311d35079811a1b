"""Clocks: the store's clock tells what is old; a machine whose clock is off collects nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from icefloe import Repository
from icefloe.assets import Assets
from icefloe.errors import InvalidInputError, StorageError
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.storage import open_storage
from maintenance.histories import files

DAY = timedelta(days=1)


class Elsewhere:
    """A store whose clock differs from this machine's by so much."""

    def __init__(self, storage, offset):
        self._storage = storage
        self._offset = offset

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def info(self, key):
        found = self._storage.info(key)
        return replace(found, modified=found.modified + self._offset)

    def list(self, prefix="", **named):
        for page in self._storage.list(prefix, **named):
            yield [replace(item, modified=item.modified + self._offset) for item in page]


@pytest.fixture
def staged(tmp_path):
    """A repository where a write has just been staged, and chunks are on their way."""
    repo = Repository.create(tmp_path / "repo")
    repo.writable_session("main").flush("staged")
    open_storage(tmp_path / "repo").put("chunks/000G40R40M30E209185G", b"in flight")
    return tmp_path / "repo"


@pytest.mark.parametrize("hours", [48, 25, -48, 0.25], ids="{} h behind us".format)
def test_a_clock_that_disagrees_with_the_stores_collects_nothing(staged, hours):
    store = Elsewhere(open_storage(staged), -timedelta(hours=hours))
    before = files(staged), (staged / "repo").read_bytes()
    for force in (False, True):
        with pytest.raises(StorageError, match="clock") as raised:
            garbage_collect(Assets(store), datetime.now(UTC) - timedelta(hours=25), force=force)
        assert raised.value.kind == "clocks-disagree"
    assert (files(staged), (staged / "repo").read_bytes()) == before
    assert [*staged.glob("icefloe-probe-*")] == []


def test_a_clock_that_disagrees_expires_nothing(staged):
    store = Elsewhere(open_storage(staged), -2 * DAY)
    before = (staged / "repo").read_bytes()
    with pytest.raises(StorageError, match=r"[12] days?, .* ahead of"):
        expire_snapshots(Assets(store), datetime.now(UTC) - DAY)
    assert (staged / "repo").read_bytes() == before
    expire_snapshots(Assets(store), datetime.now(UTC) - DAY, dry_run=True)


def test_the_age_of_a_cutoff_is_counted_by_the_stores_clock(staged):
    store = Elsewhere(open_storage(staged), -timedelta(minutes=9))
    cutoff = datetime.now(UTC) - DAY - timedelta(minutes=5)
    with pytest.raises(InvalidInputError, match="younger than 1 day"):
        garbage_collect(Assets(store), cutoff)


def test_clocks_that_agree_well_enough_collect(staged):
    store = Elsewhere(open_storage(staged), timedelta(minutes=9))
    summary = garbage_collect(Assets(store), datetime.now(UTC) - DAY)
    assert summary.chunks_deleted == summary.snapshots_dropped == 0
