"""Killed at every step, maintenance leaves a sound repository, and the next run finishes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from icefloe.assets import Assets
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.verify import verify
from icefloe.storage import open_storage
from maintenance.histories import FUTURE, assets, contents, files, official, seen
from maintenance.watching import Killed, Watched, kill_at

OPERATIONS = {
    "expire": lambda files, messy: expire_snapshots(
        files, messy.middle, delete_expired_branches=True, delete_expired_tags=True
    ),
    "collect": lambda files, messy: garbage_collect(files, messy.end, force=True),
}


def left(path):
    """What must not depend on how often a run was interrupted."""
    found = seen(path)
    return files(path), {name: found[name] for name in ("snapshots", "branches", "tags")}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_run_killed_at_any_step_can_be_run_again(name, messy, copies):
    operation = OPERATIONS[name]
    path = copies()
    whole = Watched(open_storage(path))
    operation(Assets(whole), messy)
    expected = left(path)
    for number in range(len(whole.calls)):
        path = copies()
        with pytest.raises(Killed):
            operation(Assets(Watched(open_storage(path), kill_at(number))), messy)
        assert [*verify(assets(path), "objects")] == [], f"killed before call {number}"
        assert contents(path)
        operation(assets(path), messy)
        assert left(path) == expected, f"killed before call {number}"
        assert [*verify(assets(path), "objects")] == []
    official(path).garbage_collect(FUTURE)
    assert [*verify(assets(path), "objects")] == []


SCRIPT = """
import os, signal, sys
from datetime import UTC, datetime
from icefloe.assets import Assets
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.storage import open_storage
from maintenance.watching import Watched, once

name, path, cutoff, number = sys.argv[1:]
die = once(int(number), lambda: os.kill(os.getpid(), signal.SIGKILL))
assets = Assets(Watched(open_storage(path), die))
cutoff = datetime.fromisoformat(cutoff)
if name == "expire":
    expire_snapshots(assets, cutoff)
else:
    garbage_collect(assets, cutoff, force=True)
"""


@pytest.mark.parametrize(
    ("name", "number"), [("expire", 2), ("collect", 12), ("collect", 16), ("collect", 18)]
)
def test_a_process_killed_by_the_kernel_leaves_a_sound_repository(name, number, messy, copies):
    path = copies()
    search = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, path, messy.end.isoformat(), str(number)],
        env={**os.environ, "PYTHONPATH": search},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [*verify(assets(path), "objects")] == []
    assert contents(path)
    garbage_collect(assets(path), messy.end, force=True)
    assert [*verify(assets(path), "objects")] == []
