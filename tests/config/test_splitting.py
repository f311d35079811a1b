"""Which chunks share a manifest, asked of us and of the official library."""

import re
from dataclasses import replace
from itertools import product

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import config as ours
from icefloe.config import RepositoryConfig, encode
from icefloe.format import repo_info, snapshot
from icefloe.splitting import automatic_split, cells, split_sizes, with_rule

icechunk.set_logs_filter("error")

GRID = (12, 7)


def rule(ic, array, *sizes):
    """`array` is a condition's name and argument; sizes are pairs of a dimension and a number."""
    conditions = ic.ManifestSplitCondition
    match array:
        case "any":
            condition = conditions.AnyArray()
        case ("or" | "and") as name, *parts:
            join = getattr(conditions, f"{name}_conditions")
            condition = join([rule(ic, part)[0] for part in parts])
        case name, regex:
            condition = getattr(conditions, f"{name}_matches")(regex)
    return condition, tuple((_dimension(ic, wanted), number) for wanted, number in sizes)


def _dimension(ic, wanted):
    dimensions = ic.ManifestSplitDimCondition
    match wanted:
        case int():
            return dimensions.Axis(wanted)
        case "any":
            return dimensions.Any()
        case _:
            return dimensions.DimensionName(wanted)


def config_of(ic, rules):
    sizes = tuple(rule(ic, *given) for given in rules)
    return ic.RepositoryConfig(
        manifest=ic.ManifestConfig(splitting=ic.ManifestSplittingConfig(sizes))
    )


def official_boxes(path, tmp_path, names=("time", "lat"), config=None, grid=GRID):
    """The extents of the manifests that the official library writes for a full array."""
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icechunk.Repository.open_or_create(storage, config=config)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store,
        name=path,
        shape=grid,
        chunks=(1,) * len(grid),
        dtype="u1",
        fill_value=0,
        compressors=None,
        dimension_names=names,
    )
    array[...] = 1
    commit = session.commit("all chunks")
    nodes = snapshot.decode((tmp_path / f"repo/snapshots/{commit}").read_bytes()).nodes
    extents = nodes.manifests(nodes.row(f"/{path}")).extents
    return sorted(tuple(map(tuple, box)) for box in extents.tolist())


def boxes(sizes, grid=GRID):
    edges = [
        [(start, min(start + size, count)) for start in range(0, count, size)]
        for size, count in zip(sizes, grid, strict=True)
    ]
    return sorted(product(*edges))


RULES = {
    "one axis": ([("any", (0, 5))], (5, 7)),
    "every axis": ([("any", ("any", 5))], (5, 5)),
    "a rule for each axis": ([("any", (0, 5)), ("any", (1, 4))], (5, 4)),
    "a later rule takes what is left": ([("any", (0, 5)), ("any", ("any", 4))], (5, 4)),
    "any before axis": ([("any", ("any", 6), (0, 5))], (6, 6)),
    "the first of two": ([("any", (0, 6), (0, 5))], (6, 7)),
    "part of a name": ([("any", ("im", 5))], (5, 7)),
    "anchored name": ([("any", ("^ti$", 5))], None),
    "an empty rule": ([("any",), ("any", (1, 3))], (12, 3)),
    "an axis too far": ([("any", (5, 5))], None),
    "a size over the axis": ([("any", (1, 100))], (12, 7)),
    "part of the array's name": ([(("name", "em"), (0, 5))], (5, 7)),
    "the name is not the path": ([(("name", "^g"), (0, 5))], None),
    "the name has no slash": ([(("name", "^temp$"), (0, 5))], (5, 7)),
    "the path has a slash": ([(("path", "^/g/temp$"), (0, 5))], (5, 7)),
    "no path without": ([(("path", "^g/temp$"), (0, 5))], None),
    "a bad regex": ([(("path", "("), (0, 5)), ("any", (0, 6))], (6, 7)),
    "a bad name": ([("any", ("(", 5), (0, 6))], (6, 7)),
    "look-ahead": ([(("path", "(?=x)|temp"), (0, 5)), ("any", (0, 6))], (6, 7)),
    "or": ([(("or", ("name", "x"), ("name", "temp")), (0, 5))], (5, 7)),
    "and": ([(("and", ("name", "x"), ("name", "temp")), (0, 5))], None),
    "no or": ([(("or",), (0, 5))], None),
    "no and": ([(("and",), (0, 5))], (5, 7)),
    "no rules": ([], None),
}


@pytest.mark.parametrize(("rules", "expected"), RULES.values(), ids=RULES)
def test_rules_split_as_in_the_official_library(rules, expected, tmp_path):
    sizes = split_sizes(config_of(ours, rules), "/g/temp", ("time", "lat"), GRID)
    assert sizes == expected
    official = official_boxes("g/temp", tmp_path, config=config_of(icechunk, rules))
    assert official == boxes(sizes or GRID)


