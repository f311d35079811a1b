"""The repo object as a value: one more snapshot, and snapshots found by id or by metadata."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz_format import CORPUS
from icefloe.errors import AlreadyExistsError, NotFoundError
from icefloe.format import repo_info
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import Refs, SnapshotInfo, Snapshots

EMPTY = repo_info.decode((CORPUS / "repo_info-small").read_bytes())

ids = st.binary(min_size=12, max_size=12).map(SnapshotId)
metadata = st.dictionaries(st.sampled_from(["a", "b", "é"]), st.integers(0, 300), max_size=2)


@st.composite
def histories(draw):
    """Snapshots, each with a parent among those before it."""
    infos = []
    for number, snapshot_id in enumerate(draw(st.lists(ids, min_size=2, max_size=8, unique=True))):
        parent = draw(st.sampled_from([None, *(info.id for info in infos)]))
        pruned = tuple(draw(st.lists(ids, max_size=2)))
        info = SnapshotInfo(snapshot_id, parent, number, draw(st.text()), draw(metadata), pruned)
        infos.append(info)
    return infos


def repo_of(infos):
    snapshots = Snapshots.of(infos)
    refs = Refs.of({str(info.id): snapshots.row(info.id) for info in infos})
    return replace(EMPTY, snapshots=snapshots, branches=refs, tags=refs)


@given(histories(), st.booleans())
def test_a_snapshot_more_moves_everything_that_points_past_it(infos, from_file):
    repo = repo_of(infos[:-1])
    if from_file:
        repo = repo_info.decode(repo_info.encode(repo))
    grown = repo.with_snapshot(infos[-1])
    for value in (grown, repo_info.decode(repo_info.encode(grown))):
        found = {value.snapshots.id_at(row): value.snapshots[row] for row in range(len(infos))}
        assert found == {info.id: info for info in infos}
        for refs in (value.branches, value.tags):
            targets = refs.todict()
            assert len(targets) == len(infos) - 1
            for name, row in targets.items():
                assert str(value.snapshots.id_at(row)) == name
    assert grown.snapshots.equals(Snapshots.of(infos))


@given(histories())
def test_a_snapshot_is_listed_once_and_after_its_parent(infos):
    repo = repo_of(infos)
    with pytest.raises(AlreadyExistsError):
        repo.with_snapshot(infos[0])
    stranger = SnapshotInfo(SnapshotId(b"n" * 12), SnapshotId(b"nobody's kid"), 1, "")
    with pytest.raises(NotFoundError, match=str(stranger.parent_id)):
        repo.with_snapshot(stranger)


@given(histories(), st.sampled_from(["a", "b"]), st.integers(0, 300))
def test_snapshots_are_found_by_an_item_of_their_metadata(infos, name, value):
    snapshots = Snapshots.of(infos)
    rows = snapshots.rows_with(name, value)
    assert {snapshots.id_at(row) for row in rows.tolist()} == {
        info.id for info in infos if info.metadata.get(name, -1) == value
    }


@given(histories())
def test_chosen_snapshots_keep_what_they_hold(infos):
    snapshots = Snapshots.of(infos)
    rows = np.arange(len(snapshots), dtype=np.int64)[::-1][: len(infos) // 2]
    taken = snapshots.take(rows, np.full(len(rows), -1, np.int32))
    assert [taken[row] for row in range(len(taken))] == [
        replace(snapshots[row], parent_id=None) for row in rows.tolist()
    ]
