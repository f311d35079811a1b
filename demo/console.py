"""What the demonstration prints: numbered steps, tasks as they end, a live line on a terminal."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from demo.runner import Attempt

_INDENT = "    "
_SPINNER = "|/-\\"
_STILL_HERE = 10.0
"""Seconds without a word, where no live line can be shown."""


class Console:
    """Prints to stdout, and remembers what steps took."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._has_colors = self._is_terminal and "NO_COLOR" not in os.environ
        self._started = time.monotonic()
        self._said = self._started
        self._steps: list[tuple[str, float]] = []
        self._frame = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def timings(self) -> list[tuple[str, float]]:
        """The steps so far, and how long each took."""
        starts = [start for _, start in self._steps]
        ends = [*starts[1:], time.monotonic()]
        return [(title, end - start) for (title, start), end in zip(self._steps, ends, strict=True)]

    def step(self, title: str, *explanation: str) -> None:
        """Begin a step."""
        self._steps.append((title, time.monotonic()))
        self.line()
        self.line(self._bold(f"{len(self._steps)}  {title}"))
        for text in explanation:
            self.line(self._dim(_INDENT + text))

    def heading(self, title: str) -> None:
        self.line()
        self.line(self._bold(title))

    def fact(self, text: str) -> None:
        self.line(_INDENT + text)

    def table(self, rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> None:
        """Rows of columns, as wide as they need to be; those in `right` end together."""
        rows, right = [*rows], {*right}
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.rjust(width) if at in right else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.fact("  ".join(cells).rstrip())

    def ended(self, attempt: Attempt) -> None:
        """A task is over, well or not."""
        took = "" if attempt.seconds is None else f"{attempt.seconds:5.1f} s"
        state = {"success": "ok", "up_for_retry": "failed"}.get(attempt.state, attempt.state)
        tried = f", attempt {attempt.number}" if attempt.number > 1 else ""
        text = f"{_INDENT}{took:>7}  {state:<15} {attempt.name}{tried}"
        self.line(text if state == "ok" else self._red(text))

    def working(self, text: str) -> None:
        """What is going on: a live line on a terminal, else a word now and then."""
        if self._is_terminal:
            self._frame += 1
            width = os.get_terminal_size().columns - len(_INDENT) - 3
            spinner = _SPINNER[self._frame % len(_SPINNER)]
            self._write(f"\r\033[K{_INDENT}{spinner} {text[:width]}")
        elif time.monotonic() - self._said > _STILL_HERE:
            self.fact(f"{self.seconds:5.0f} s  {text}")

    def line(self, text: str = "") -> None:
        self._said = time.monotonic()
        self._write(("\r\033[K" if self._is_terminal else "") + text + "\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._has_colors else text

    def _dim(self, text: str) -> str:
        return f"\033[2m{text}\033[0m" if self._has_colors else text

    def _red(self, text: str) -> str:
        return f"\033[31m{text}\033[0m" if self._has_colors else text


def in_megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"
