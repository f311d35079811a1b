"""Pictures of what the demonstration left: a map, a difference between versions, and storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from demo import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

    from demo.archive import Moment

_KELVIN = 273.15
_INK = "#1f2a36"
_MUTED = "#7b8794"
_KEPT = "#2f7d95"
_FREED = "#e8a33d"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": "#c8d0d8",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "figure.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class Pictures:
    """All that is shown."""

    kelvin: fields.Field
    """Temperature at one hour."""
    rain: fields.Field
    """In the same hour, mm/h."""
    hour: str
    difference: fields.Field
    """What a correction changed, in kelvin."""
    versions: str
    moments: Sequence[Moment]


def save(pictures: Pictures, folder: Path) -> list[Path]:
    """One file for each picture, and one with all of them; their paths."""
    drawn: dict[str, tuple[Callable[[Axes, Pictures], None], tuple[float, float]]] = {
        "field": (_draw_field, (8.6, 4.6)),
        "difference": (_draw_difference, (8.6, 4.6)),
        "storage": (_draw_storage, (8.6, 4.2)),
    }
    paths = []
    with mpl.rc_context(_STYLE):
        for name, (draw, size) in drawn.items():
            figure = Figure(figsize=size, layout="constrained")
            draw(figure.subplots(), pictures)
            paths.append(_save(figure, folder / f"{name}.png"))
        figure = Figure(figsize=(13.2, 7.8), layout="constrained")
        axes = figure.subplot_mosaic(
            [["field", "difference"], ["storage", "storage"]], height_ratios=[1.5, 1]
        )
        for name, (draw, _) in drawn.items():
            draw(axes[name], pictures)
        paths.append(_save(figure, folder / "overview.png"))
    return paths


def _save(figure: Figure, path: Path) -> Path:
    # Without the version of matplotlib, the same run gives the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def _draw_field(axes: Axes, pictures: Pictures) -> None:
    celsius = pictures.kelvin - _KELVIN
    drawn = axes.pcolormesh(
        fields.LONGITUDES, fields.LATITUDES, celsius, cmap="RdYlBu_r", rasterized=True
    )
    axes.contourf(
        fields.LONGITUDES,
        fields.LATITUDES,
        pictures.rain,
        levels=[0.5, 2, 5, 1000],
        colors=["#1d4e8970", "#1d4e89b0", "#12305ae0"],
    )
    _draw_globe(axes)
    axes.set_title(f"Temperature, and rain in blue, {pictures.hour}")
    _draw_scale(axes, drawn, "degrees Celsius")


def _draw_difference(axes: Axes, pictures: Pictures) -> None:
    largest = float(np.abs(pictures.difference).max())
    drawn = axes.pcolormesh(
        fields.LONGITUDES,
        fields.LATITUDES,
        pictures.difference,
        cmap="RdBu_r",
        norm=TwoSlopeNorm(0, -largest, largest),
        rasterized=True,
    )
    _draw_globe(axes)
    axes.set_title(pictures.versions)
    _draw_scale(axes, drawn, "kelvin")


def _draw_scale(axes: Axes, drawn: QuadMesh, label: str) -> None:
    bar = axes.figure.colorbar(
        drawn, ax=axes, orientation="horizontal", shrink=0.5, pad=0.04, aspect=40
    )
    bar.set_label(label)
    bar.outline.set_visible(False)


def _draw_globe(axes: Axes) -> None:
    axes.contour(
        fields.LONGITUDES, fields.LATITUDES, fields.land(), [0.5], colors=_INK, linewidths=0.7
    )
    axes.set_aspect("equal")
    axes.set_xticks(range(-120, 180, 60), [_degrees(at, "W", "E") for at in range(-120, 180, 60)])
    axes.set_yticks(range(-60, 90, 30), [_degrees(at, "S", "N") for at in range(-60, 90, 30)])
    axes.tick_params(length=0)


def _degrees(at: int, below: str, above: str) -> str:
    return f"{abs(at)}{'' if at == 0 else below if at < 0 else above}"


def _draw_storage(axes: Axes, pictures: Pictures) -> None:
    moments = pictures.moments
    places = np.arange(len(moments))
    kept = np.array([moment.kept for moment in moments]) / 1e6
    freed = np.array([moment.total - moment.kept for moment in moments]) / 1e6
    axes.bar(places, kept, 0.5, color=_KEPT, label="still needed at the end")
    axes.bar(places, freed, 0.5, bottom=kept, color=_FREED, label="freed by expire and GC")
    for place, total in enumerate(kept + freed):
        axes.text(place, total, f"{total:.1f}", ha="center", va="bottom", color=_INK)
    axes.set_xticks(places, [moment.label for moment in moments])
    axes.tick_params(length=0)
    axes.set_ylabel("MB on disk")
    axes.set_ylim(0, 1.25 * float((kept + freed).max()))
    axes.grid(axis="y", color="#eef1f4")
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.legend(frameon=False, loc="upper left", ncols=2)
    axes.set_title("Storage over the commits")
