"""Node paths: what is valid, how they sort, how they nest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format import paths

segments = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda segment: segment not in (".", ".."))
valid_paths = st.lists(segments, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(valid_paths)
def test_a_canonical_absolute_path_is_valid(path):
    assert paths.validate(path) == path


@pytest.mark.parametrize("path", ["/...", "/.a", "/a.", "/ ", "/a\\b", "/été/温度", "/c/0/1"])
def test_odd_but_canonical_segments_are_valid(path):
    assert paths.validate(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *["", "a", "a/b", "./a", " /a", "//", "/a/", "//a", "/a//b", "/.", "/..", "/a/../b"],
        *["/a/.", "/a\0b", "/\ud800"],
    ],
)
def test_any_other_path_is_refused_and_named(path):
    with pytest.raises(InvalidInputError) as error:
        paths.validate(path)
    assert repr(path) in str(error.value)
    assert error.value.kind == "invalid-path"


def test_nodes_sort_by_raw_bytes_and_moves_by_segment():
    unsorted = ["/b", "/a-b", "/", "/a/b", "/ab", "/a", "/é"]
    assert sorted(unsorted, key=paths.sort_key) == ["/", "/a", "/a-b", "/a/b", "/ab", "/b", "/é"]
    assert sorted(unsorted, key=paths.segment_key) == ["/", "/a", "/a/b", "/a-b", "/ab", "/b", "/é"]


def test_both_orders_are_of_bytes_not_of_utf_16():
    low, high = "/\uffee", "/\U0001f9ca"
    assert sorted([high, low], key=paths.sort_key) == [low, high]
    assert sorted([high, low], key=paths.segment_key) == [low, high]


@given(valid_paths, segments)
def test_a_child_knows_its_parent_and_its_name(parent, name):
    child = paths.join(parent, name)
    assert paths.validate(child) == child
    assert paths.parent(child) == parent
    assert paths.name(child) == name
    assert paths.is_descendant(child, parent)
    assert not paths.is_descendant(parent, child)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0"])
def test_join_refuses_a_name_that_is_not_one_segment(name):
    with pytest.raises(InvalidInputError):
        paths.join("/a", name)


def test_the_root_has_no_name_and_no_parent():
    assert paths.name("/") == ""
    with pytest.raises(InvalidInputError):
        paths.parent("/")


def test_a_sibling_that_shares_a_prefix_is_no_descendant():
    assert not paths.is_descendant("/ab", "/a")
    assert not paths.is_descendant("/a", "/a")
    assert not paths.is_descendant("/", "/")
    assert paths.is_descendant("/a", "/")
    assert paths.is_descendant("/a/b/c", "/a")


def test_ancestors_run_from_the_parent_to_the_root():
    assert paths.ancestors("/a/b/c") == ("/a/b", "/a", "/")
    assert paths.ancestors("/a") == ("/",)
    assert paths.ancestors("/") == ()
