"""The end of the demonstration: the graph, what was written, times, sizes, pictures, what next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from demo import archive, fields, graph, plots
from demo.console import in_megabytes

if TYPE_CHECKING:
    from pathlib import Path

    from demo.story import Story

_SHOWN_HOUR = 24 + 12


def end(story: Story) -> list[Path]:
    """Print it all, save the pictures and the summary; the paths of the pictures."""
    console = story.console
    console.step("What there is now", "All of it read from the repository again.")
    _show_graph(story)
    _show_arrays(story)
    saved = _save_pictures(story)
    _show_times_and_sizes(story)
    console.heading("Saved")
    for path in [*saved, story.layout.summary, story.layout.log]:
        console.fact(str(path))
    story.summary["plots"] = [str(path) for path in saved]
    story.summary["seconds"] = console.seconds
    story.layout.summary.write_text(json.dumps(story.summary, indent=2) + "\n")
    _say_what_next(story)
    return saved


def _show_graph(story: Story) -> None:
    story.console.heading("Commit graph of main, newest first; staged snapshots beside it")
    named = graph.names(story.repo)
    for line in graph.draw(story.history, story.staged, named, story.gone):
        story.console.fact(line)
    story.summary["main"] = [each.id for each in story.repo.ancestry(branch="main")]
    story.summary["names"] = named


def _show_arrays(story: Story) -> None:
    story.console.heading("Arrays on main")
    session = story.repo.readonly_session("main")
    stored = {row.name: row.native_bytes for row in story.repo.chunk_storage_stats("array")}
    rows = [("array", "shape", "chunks", "type", "values", "stored, all versions")]
    found = []
    for path, array in archive.arrays(session):
        size = stored.get(f"/{path}", 0)
        found.append({"path": path, "shape": array.shape, "bytes": array.nbytes, "stored": size})
        rows.append(
            (
                path,
                " x ".join(map(str, array.shape)),
                " x ".join(map(str, array.chunks)),
                str(array.dtype),
                in_megabytes(array.nbytes),
                in_megabytes(size),
            )
        )
    story.summary["arrays"] = found
    story.console.table(rows, right=(4, 5))


def _save_pictures(story: Story) -> list[Path]:
    main, tag = story.repo.readonly_session("main"), story.repo.readonly_session(tag="v1")
    shown = slice(_SHOWN_HOUR, _SHOWN_HOUR + 1)
    day = fields.hours_of(story.summary["versions"]["day"])
    old, new = (archive.read(each, "t2m", day).mean(axis=0, dtype="f8") for each in (tag, main))
    pictures = plots.Pictures(
        kelvin=archive.read(main, "t2m", shown)[0],
        rain=archive.read(main, "tp", shown)[0],
        hour=f"{fields.day_name(_SHOWN_HOUR // 24)} {_SHOWN_HOUR % 24:02}:00 UTC",
        difference=(new - old).astype("f4"),
        versions=f"A correction: main minus tag v1, mean of {story.summary['versions']['day']}",
        moments=story.moments,
    )
    return plots.save(pictures, story.layout.plots)


def _show_times_and_sizes(story: Story) -> None:
    console = story.console
    console.heading("Storage")
    console.table(
        [(moment.label.replace("\n", " "), in_megabytes(moment.total)) for moment in story.moments],
        right=(1,),
    )
    console.heading("Time")
    timings = console.timings()
    story.summary["timings"] = [{"step": title, "seconds": spent} for title, spent in timings]
    rows = [(title, f"{spent:.1f} s") for title, spent in timings]
    console.table([*rows, ("All of it", f"{console.seconds:.1f} s")], right=(1,))


def _say_what_next(story: Story) -> None:
    console = story.console
    console.heading("The official library opens the same files")
    storage = f"icechunk.local_filesystem_storage({str(story.layout.repo)!r})"
    for line in (
        "import icechunk, xarray",
        f"repo = icechunk.Repository.open({storage})",
        'xarray.open_zarr(repo.readonly_session("main").store, consolidated=False)',
    ):
        console.fact(line)
    console.heading("Next")
    console.table(
        [
            ("demo/dags", "the three Dags that just ran: copy them"),
            (
                "make up",
                "the same with the user interface, a Spark cluster and S3 (docs/running.md)",
            ),
            ("docs/quickstart.md", "the library on its own"),
            ("docs/airflow.md", "operators, sensors, transactions"),
            ("docs/spark.md", "writing on a cluster"),
        ]
    )
