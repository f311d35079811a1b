"""The graph of snapshots: checked beside plain loops, and large enough to need none."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from airflow_icechunk.plugin import graph
from airflow_icechunk.plugin.commits import containing, history, names, of_run
from airflow_icechunk.plugin.drawing import MAX_COLUMNS, draw
from icefloe.assets import Assets
from icefloe.format import repo_info
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.repo_info import Refs, SnapshotInfo, Snapshots


@st.composite
def forests(draw_from):
    """Parents of rows in any order, and times that clocks may have got wrong."""
    count = draw_from(st.integers(1, 30))
    above = [draw_from(st.integers(-1, row - 1)) for row in range(count)]
    order = draw_from(st.permutations(range(count)))
    parent = np.full(count, -1)
    for row, up in enumerate(above):
        parent[order[row]] = -1 if up < 0 else order[up]
    times = draw_from(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    return parent, np.array(times, np.uint64)


def walk(parent, row):
    while row >= 0:
        yield row
        row = parent[row]


@given(forests(), st.data())
def test_ancestors_descendants_and_depths_are_what_a_walk_finds(forest, data):
    parent, _ = forest
    rows = range(len(parent))
    tips = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=4))
    reached = {row for tip in tips for row in walk(parent, tip)}
    assert {*np.flatnonzero(graph.ancestors(parent, np.array(tips)))} == reached
    one = tips[0]
    below = {row for row in rows if one in walk(parent, row)}
    assert {*np.flatnonzero(graph.descendants(parent, one))} == below
    assert graph.depths(parent).tolist() == [len([*walk(parent, row)]) for row in rows]


@given(forests(), st.data())
def test_a_list_has_everyone_above_its_parent_and_lines_that_do_not_touch(forest, data):
    parent, times = forest
    tips = data.draw(
        st.lists(st.sampled_from(range(len(parent))), min_size=1, max_size=6, unique=True)
    )
    chosen = graph.ancestors(parent, np.array(tips))
    order = graph.newest_first(parent, times, chosen)
    assert sorted(order) == [*np.flatnonzero(chosen)]
    place = {row: at for at, row in enumerate(order.tolist())}
    assert all(place[row] < place[parent[row]] for row in place if parent[row] >= 0)

    main = graph.ancestors(parent, np.array(tips[:1]))
    chains = graph.lines(parent, order, main)
    for at, row in enumerate(order.tolist()):
        line = chains.chain[at]
        assert chains.first[line] <= at <= chains.last[line]
        if main[row]:
            assert chains.column[line] == 0
        if at == chains.last[line]:
            assert chains.joins[line] == (place[parent[row]] if parent[row] >= 0 else -1)
    ends = np.where(chains.joins < 0, chains.last, chains.joins - 1)
    for at in range(len(order)):
        passing = (chains.first <= at) & (at <= ends)
        columns = chains.column[passing].tolist()
        assert len(columns) == len({*columns})


def test_a_damaged_history_that_runs_in_a_circle_ends():
    parent, times = np.array([1, 2, 0, 0]), np.zeros(4, np.uint64)
    assert graph.ancestors(parent, np.array([3])).tolist() == [True] * 4
    order = graph.newest_first(parent, times, np.ones(4, np.bool_))
    assert len(graph.lines(parent, order, np.zeros(4, np.bool_)).chain) == 4
    assert not graph.descendants(parent, 3)[0]


def test_a_picture_shows_lines_that_pass_by_and_few_columns():
    count = 40
    # Forty branches from one root.
    parent = np.array([-1, *[0] * count])
    order = np.array([*range(count, 0, -1), 0])
    chains = graph.lines(parent, order, np.zeros(count + 1, np.bool_))
    picture = draw(chains, 10, 20)
    assert len(picture.dots) == 10
    assert picture.height == 560
    assert all(line.path.startswith("M") for line in picture.lines)
    assert len(picture.lines) <= MAX_COLUMNS
    assert max(dot.x for dot in picture.dots) < picture.width <= MAX_COLUMNS * 16 + 8
    assert draw(chains, 0, 0).dots == []


COUNT = 10_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A repository whose repo object lists ten thousand snapshots and a thousand branches."""
    url = str(tmp_path_factory.mktemp("large") / "repo")
    repository = icefloe.Repository.create(url)
    assets = Assets(repository.storage)
    info, version = assets.repo()
    first = info.snapshots[0]
    ids = [INITIAL_SNAPSHOT_ID, *(SnapshotId((row + 1).to_bytes(12)) for row in range(COUNT))]
    infos = [
        SnapshotInfo(
            ids[row],
            ids[row - 1] if row % 10 else ids[max(row - 10, 0)],
            first.flushed_at + row,
            f"number {row}",
            {"airflow.run_id": f"run {row // 5}", "airflow.dag_id": "d"},
        )
        for row in range(1, COUNT + 1)
    ]
    snapshots = Snapshots.of([first, *infos])
    rows = {f"branch-{at}": snapshots.row(ids[at * 10 + 9]) for at in range(1000)}
    rows["main"] = snapshots.row(ids[COUNT])
    full = replace(info, snapshots=snapshots, branches=Refs.of(rows))
    assets.storage.put_if("repo", repo_info.encode(full), expected=version)
    return icefloe.Repository.open(url)


def test_a_page_of_a_long_history_looks_at_no_more_snapshots_than_it_shows(large, monkeypatch):
    info = Assets(large.storage).repo()[0]
    looked = []
    plain = Snapshots.__getitem__

    def look(self, row):
        looked.append(row)
        return plain(self, row)

    monkeypatch.setattr(Snapshots, "__getitem__", look)
    everything = history(info, limit=50)
    assert everything.total == COUNT + 1
    assert len(everything.commits) == 50
    # The first page, and one far down.
    deep = history(info, limit=50, after=str(info.snapshots.id_at(5000)))
    assert deep.begin > 1000
    assert history(info, branch="branch-999", limit=50).total == COUNT // 10 + 9
    assert len(looked) == 150
    looked.clear()
    assert len(of_run(info, "d", "run 77")) == 5
    branches, _ = containing(info, deep.commits[0].id)
    assert branches[0] == "main"
    assert len(names(info, info.branches)) == 200
    assert names(info, info.branches)[0].name == "main"
    assert len(looked) == 405
