"""Which chunks share a manifest: the rules of a configuration, and a rule for arrays without one.

A split is given as sizes, the chunks per manifest along each axis. They cut the chunk grid into
cells, and each cell that holds chunks has one manifest.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np

from icefloe.config.conditions import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    dimension_matches,
)
from icefloe.config.settings import ManifestConfig, ManifestSplittingConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.config.settings import RepositoryConfig, SplitRule

REFS_PER_MANIFEST = 100_000


def split_sizes(
    config: RepositoryConfig,
    path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
) -> tuple[int, ...] | None:
    """How the rules split the array at `path`; None if none of them says anything about it.

    Along each axis the first size counts whose conditions match, of whichever rule; an axis that no
    rule mentions stays whole. No size exceeds the axis, and each is at least 1.
    """
    names = dimension_names or [None] * len(num_chunks)
    sizes = [
        (condition, size)
        for array, parts in _rules(config)
        if array.matches(path)
        for condition, size in parts
        if size > 0
    ]
    found = [
        next((size for condition, size in sizes if dimension_matches(condition, axis, name)), None)
        for axis, name in enumerate(names)
    ]
    if all(size is None for size in found):
        return None
    return tuple(
        max(1, count if size is None else min(size, count))
        for size, count in zip(found, num_chunks, strict=True)
    )


def automatic_split(
    num_chunks: Sequence[int], limit: int = REFS_PER_MANIFEST
) -> tuple[int, ...] | None:
    """Sizes for manifests of at most `limit` chunks, cut along leading axes.

    None if the whole grid has no more.
    """
    sizes: list[int] = []
    left = limit
    for count in reversed(num_chunks):
        size = max(1, min(count, left))
        sizes.insert(0, size)
        # Once an axis is cut, those before it get one chunk each.
        left = left // size if size == count else 1
    is_whole = 0 in num_chunks or sizes == list(num_chunks)
    return None if is_whole else tuple(sizes)


def with_rule(config: RepositoryConfig, path: str, sizes: Sequence[int]) -> RepositoryConfig:
    """A copy with a rule for this one array, before all others; it replaces an earlier one."""
    condition = ManifestSplitCondition.path_matches(f"^{re.escape('/' + path.strip('/'))}$")
    parts = tuple((ManifestSplitDimCondition.Axis(axis), int(n)) for axis, n in enumerate(sizes))
    others = tuple(rule for rule in _rules(config) if rule[0] != condition)
    changed = deepcopy(config)
    changed.manifest = changed.manifest or ManifestConfig()
    changed.manifest.splitting = ManifestSplittingConfig(((condition, parts), *others))
    return changed


def cells(index: NDArray[np.uint32], sizes: Sequence[int]) -> NDArray[np.int64]:
    """The cell of each chunk: (n, dimensions) coordinates for (n, dimensions) coordinates."""
    return index.astype(np.int64) // np.array(sizes, np.int64)


def _rules(config: RepositoryConfig) -> tuple[SplitRule, ...]:
    splitting = config.manifest and config.manifest.splitting
    return (splitting and splitting.split_sizes) or ()
