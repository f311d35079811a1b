"""The graph of snapshots: who descends from whom, in which order, and in which column to draw."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    type Rows = NDArray[np.integer[Any]]
    type Ints = NDArray[np.int64]
    type Mask = NDArray[np.bool_]


def ancestors(parent: Rows, rows: Rows) -> Mask:
    """Which rows these stand on, themselves included.

    :param parent: of each row; -1 for none.
    :param rows: to start from.
    """
    found = np.zeros(len(parent) + 1, np.bool_)
    found[rows] = True
    for jump in _leaps(parent):
        found[jump[found]] = True
    return found[:-1]


def descendants(parent: Rows, row: int) -> Mask:
    """Which rows stand on this one, itself included."""
    found = np.zeros(len(parent) + 1, np.bool_)
    found[row] = True
    for jump in _leaps(parent):
        found |= found[jump]
    return found[:-1]


def depths(parent: Rows) -> Ints:
    """How many snapshots the history of each row has, itself included."""
    depth = np.ones(len(parent) + 1, np.int64)
    depth[-1] = 0
    for jump in _leaps(parent):
        depth = depth + depth[jump]
    return depth[:-1]


def newest_first(parent: Rows, time: NDArray[np.uint64], chosen: Mask) -> Ints:
    """The chosen rows by time, but never a snapshot after the one that it stands on.

    Clocks differ: a snapshot counts as no older than its ancestors.
    """
    latest = np.append(time, np.uint64(0))
    for jump in _leaps(parent):
        latest = np.maximum(latest, latest[jump])
    rows = np.flatnonzero(chosen)
    return rows[np.lexsort((depths(parent)[rows], latest[rows]))[::-1]]


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Snapshots in lines, for a list in which everyone stands above its parent.

    Of several children, one continues the line of its parent; each other one ends a line of its
    own there.
    """

    chain: Ints
    """Of each place of the list, which line it is on."""
    first: Ints
    """Of each line, its uppermost place."""
    last: Ints
    """Of each line, its lowest place."""
    joins: Ints
    """Of each line, the place of the parent of its lowest; -1 where history begins."""
    column: Ints
    """Of each line, where to draw it: lines that pass the same place differ."""


def lines(parent: Rows, order: Ints, preferred: Mask) -> Chains:
    """The lines through an ordered list of snapshots that is closed under parents.

    :param parent: of each row of the table; -1 for none.
    :param order: rows, each above its parent.
    :param preferred: rows that continue the line of their parent before others do, in the
        column 0: those of the branch main.
    """
    count = len(order)
    place = np.full(len(parent) + 1, -1, np.int64)
    place[order] = np.arange(count)
    above = place[parent[order]]
    # A damaged file may lead in circles.
    above[above <= np.arange(count)] = -1

    child = np.full(count + 1, count, np.int64)
    has_parent = np.flatnonzero(above >= 0)
    wish = np.lexsort((has_parent, ~preferred[order[has_parent]], above[has_parent]))
    ranked = has_parent[wish]
    parents, firsts = np.unique(above[ranked], return_index=True)
    child[parents] = ranked[firsts]

    head = np.arange(count + 1)
    leads = child[:-1] < count
    head[:-1][leads] = child[:-1][leads]
    for _ in range(max(count, 1).bit_length()):
        head = head[head]
    first, chain = np.unique(head[:-1], return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, chain, np.arange(count))
    joins = above[last]
    return Chains(chain, first, last, joins, _columns(first, last, joins, preferred[order[first]]))


def _columns(first: Ints, last: Ints, joins: Ints, preferred: Mask) -> Ints:
    """A free column for each line; there are no more lines than branches and tags."""
    column = np.zeros(len(first), np.int64)
    ends = np.where(joins < 0, last, joins - 1)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    width = int(preferred.any())
    for line, (begin, end, is_main) in enumerate(
        zip(first.tolist(), ends.tolist(), preferred.tolist(), strict=True)
    ):
        if is_main:
            continue
        while busy and busy[0][0] < begin:
            heappush(free, heappop(busy)[1])
        if free:
            column[line] = heappop(free)
        else:
            column[line], width = width, width + 1
        heappush(busy, (end, int(column[line])))
    return column


def _leaps(parent: Rows) -> list[Ints]:
    """Steps to the parent, then two at a time, four, and so on, until all histories have ended.

    So a long history takes no more rounds than its logarithm. One row more than there are
    snapshots stands for the end, which leads to itself.
    """
    end = len(parent)
    jump = np.append(np.where(parent < 0, end, parent), end).astype(np.int64)
    found = []
    for _ in range(end.bit_length()):
        found.append(jump)
        if (jump == end).all():
            break
        jump = jump[jump]
    return found
