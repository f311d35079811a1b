"""The nodes of a snapshot as columns, against plain lists of nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.nodes import ArrayData, DimensionShape, ManifestRefs, Node, Nodes

segments = st.sampled_from(["a", "a-b", "a.b", "b", "B", "é", "日本"])
paths = st.lists(segments, max_size=3).map("/".join).map("/{}".format)


@st.composite
def arrays(draw):
    rank = draw(st.integers(0, 2))
    ranges = st.tuples(st.integers(0, 9), st.integers(0, 9))
    boxes = st.lists(ranges, min_size=rank, max_size=rank)
    manifest_ids = st.binary(min_size=12, max_size=12).map(ManifestId)
    names = st.none() | st.text(max_size=3)
    return ArrayData(
        tuple(
            DimensionShape(draw(st.integers(0, 9)), draw(st.integers(0, 9))) for _ in range(rank)
        ),
        draw(st.none() | st.lists(names, min_size=rank, max_size=rank).map(tuple)),
        ManifestRefs.of(draw(st.lists(st.tuples(manifest_ids, boxes), max_size=3)), rank),
    )


nodes = st.builds(
    Node,
    st.binary(min_size=8, max_size=8).map(NodeId),
    paths,
    st.binary(max_size=5),
    st.none() | arrays(),
    st.none() | st.binary(max_size=3),
)
trees = st.lists(nodes, unique_by=lambda node: node.path, max_size=8)


def assert_same(columns, expected):
    assert len(columns) == len(expected)
    for row, node in enumerate(sorted(expected, key=lambda node: node.path.encode())):
        assert columns[row].equals(node)


@given(trees, paths)
def test_nodes_come_back_in_byte_order_and_are_found_by_path(tree, path):
    columns = Nodes.of(tree)
    assert_same(columns, tree)
    for row in range(len(columns)):
        assert columns.row(columns[row].path) == row
    if path not in {node.path for node in tree}:
        assert columns.row(path) is None


@given(trees, paths)
def test_a_subtree_is_a_range_without_its_root(tree, path):
    columns = Nodes.of(tree)
    prefix = path if path.endswith("/") else f"{path}/"
    below = {node.path for node in tree if node.path.startswith(prefix)} - {path}
    assert {columns[row].path for row in columns.below(path)} == below


@given(trees, st.integers(0, 8))
def test_parts_join_in_byte_order(tree, cut):
    joined = Nodes.concat([Nodes.of(tree[cut:]), Nodes.of(tree[:cut])])
    assert joined.equals(Nodes.of(tree))
    assert_same(joined, tree)


@given(trees.filter(len))
def test_a_path_occurs_once(tree):
    with pytest.raises(InvalidInputError, match="occurs twice") as caught:
        Nodes.concat([Nodes.of(tree), Nodes.of(tree[:1])])
    assert caught.value.kind == "duplicate-node"
    assert repr(tree[0].path) in str(caught.value)


def test_a_manifest_covers_what_its_extents_hold_and_everything_without_them():
    boxes = [(ManifestId(bytes([n] * 12)), [(10 * n, 10 * n + 10), (0, 5)]) for n in range(3)]
    refs = ManifestRefs.of(boxes, 2)
    assert refs.covering((12, 4)).tolist() == [1]
    assert refs.covering((12, 5)).tolist() == []
    assert refs.covering((30, 0)).tolist() == []
    anywhere = ManifestRefs(refs.object_id, np.zeros((3, 0, 2), np.uint32))
    assert anywhere.covering((99, 99)).tolist() == [0, 1, 2]
