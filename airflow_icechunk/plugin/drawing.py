"""The picture beside a list of snapshots: dots on lines, for an SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from airflow_icechunk.plugin.graph import Chains

ROW = 56
"""Pixels from one snapshot to the next; the style sheet gives rows this height."""
STEP = 16
"""Pixels from one column to the next."""
MAX_COLUMNS = 12
"""What stands further right is drawn in the last one."""
COLORS = 8
"""The style sheet has so many colours for lines."""


@dataclass(frozen=True, slots=True)
class Dot:
    x: int
    y: int
    color: int


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    """As SVG spells it."""
    color: int


@dataclass(frozen=True, slots=True)
class Drawing:
    width: int
    height: int
    dots: list[Dot]
    lines: list[Line]


def draw(chains: Chains, begin: int, end: int) -> Drawing:
    """The part of a graph that belongs to some rows of a list.

    :param chains: of the whole list.
    :param begin: the first row.
    :param end: the row after the last.
    """
    column = np.minimum(chains.column, MAX_COLUMNS - 1)
    mine = chains.chain[begin:end]
    dots = [
        Dot(_x(at), _y(row), _color(line))
        for row, (at, line) in enumerate(
            zip(column[mine].tolist(), chains.column[mine].tolist(), strict=True)
        )
    ]
    lowest = np.where(chains.joins < 0, chains.last, chains.joins)
    shown = np.flatnonzero((chains.first < end) & (lowest >= begin) & (chains.column < MAX_COLUMNS))
    height = (end - begin) * ROW
    lines = []
    for chain in shown.tolist():
        join = int(chains.joins[chain])
        bottom = int(lowest[chain])
        top = max(_y(int(chains.first[chain]) - begin), 0)
        into = None if join < 0 or join >= end else _x(int(column[chains.chain[join]]))
        path = _path(_x(int(column[chain])), top, min(_y(bottom - begin), height), into)
        lines.append(Line(path, _color(int(chains.column[chain]))))
    widest = max([0, *column[shown].tolist(), *column[mine].tolist()])
    return Drawing((widest + 1) * STEP + STEP // 2, height, dots, lines)


def _path(x: int, top: int, bottom: int, into: int | None) -> str:
    """Down, and at the end over to the column of the parent."""
    if into is None or into == x:
        return f"M{x} {top}V{bottom}"
    turn = max(bottom - ROW, top)
    middle = (turn + bottom) // 2
    return f"M{x} {top}V{turn}C{x} {middle} {into} {middle} {into} {bottom}"


def _x(column: int) -> int:
    return STEP + column * STEP - STEP // 4


def _y(row: int) -> int:
    return row * ROW + ROW // 2


def _color(column: int) -> int:
    return column % COLORS
