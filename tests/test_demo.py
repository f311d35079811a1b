"""The demonstration does what it says, as the official library sees it."""

import icechunk
import numpy as np
import zarr

from demo.story import HOURS, run, temperature


def test_the_demo_leaves_a_repository_that_the_official_library_agrees_with(tmp_path):
    lines: list[str] = []

    outcome = run(tmp_path / "archive", lines.append)

    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "archive")))
    assert repo.lookup_branch("main") == outcome.last_snapshot
    tagged = zarr.open_array(repo.readonly_session(tag="three-days").store, path="t2m", mode="r")
    latest = zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")
    for day in range(3):
        hours = slice(day * HOURS, (day + 1) * HOURS)
        np.testing.assert_array_equal(tagged[hours], temperature(day))
        offset = np.float32(0.5 if day == 1 else 0)
        np.testing.assert_array_equal(latest[hours], temperature(day) - offset)
    assert abs(outcome.tagged_mean - outcome.corrected_mean - 0.5) < 1e-3
    messages = [snapshot.message for snapshot in repo.ancestry(branch="main")]
    assert messages[0] == "Correct a sensor offset on day 1"
    assert all(any(message in line for line in lines) for message in messages)
