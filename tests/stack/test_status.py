"""`status` and `down` where nothing runs, or where what is remembered is of no use."""

import json
import subprocess

import pytest

from running_stack import ROOT, left_over
from stack import processes, state
from stack.__main__ import main
from stack.commands import NOTHING_RUNS
from stack.processes import MARK, ProcessRef
from stack.state import Started, State


@pytest.fixture
def stack(tmp_path, capsys):
    """Run a command on a folder; its exit code, and the lines that it printed."""
    folder = tmp_path / "stack"

    def run(command):
        code = main([command, "--folder", str(folder)])
        told = capsys.readouterr()
        return code, (told.out + told.err).splitlines()

    run.folder = folder
    return run


def remember(folder, ref):
    folder.mkdir()
    ended = State(
        dags="dags",
        database="sqlite",
        airflow_only=True,
        ports={"api": 1},
        processes={"scheduler": Started(ref, rank=2, stop_signal=15)},
    )
    state.write(folder / "state.json", ended)


def test_a_stack_that_was_never_started_says_so_in_one_line(stack):
    assert stack("status") == (NOTHING_RUNS, ["nothing is running: make up"])
    assert not stack.folder.exists(), "looking changes nothing"


def test_a_stack_whose_processes_have_ended_says_so_in_one_line(stack):
    remember(stack.folder, ProcessRef(2**22 + 1, "1"))
    code, (line,) = stack("status")
    assert code == NOTHING_RUNS
    assert line == (f"nothing is running; all 1 processes of {stack.folder} have ended: make up")
    assert [each.name for each in stack.folder.iterdir()] == ["state.json"]
    assert stack("down") == (0, ["nothing is running"])
    assert stack("status") == (NOTHING_RUNS, ["nothing is running: make up"])


@pytest.mark.parametrize(
    "content", ["", '{"dags', "[]", "null", json.dumps({"processes": {}, "unknown": 1})]
)
def test_a_state_that_nobody_can_read_is_told_without_a_traceback(stack, content):
    stack.folder.mkdir()
    (stack.folder / "state.json").write_text(content)
    code, (line,) = stack("status")
    assert code == 1
    assert "is damaged, or of another version" in line
    assert "make down" in line
    assert stack("down") == (0, ["nothing is running"])
    assert stack("status")[0] == NOTHING_RUNS


def test_down_stops_what_an_unreadable_state_does_not_tell_of(stack, tmp_path):
    stack.folder.mkdir()
    (stack.folder / "state.json").write_text("{")
    processes.start(
        ["sleep", "600"],
        environment={MARK: str(stack.folder), "PATH": "/bin:/usr/bin"},
        folder=tmp_path,
        log=tmp_path / "log",
    )
    assert left_over(stack.folder)
    assert stack("down")[0] == 0
    assert left_over(stack.folder) == []


def test_make_status_is_no_failure_where_nothing_runs():
    (recipe,) = [
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.endswith("-m stack status || test $$? -eq 3")
    ]
    command = recipe.strip().removeprefix("@").replace("$$", "$").replace("$(PYTHON) -m stack", "f")
    for code, expected in ((0, 0), (NOTHING_RUNS, 0), (1, 1)):
        script = f"f() {{ return {code}; }}; {command}"
        assert subprocess.run(["sh", "-c", script], check=False).returncode == expected
