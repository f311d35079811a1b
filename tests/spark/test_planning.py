"""Plans and grids, without Spark: which cells, which chunks, which elements."""

import numpy as np
import pytest

from icefloe import InvalidInputError
from icefloe.adoption import outside_cells
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRefs
from icefloe.spark.chunk_grid import Axis, ChunkGrid, blocks, clip, points, volume
from icefloe.spark.planning import carried_cells


def manifests(*boxes):
    return ManifestRefs.of([(ManifestId.random(), box) for box in boxes], 2)


def test_cells_are_carried_as_far_as_manifests_reach():
    """One manifest leads to the next, and from there to a third."""
    chain = manifests([(0, 4), (0, 2)], [(3, 6), (2, 4)], [(8, 9), (0, 1)])
    assert carried_cells(chain, (2, 2), [(0, 0)]) == [(1, 0)]
    chain = manifests([(0, 4), (0, 3)], [(3, 6), (3, 4)], [(8, 9), (0, 1)])
    assert carried_cells(chain, (2, 2), [(0, 0)]) == [(0, 1), (1, 0), (1, 1), (2, 1)]
    assert carried_cells(chain, (2, 2), [(4, 0)]) == []
    assert carried_cells(chain, (2, 2), []) == []


def test_what_is_carried_is_what_an_adoption_wants():
    chain = manifests([(0, 4), (0, 3)], [(3, 6), (3, 4)], [(8, 9), (0, 1)])
    cells = [(0, 0)]
    with pytest.raises(InvalidInputError, match="reaches into cells"):
        outside_cells(chain, (2, 2), np.array(cells))
    cells += carried_cells(chain, (2, 2), cells)
    assert len(outside_cells(chain, (2, 2), np.array(cells))) == 1


def test_manifests_without_extents_are_never_replaced_unread():
    ids = np.zeros((1, 12), np.uint8)
    unknown = ManifestRefs(ids, np.zeros((1, 0, 2), np.uint32))
    with pytest.raises(InvalidInputError) as caught:
        carried_cells(unknown, (2, 2), [(0, 0)])
    assert caught.value.kind == "manifest-without-extents"
    with pytest.raises(InvalidInputError, match="reaches into cells"):
        outside_cells(unknown, (2, 2), np.array([(0, 0)]))


def test_blocks_cover_a_box_once():
    box = ((2, 9), (0, 5), (7, 8))
    for limit in (1, 4, 5, 17, 1000):
        parts = blocks(box, limit)
        assert all(volume(part) <= max(limit, 1) for part in parts)
        found = np.concatenate([points(part) for part in parts])
        np.testing.assert_array_equal(np.unique(found, axis=0), points(box))
        assert len(found) == volume(box)
    assert blocks(((3, 3), (0, 5)), 10) == []


def test_axes_know_their_chunks():
    regular, varied = Axis(17, 5, 4), Axis(17, 3, 0, (0, 4, 10, 20))
    for axis in (regular, varied):
        places = np.arange(17)
        assert axis.chunks_of(places).tolist() == [axis.chunk_of(at) for at in range(17)]
        covered = [axis.span(at, at + 1) for at in range(axis.count)]
        assert [at for low, high in covered for at in range(low, high)] == list(range(17))
    assert (regular.chunk_size(4), varied.chunk_size(2)) == (4, 10)


def test_a_grid_cuts_what_it_selects():
    grid = ChunkGrid((Axis(17, 5, 4), Axis(23, 5, 5)), ("y", "x"))
    elements = grid.select({"x": slice(7, 11)})
    assert elements == ((0, 17), (7, 11))
    assert grid.chunks(elements) == ((0, 5), (1, 3))
    values = np.arange(17 * 10).reshape(17, 10)
    seen = np.zeros_like(values)
    for _, part in grid.cut(((0, 5), (1, 3))):
        seen[part] += 1
    assert (seen == 1).all()
    assert clip(((0, 4), (3, 5)), ((4, 6), (0, 4))) == ((4, 4), (3, 4))


@pytest.mark.parametrize(
    "region",
    [
        {"y": "2026-01-01"},
        {"y": 3},
        {"y": slice("2026-01-01", None)},
        ["a", slice(None)],
        (slice(0.5, 2), slice(None)),
        "ab",
    ],
    ids=str,
)
def test_a_region_that_is_not_made_of_positions_is_refused(region):
    grid = ChunkGrid((Axis(17, 5, 4), Axis(23, 5, 5)), ("y", "x"))
    with pytest.raises(InvalidInputError, match="positions"):
        grid.select(region)