@pytest.mark.parametrize("names", [None, (None, "lat"), ("time", None)])
def test_a_dimension_without_a_name_matches_no_name(names, tmp_path):
    rules = [("any", (".*", 5))]
    sizes = split_sizes(config_of(ours, rules), "/g/temp", names, GRID)
    official = official_boxes("g/temp", tmp_path, names, config_of(icechunk, rules))
    assert official == boxes(sizes or GRID)


def test_without_configuration_nothing_is_split():
    assert split_sizes(RepositoryConfig(), "/a", None, (10,)) is None
    assert split_sizes(config_of(ours, [("any", ("any", 5))]), "/a", (), ()) is None


def test_an_axis_without_chunks_has_size_one():
    assert split_sizes(config_of(ours, [("any", (0, 5))]), "/a", None, (0, 0)) == (1, 1)


ODD_NAMES = [
    "a", "a-b", "a.b", "a b", "a#b", "a&~b", "ünï", "a+b", "(a", "[a]", "{a}", "a$", "^a", "a|b",
    "a*?", "😀", "a\tb", "a\nb", "'\"", "a%b", "<a>", "\u2028x", "e\u0301",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_rule_for_one_array_means_that_array_to_both(name, tmp_path):
    config = with_rule(RepositoryConfig(), f"/{name}", (5,))
    assert split_sizes(config, f"/{name}", None, (12,)) == (5,)
    assert split_sizes(config, f"/{name}x", None, (12,)) is None
    assert split_sizes(config, f"/x/{name}", None, (12,)) is None
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    icechunk.Repository.create(storage)
    _write_config(tmp_path / "repo/repo", encode(config, None))
    assert len(official_boxes(name, tmp_path, None, grid=(12,))) == 3
    assert len(official_boxes(f"{name}x", tmp_path, None, grid=(12,))) == 1


def _write_config(path, data):
    info = repo_info.decode(path.read_bytes())
    path.write_bytes(repo_info.encode(replace(info, config=data)))


def test_a_rule_for_one_array_goes_first_and_replaces_its_predecessor():
    config = config_of(ours, [("any", ("any", 9))])
    once = with_rule(config, "/a", (3, 4))
    twice = with_rule(with_rule(once, "/b", (1, 1)), "a", np.array([5, 6]))
    assert split_sizes(config, "/a", None, GRID) == (9, 7)
    assert split_sizes(once, "/a", None, GRID) == (3, 4)
    assert split_sizes(twice, "/a", None, GRID) == (5, 6)
    assert split_sizes(twice, "/c", None, GRID) == (9, 7)
    assert len(twice.manifest.splitting.split_sizes) == 3
    encode(twice, None)


@given(st.lists(st.integers(0, 3000), max_size=4), st.integers(1, 5000))
def test_automatic_splits_are_few_and_within_the_limit(grid, limit):
    sizes = automatic_split(grid, limit)
    if int(np.prod(grid, dtype=object)) <= limit:
        assert sizes is None
        return
    assert np.prod(sizes, dtype=object) <= limit
    cut = next(axis for axis in reversed(range(len(grid))) if sizes[axis] < grid[axis])
    assert all(size == 1 for size in sizes[:cut])
    assert sizes[cut + 1 :] == tuple(grid[cut + 1 :])
    # One more along the cut axis would not fit.
    assert np.prod(sizes[cut + 1 :], dtype=object) * (sizes[cut] + 1) > limit


def test_an_automatic_split_cuts_leading_axes():
    assert automatic_split((10**6, 10, 10)) == (1000, 10, 10)
    assert automatic_split((3, 200_000, 2)) == (1, 50_000, 2)
    assert automatic_split((1000, 100)) is None
    assert automatic_split(()) is None


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.data())
def test_each_chunk_is_in_the_cell_that_covers_it(sizes, data):
    coords = st.tuples(*[st.integers(0, 2**32 - 1)] * len(sizes))
    index = np.array(data.draw(st.lists(coords, max_size=5)), np.uint32).reshape(-1, len(sizes))
    found = cells(index, sizes)
    assert found.dtype == np.int64
    assert (found * sizes <= index).all()
    assert (index < (found + 1) * sizes).all()


def test_scalars_have_one_cell():
    assert cells(np.zeros((1, 0), np.uint32), ()).shape == (1, 0)


def test_the_escaped_path_is_anchored():
    ((condition, _),) = with_rule(RepositoryConfig(), "/a.b", (1,)).manifest.splitting.split_sizes
    assert re.fullmatch(r"\^.*\$", condition.term.regex)
