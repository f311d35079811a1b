"""Repositories that official releases wrote: healthy, and maintained as the official one does."""

from pathlib import Path

import pytest

from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.stats import chunk_storage_stats
from icefloe.maintenance.verify import verify
from maintenance.histories import FUTURE, assets, copy, files, official, seen

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/repo"))

if not NAMES:
    pytest.skip("no fixtures beside the repository", allow_module_level=True)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_healthy(name):
    found = verify(assets(FIXTURES / name), "data", decode_chunk=lambda *_: None)
    assert [*found] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_is_expired_and_collected_as_the_official_library_does(name, tmp_path):
    theirs, ours = copy(FIXTURES / name, tmp_path / "a"), copy(FIXTURES / name, tmp_path / "b")
    rows = assets(ours).repo()[0].snapshots.flushed_at
    middle = official(theirs).lookup_snapshot(
        str(assets(ours).repo()[0].snapshots.id_at(int(rows.argsort()[len(rows) // 2])))
    )
    for when in (middle.written_at, FUTURE):
        released = official(theirs).expire_snapshots(when)
        assert expire_snapshots(assets(ours), when).released_snapshots == released
        assert seen(ours) == seen(theirs)
        summary = official(theirs).garbage_collect(FUTURE)
        assert garbage_collect(assets(ours), FUTURE, force=True).bytes_deleted == (
            summary.bytes_deleted
        )
        assert files(ours) == files(theirs)
        assert seen(ours) == seen(theirs)
    assert [*verify(assets(ours), "objects")] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_is_counted_as_the_official_library_does(name):
    (ours,) = chunk_storage_stats(assets(FIXTURES / name))
    theirs = official(FIXTURES / name).chunk_storage_stats()
    assert ours.total_bytes() == theirs.total_bytes()
    assert ours.native_bytes == theirs.native_bytes
