"""How the cost of writing and reading on Spark grows with the number of chunks.

Run it with `python -m benchmarks.spark_scaling [--chunks N ...] [--docs]`; with `--docs` it renews
the table and the plot of docs/spark-scaling.md. Each size runs in a process of its own, because
memory that a first run leaves behind would hide the growth of a second one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import spark_read, spark_write
from benchmarks.report import Result, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.spark_read import Reading

REGIONS = 10
SIZES = (10**4, 10**5, 10**6)
PAGE = Path(__file__).parents[1] / "docs" / "spark-scaling.md"
PLOT = PAGE.parent / "images" / "spark-scaling.svg"
_WARM_CHUNKS = 1000

type Measured = dict[str, float]


def run(chunks: int = SIZES[-1]) -> Iterator[Result]:
    """The bars, at one size."""
    yield from results(measure_apart(chunks))


def results(found: Measured) -> Iterator[Result]:
    """What was measured, beside its bars."""
    size = f"{found['chunks']:,.0f} chunks"
    ours, official = found["write_s"] + found["commit_s"], found["official_write_s"]
    yield Result(f"{size} on Spark, written and committed", ours, official, spark_write.BAR)
    yield Result("  commit", found["commit_s"], spark_write.MAX_COMMIT_SECONDS, 1.0)
    yield Result("  growth of the driver", found["growth_mb"], spark_write.MAX_GROWTH_MB, 1.0, "M")
    for name, told in (("read_s", "all columns"), ("read_values_s", "values")):
        for store in spark_read.STORES:
            yield Result(
                f"  read back, {told}; zarr on the {store} store",
                found[name],
                found[f"zarr_{store}_s"],
                spark_read.BAR,
            )


def measure_apart(chunks: int) -> Measured:
    """`measure` in a new process."""
    command = [sys.executable, "-m", "benchmarks.spark_scaling", "--measure", str(chunks)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: Measured = json.loads(answer.stdout.splitlines()[-1])
    return measured


def measure(chunks: int) -> Measured:
    """Both libraries, one after the other, on one disk."""
    with tempfile.TemporaryDirectory(prefix="spark-scaling-") as folder:
        before = os.getloadavg()[0]
        spark = spark_write.start_spark()
        found = spark_write.ours(spark, f"{folder}/ours", chunks, REGIONS)
        spark_write.check(f"{folder}/ours", REGIONS)
        wanted = spark_read.expected(chunks // REGIONS * spark_write.ELEMENTS, REGIONS)
        spark_write.ours(spark, f"{folder}/small", _WARM_CHUNKS, REGIONS)
        for name, options in (("read", {}), ("read_values", spark_read.VALUES)):
            for _ in range(2):
                spark_read.through_spark(spark, f"{folder}/small", **options)
            found |= _told(
                name, spark_read.through_spark(spark, f"{folder}/ours", **options), wanted
            )
        spark.stop()
        for store in spark_read.STORES:
            reading = spark_read.in_pool(store, f"{folder}/ours", REGIONS)
            found |= _told(f"zarr_{store}", reading, wanted)
        theirs = spark_write.official(f"{folder}/official", chunks, REGIONS)
    after = os.getloadavg()[0]
    return found | {
        "chunks": chunks,
        "official_write_s": theirs["write_s"] + theirs["commit_s"],
        "official_write_cpu": theirs["write_cpu"],
        "official_growth_mb": theirs["growth_mb"],
        "official_objects": theirs["objects"],
        "load_before": before,
        "load_after": after,
    }


def _told(name: str, reading: Reading, wanted: Sequence[int]) -> Measured:
    seconds, cpu, answer = reading
    if answer != list(wanted[: len(answer)]) or not answer:
        raise AssertionError(f"{name}: {answer} was read, not {wanted}")
    return {f"{name}_s": seconds, f"{name}_cpu": cpu}


def markdown(rows: Sequence[Measured]) -> str:
    """The table of the page."""
    columns = [f"{row['chunks']:,.0f}" for row in rows]
    lines = ["| chunks | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(rows)]

    def line(name: str, *cells: str) -> None:
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    def numbers(name: str, key: str, form: str = "{:.1f}") -> None:
        line(name, *(form.format(row[key]) for row in rows))

    def ratios(name: str, above: Sequence[str], below: str) -> None:
        line(name, *(f"{sum(row[key] for key in above) / row[below]:.2f}" for row in rows))

    numbers("write on Spark, s", "write_s")
    numbers("commit, s", "commit_s", "{:.2f}")
    numbers("growth of the driver, MB", "growth_mb", "{:.0f}")
    numbers("objects", "objects", "{:,.0f}")
    numbers("official forks, merge and commit, s", "official_write_s")
    numbers("growth of its parent process, MB", "official_growth_mb", "{:.0f}")
    numbers("its objects", "official_objects", "{:,.0f}")
    ratios("**write, ratio (bar 0.5)**", ("write_s", "commit_s"), "official_write_s")
    ratios("the same in CPU seconds", ("write_cpu",), "official_write_cpu")
    numbers("data source, all columns, s", "read_s")
    numbers("data source, values only, s", "read_values_s")
    numbers("zarr in a pool, official store, s", "zarr_official_s")
    numbers("zarr in a pool, icefloe's store, s", "zarr_icefloe_s")
    ratios("**read, all columns, ratio (bar 1.5)**", ("read_s",), "zarr_official_s")
    ratios("the same in CPU seconds", ("read_cpu",), "zarr_official_cpu")
    ratios("read, all columns, to icefloe's store", ("read_s",), "zarr_icefloe_s")
    ratios("read, values only, ratio", ("read_values_s",), "zarr_official_s")
    line("load before and after", *(f"{r['load_before']:.1f}, {r['load_after']:.1f}" for r in rows))
    return "\n".join(lines)


def plot(rows: Sequence[Measured], path: Path) -> None:
    """Seconds and megabytes over chunks, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    # The same bytes for the same numbers.
    mpl.rcParams |= {"svg.hashsalt": "spark-scaling", "font.size": 10}
    from matplotlib import pyplot

    chunks = [row["chunks"] for row in rows]
    panels = {
        "write, s": (
            ("official forks and merge", "official_write_s", "#c0504d"),
            ("icefloe on Spark", "write_s", "#1f77b4"),
            ("its commit", "commit_s", "#7fb3d5"),
        ),
        "read, s": (
            ("zarr in a pool, official store", "zarr_official_s", "#c0504d"),
            ("zarr in a pool, icefloe's store", "zarr_icefloe_s", "#d9a05b"),
            ("data source, all columns", "read_s", "#1f77b4"),
            ("data source, values only", "read_values_s", "#7fb3d5"),
        ),
        "growth of the driver, MB": (
            ("official parent process", "official_growth_mb", "#c0504d"),
            ("icefloe on Spark", "growth_mb", "#1f77b4"),
        ),
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 4.2), layout="constrained")
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for label, key, color in lines:
            axis.loglog(chunks, [row[key] for row in rows], "o-", label=label, color=color)
        axis.set(title=title, xlabel="chunks")
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def write_docs(rows: Sequence[Measured]) -> None:
    plot(rows, PLOT)
    marked = re.compile("(<!-- measured -->\n).*(\n<!-- end -->)", re.DOTALL)
    text, count = marked.subn(lambda found: found[1] + markdown(rows) + found[2], PAGE.read_text())
    if count != 1:
        raise AssertionError(f"{PAGE} has no place for the table")
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--docs", action="store_true", help=f"renew {PAGE.name} and its plot")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return 0
    rows = []
    for chunks in given.chunks:
        rows.append(measure_apart(chunks))
        print(json.dumps(rows[-1]), flush=True)
    if given.docs:
        write_docs(rows)
    found = [*results(rows[-1])]
    print(table(found))
    return 0 if all(item.holds for item in found) else 1


if __name__ == "__main__":
    sys.exit(main())
