"""The demonstration, step by step: each prints what it computed, and keeps it for the summary."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import icefloe
from demo import archive, fields
from demo.console import in_megabytes
from demo.following import follow, most_together
from demo.processes import find_driver
from demo.runner import AirflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from demo.console import Console
    from demo.layout import Layout
    from demo.runner import Airflow, Attempt, Run
    from icefloe import SnapshotInfo

FIRST_DAYS: Mapping[str, fields.Source] = {
    fields.day_name(0): "sound",
    fields.day_name(1): "drifting",
    fields.day_name(2): "sound",
}
KILLED = DRIFTED = fields.day_name(1)
NEW_DAY = fields.day_name(3)
LAST_DAYS: Mapping[str, fields.Source] = {DRIFTED: "sound", NEW_DAY: "sound"}


class StoryError(Exception):
    """What a step announces did not come true."""


class Story:
    """Tells it once, in a repository that it creates."""

    def __init__(self, layout: Layout, airflow: Airflow, console: Console) -> None:
        self.layout = layout
        self.airflow = airflow
        self.console = console
        self.summary: dict[str, Any] = {"repository": str(layout.repo), "runs": []}
        self.repo = icefloe.Repository.create(layout.repo)
        self.root = self.repo.lookup_branch("main")

    def tell(self) -> None:
        self.set_up()
        reaction = self.write_in_parallel()
        self.react(reaction)
        self.look_for_traces()
        waiting = self.refuse_a_bad_day()
        self.correct(waiting)
        self.read_yesterday()
        self.free_space()

    def set_up(self) -> None:
        self.console.step(
            "Start with nothing",
            "A repository on this disk, Airflow on SQLite, Spark on this machine; no server.",
        )
        while not self.airflow.is_ready():
            self.console.working("Airflow starts: database, Dags")
        self.console.fact(f"Repository  {self.layout.repo}")
        self.console.fact(f"Log         {self.layout.log}")

    def write_in_parallel(self) -> Run:
        """The first days; one of the writers dies. Gives the run that waits for them."""
        self.console.step(
            f"{len(FIRST_DAYS)} Spark jobs write {len(FIRST_DAYS)} days in parallel",
            "Each stages a snapshot that no branch has. One commit publishes all of them, and a",
            "tag names it. Another Dag waits for new days, and we kill a writer halfway.",
        )
        reaction = self.airflow.start("demo_climatology", {"after": self.root})
        days = _to_write(FIRST_DAYS)
        self.layout.hold.touch()
        next(each for each in days if each["day"] == KILLED)["hold"] = str(self.layout.hold)
        run = self.airflow.start(
            "demo_ingest",
            {"days": days, "tag": "v1", "message": f"{len(days)} days of weather"},
            parallel=True,
        )
        attempts = self._follow(run, "success", self._kill_the_writer)
        writers = [each for each in attempts if each.task.endswith("write_day")]
        together = most_together(writers)
        _expect(together > 1, "no two writers ran at the same time")
        _expect("killed" in self.summary, f"the writer of {KILLED} was not killed")
        tag = self.repo.lookup_tag("v1")
        self.summary["parallel"] = {"writers_at_once": together}
        self.summary["v1"] = tag
        self.console.fact(f"{together} writers ran at the same time; tag v1 names {tag}")
        return reaction

    def react(self, reaction: Run) -> None:
        self.console.step(
            "A sensor reacts",
            "It was deferred until the days were on main; now its Dag derives a climatology.",
        )
        self._follow(reaction, "success")
        tip = self.repo.lookup_snapshot(self.repo.lookup_branch("main"))
        seconds = archive.reaction_seconds(self.repo)
        self.summary["climatology"] = [{"snapshot": tip.id, **_derived(tip)}]
        self.summary["reaction_seconds"] = seconds
        self.console.fact(
            f"{tip.id} holds the mean of {tip.metadata['days']} days, committed {seconds:.1f} s "
            "after they were published"
        )

    def look_for_traces(self) -> None:
        self.console.step(
            "The killed writer left no trace",
            "Airflow tried again; the repository takes each write once, whoever comes first.",
        )
        run_id = self.summary["runs"][0]["run_id"]
        staged = archive.of_run(archive.staged_snapshots(self.repo), run_id, "write_day")
        tries = [each for each in self.summary["runs"][0]["attempts"] if each["item"] == KILLED]
        garbage = archive.garbage(self.repo)
        main = self.repo.readonly_session("main")
        found = {
            "attempts": len(tries),
            "staged_snapshots": len(staged),
            "snapshots_per_write_key": archive.most_per_write_key(staged),
            "orphaned_chunk_objects": garbage.chunks_deleted,
            "wrong_values": archive.wrong_values(main, FIRST_DAYS),
        }
        self.summary["killed"] |= found
        _expect(found["attempts"] > 1, f"Airflow did not try {KILLED} again")
        _expect(found["snapshots_per_write_key"] == 1, "a write was registered twice")
        _expect(not found["wrong_values"], "main has values that nobody wrote")
        self.console.fact(
            f"{found['attempts']} attempts at {KILLED}, {found['staged_snapshots']} staged "
            f"snapshots, {found['snapshots_per_write_key']} for each write key"
        )
        self.console.fact(
            f"Chunk objects that it uploaded in vain: {found['orphaned_chunk_objects']}. Nothing "
            "refers to them; they are garbage for later"
        )
        self.console.fact(
            f"Values on main that are not what they should be: {found['wrong_values']}"
        )

    def refuse_a_bad_day(self) -> Run:
        """Gives the run that waits for days in vain."""
        self.console.step(
            "A bad day is caught, and never published",
            f"A sensor of {NEW_DAY} reports degrees Celsius. The audit reads the merged snapshot",
            "before any branch has it.",
        )
        before = self.repo.lookup_branch("main")
        waiting = self.airflow.start("demo_climatology", {"after": before})
        run = self.airflow.start(
            "demo_ingest",
            {"days": _to_write({NEW_DAY: "broken"}), "tag": "bad", "message": f"{NEW_DAY}"},
            parallel=True,
        )
        self._follow(run, "failed")
        (merged,) = archive.of_run(archive.staged_snapshots(self.repo), run.run_id, "merge")
        published = {each.id for each in self.repo.ancestry(branch="main")}
        staged = self.repo.readonly_session(snapshot_id=merged.id)
        kelvin = archive.read(staged, "t2m", fields.hours_of(NEW_DAY))
        found = {
            "snapshot": merged.id,
            "below_180_kelvin": int((kelvin < 180).sum()),
            "coldest": float(kelvin.min()),
            "is_published": merged.id in published,
            "main_moved": self.repo.lookup_branch("main") != before,
            "tags": sorted(self.repo.list_tags()),
            "sensor_still_waits": not waiting.is_over,
        }
        self.summary["bad_day"] = found
        _expect(not found["is_published"] and not found["main_moved"], "the bad day is on main")
        self.console.fact(
            f"{found['below_180_kelvin']} values below 180 K, the coldest {found['coldest']:.1f} K,"
            f" in {merged.id}"
        )
        self.console.fact(
            f"On main: {_yes(found['is_published'])}. Main moved: {_yes(found['main_moved'])}. "
            f"The sensor still waits: {_yes(found['sensor_still_waits'])}."
        )
        return waiting

    def correct(self, waiting: Run) -> None:
        self.console.step(
            "The repaired day, and a correction of an old one",
            f"{DRIFTED} was measured too warm in one region. Both days come with one commit.",
        )
        run = self.airflow.start(
            "demo_ingest",
            {
                "days": _to_write(LAST_DAYS),
                "tag": "v2",
                "message": f"{NEW_DAY}, and {DRIFTED} recalibrated",
            },
            parallel=True,
        )
        self._follow(run, "success")
        self._follow(waiting, "success")
        tip = self.repo.lookup_snapshot(self.repo.lookup_branch("main"))
        self.summary["v2"] = self.repo.lookup_tag("v2")
        self.summary["climatology"].append({"snapshot": tip.id, **_derived(tip)})
        main = self.repo.readonly_session("main")
        wrong = archive.wrong_values(main, {**FIRST_DAYS, **LAST_DAYS})
        self.summary["wrong_values"] = wrong
        _expect(not wrong, "main has values that nobody wrote")
        self.console.fact(f"Tag v2 names {self.summary['v2']}; the climatology followed")
        self.console.fact(
            f"Values of {tip.metadata['days']} days that are not what they should be: {wrong}"
        )

    def read_yesterday(self) -> None:
        self.console.step("Yesterday's version is still there", "The tag v1, beside main.")
        hours = fields.hours_of(DRIFTED)
        old = archive.read(self.repo.readonly_session(tag="v1"), "t2m", hours)
        new = archive.read(self.repo.readonly_session("main"), "t2m", hours)
        change = new.astype("f8") - old
        found = {
            "day": DRIFTED,
            "mean_v1": float(old.mean(dtype="f8")),
            "mean_main": float(new.mean(dtype="f8")),
            "changed_values": int((change != 0).sum()),
            "largest_change": float(change.min()),
            "hours_v1": archive.hours(self.repo.readonly_session(tag="v1")),
            "hours_main": archive.hours(self.repo.readonly_session("main")),
        }
        self.summary["versions"] = found
        self.console.fact(
            f"Mean of {DRIFTED}: {found['mean_v1']:.4f} K in v1, {found['mean_main']:.4f} K on main"
        )
        self.console.fact(
            f"{found['changed_values']} of {change.size} values changed, by up to "
            f"{found['largest_change']:.2f} K"
        )
        self.console.fact(f"v1 has {found['hours_v1']} hours, main {found['hours_main']}")

    def free_space(self) -> None:
        self.console.step(
            "Expire and collect",
            "Tags and the tip stay, the rest goes. Nothing writes now, so no grace is needed;",
            "where something may, give it days. Then every chunk that is left is read.",
        )
        self.history = [*self.repo.ancestry(branch="main")]
        on_main = {each.id for each in self.history}
        staged = archive.staged_snapshots(self.repo)
        self.staged = [each for each in staged if each.id not in on_main]
        before = archive.files(self.layout.repo)
        run = self.airflow.start("demo_maintenance", {"older_than": 0, "grace": 0})
        self._follow(run, "success")
        after = archive.files(self.layout.repo)
        self.gone = {
            each.id
            for each in [*self.history, *self.staged]
            if not archive.is_there(self.repo, each)
        }
        self.moments = self._moments(before, {file.name for file in after})
        sizes = {"before": sum(it.size for it in before), "after": sum(it.size for it in after)}
        self.summary["storage"] = {
            **sizes,
            "freed": sizes["before"] - sizes["after"],
            "objects_before": len(before),
            "objects_after": len(after),
            "moments": [asdict(each) for each in self.moments],
        }
        self.summary["gone"] = sorted(self.gone)
        _expect(sizes["after"] < sizes["before"], "no space was freed")
        self.console.fact(
            f"{in_megabytes(sizes['before'])} in {len(before)} objects before, "
            f"{in_megabytes(sizes['after'])} in {len(after)} after: "
            f"{1 - sizes['after'] / sizes['before']:.0%} freed"
        )
        bad = self.summary["bad_day"]["snapshot"]
        self.console.fact(
            f"{len(self.gone)} snapshots are gone; the bad day is one of them: "
            f"{_yes(bad in self.gone)}"
        )

    def _moments(self, before: list[archive.File], kept: set[str]) -> list[archive.Moment]:
        labels = {
            self.summary["v1"]: "v1",
            self.summary["climatology"][0]["snapshot"]: "climatology",
            self.summary["bad_day"]["snapshot"]: "bad day\n(not published)",
            self.summary["v2"]: "v2",
            self.summary["climatology"][1]["snapshot"]: "climatology",
        }
        found = [archive.moment(text, each, before, kept) for each, text in labels.items()]
        left = sum(path.size for path in archive.files(self.layout.repo))
        return [*found, archive.Moment("after expire\nand GC", left, left)]

    def _kill_the_writer(self) -> None:
        """Once the writer of a day waits halfway, SIGKILL to all its processes."""
        hold = self.layout.hold
        if not hold.exists() or hold.read_text() != "halfway":
            return
        driver = find_driver(self.layout.folder, f'"day": "{KILLED}"')
        if driver is None:
            return
        driver.kill()
        hold.unlink()
        self.summary["killed"] = {"day": KILLED, "pids": [*driver.pids]}
        pids = ", ".join(map(str, driver.pids))
        self.console.fact(f"SIGKILL  to the driver of {KILLED}, half of it written (pids {pids})")

    def _follow(
        self, run: Run, expected: str, also: Callable[[], None] = lambda: None
    ) -> list[Attempt]:
        """Show a run until it is over, and keep what it was; all its attempts."""
        attempts = follow(self.airflow, self.console, run, also)
        if run.state != expected:
            raise AirflowError(f"the run of {run.dag_id} ended as {run.state}, not as {expected}")
        self.summary["runs"].append(
            {
                "dag_id": run.dag_id,
                "run_id": run.run_id,
                "state": run.state,
                "attempts": [asdict(each) for each in attempts],
            }
        )
        return attempts


def _to_write(days: Mapping[str, fields.Source]) -> list[dict[str, str]]:
    return [{"day": day, "source": source} for day, source in days.items()]


def _derived(snapshot: SnapshotInfo) -> dict[str, Any]:
    return {name: snapshot.metadata[name] for name in ("derived_from", "days")}


def _expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise StoryError(otherwise)


def _yes(truth: Any) -> str:
    return "yes" if truth else "no"
