"""Components start, are watched, and end with all that they started."""

import os
import signal
import sys
import time

import psutil
import pytest

from stack import processes, state
from stack.processes import ProcessRef
from stack.state import Started, State
from stack.supervisor import StartError, Supervisor

SERVE = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
DIE = "import sys; print('no such database'); sys.exit(3)"
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
# Its child is in a session of its own, has lost its parent, and ignores what it is asked.
ORPHAN = """
import pathlib, subprocess, sys, time
child = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
child += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
between = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]],"
between += "start_new_session=True)"
subprocess.run([sys.executable, "-c", between, child, sys.argv[1]])
time.sleep(600)
"""


@pytest.fixture
def remembered():
    return State()


@pytest.fixture
def supervisor(folder, remembered):
    made = Supervisor(folder, remembered, lambda: state.write(folder / "state.json", remembered))
    yield made
    made.stop(grace=0.2)


def marked(folder):
    """The processes of a stack, found in another way than the stack finds them."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("ICEFLOE_STACK")
            if mark == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_component_is_healthy_and_then_stopped(supervisor, component, folder, remembered):
    supervisor.start([component("server", SERVE)])
    reported = []
    supervisor.wait(
        [component("server", SERVE)],
        seconds=10,
        report=lambda each, seconds: reported.append(each.name),
    )
    assert reported == ["server"]
    assert supervisor.is_running("server")
    assert marked(folder) == [remembered.processes["server"].ref.pid]
    # Whoever reads the state can stop it.
    again = state.read(folder / "state.json")
    assert again == remembered
    Supervisor(folder, again, lambda: None).stop(grace=5)
    assert marked(folder) == []


def test_a_component_that_runs_is_not_started_again(supervisor, component, remembered):
    supervisor.start([component("server", SERVE)])
    before = dict(remembered.processes)
    supervisor.start([component("server", SERVE)])
    assert remembered.processes == before


def test_a_component_that_died_is_started_again(supervisor, component, remembered):
    supervisor.start([component("server", SERVE)])
    before = remembered.processes["server"]
    os.kill(before.ref.pid, signal.SIGKILL)
    while supervisor.is_running("server"):
        time.sleep(0.01)
    supervisor.start([component("server", SERVE)])
    assert remembered.processes["server"] != before


def test_a_component_that_dies_at_start_is_reported_with_its_log(supervisor, component):
    broken = component("broken", DIE)
    supervisor.start([broken])
    with pytest.raises(StartError, match=r"(?s)broken has ended.*no such database"):
        supervisor.wait([broken], seconds=10)


def test_a_component_that_never_gets_healthy_is_reported(supervisor, component):
    mute = component("mute", "import time; print('thinking', flush=True); time.sleep(600)")
    supervisor.start([mute])
    with pytest.raises(StartError, match=r"(?s)mute is not healthy after 1 s.*thinking"):
        supervisor.wait([mute], seconds=1)


def test_a_component_that_ignores_the_signal_is_killed(supervisor, component, folder):
    stubborn = component("stubborn", STUBBORN)
    supervisor.start([stubborn])
    supervisor.wait([stubborn], seconds=10)
    supervisor.stop(grace=0.2)
    assert marked(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the mark of a process")
def test_a_process_that_left_its_group_and_lost_its_parent_is_found(supervisor, component, folder):
    parent = component("parent", ORPHAN)
    supervisor.start([parent])
    supervisor.wait([parent], seconds=10)
    assert len(marked(folder)) == 2
    supervisor.stop(grace=0.2)
    assert marked(folder) == []


def test_those_of_a_higher_rank_stop_first(supervisor, component, folder):
    told = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.2)
    with open("order", "a") as file:
        print(pathlib.Path(sys.argv[1]).stem, file=file)
    sys.exit()
signal.signal(signal.{signal}, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
    server = component("server", told.format(signal="SIGINT"), stop_signal=signal.SIGINT, rank=0)
    client = component("client", told.format(signal="SIGTERM"), rank=2)
    supervisor.start([server, client])
    supervisor.wait([server, client], seconds=10)
    supervisor.stop(grace=10)
    assert (folder / "run" / "order").read_text().split() == ["client", "server"]


def test_to_stop_twice_is_harmless(supervisor, component):
    supervisor.start([component("server", SERVE)])
    supervisor.stop(grace=5)
    supervisor.stop(grace=5)


def test_a_stranger_with_the_number_of_an_old_process_is_left_alone(folder, component, remembered):
    stranger = component("stranger", SERVE)
    ref = processes.start(
        stranger.command,
        environment={},
        folder=folder,
        log=folder / "logs" / "stranger.log",
    )
    remembered.processes["server"] = Started(ProcessRef(ref.pid, "long ago"), 0, signal.SIGTERM)
    Supervisor(folder, remembered, lambda: None).stop(grace=0.2)
    assert processes.running({ref}) == {ref}
    os.kill(ref.pid, signal.SIGKILL)
    os.waitpid(ref.pid, 0)


def test_secrets_of_a_component_are_not_shown(component):
    assert "ICEFLOE_STACK" not in repr(component("server", SERVE))
