"""The first command on a fresh clone finds its Python and Java, or says what to install."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cat", "head", "make", "mkdir", "rm", "sed", "sh", "touch")

# Answers as `python3 -c`, `--version` and `-m venv` do, without being one.
PYTHON = """#!/bin/sh
case "$1" in
    -c) exit {suitable} ;;
    --version) echo "Python of {name}" ;;
    -m) mkdir -p .venv/bin && : > .venv/bin/python && exit {venv} ;;
esac
"""
JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2026-01-01' >&2
"""


class Machine:
    """A clone of the Makefile, and a PATH with a few tools and what a test adds."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        self.bin = folder / "bin"
        self.clone.mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "Makefile", self.clone)
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))

    def add(self, name: str, script: str) -> None:
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def add_python(self, name: str, *, suitable: bool = True, venv: bool = True) -> None:
        self.add(name, PYTHON.format(name=name, suitable=int(not suitable), venv=int(not venv)))

    def make(self, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "make", "--no-print-directory", target],
            cwd=self.clone,
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("suitable", "chosen"),
    [
        ({"python3": True, "python3.13": True, "python3.12": True}, "python3"),
        ({"python3": False, "python3.13": True, "python3.12": True}, "python3.13"),
        ({"python3": False, "python3.12": True}, "python3.12"),
        ({"python3.13": True}, "python3.13"),
    ],
)
def test_the_first_suitable_python_makes_the_environment(machine, suitable, chosen):
    for name, is_suitable in suitable.items():
        machine.add_python(name, suitable=is_suitable)
    done = machine.make(".venv/bin/python")
    assert done.returncode == 0, done.stderr
    assert f"with Python of {chosen}\n" in done.stdout
    assert (machine.clone / ".venv/bin/python").exists()


@pytest.mark.parametrize("present", [True, False])
def test_without_a_python_it_says_what_to_install(machine, present):
    if present:
        machine.add_python("python3", suitable=False)
    done = machine.make(".venv/bin/python")
    assert done.returncode != 0
    assert "Python 3.12 or newer is needed" in done.stderr
    assert "apt install python3.12 python3.12-venv" in done.stderr
    assert not (machine.clone / ".venv").exists()


def test_an_environment_that_broke_on_the_way_is_not_taken_for_one(machine):
    machine.add_python("python3", venv=False)
    assert machine.make(".venv/bin/python").returncode != 0
    assert not (machine.clone / ".venv").exists()


def test_what_suits_is_a_python_of_3_12_that_can_make_environments():
    (check,) = re.findall(r"\$\$python -c '([^']+)'", (ROOT / "Makefile").read_text())
    assert "(3, 12)" in check
    # An interpreter that Debian packs without ensurepip has the right version and fails halfway.
    assert "ensurepip" in check
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(("version", "suits"), [("17.0.9", True), ("21", True), ("11.0.2", False)])
@pytest.mark.parametrize("home", [True, False])
def test_java_17_or_newer_is_asked_for(machine, version, suits, home):
    machine.add("home/bin/java" if home else "java", JAVA.format(version=version))
    environment = {"JAVA_HOME": str(machine.bin / "home")} if home else {}
    done = machine.make("java", **environment)
    assert (done.returncode == 0) == suits
    assert ("found 11" in done.stderr) == (not suits)


def test_without_java_it_says_what_to_install(machine):
    done = machine.make("test")
    assert done.returncode != 0
    assert "Java 17 or newer is needed" in done.stderr
    assert "apt install openjdk-17-jre-headless" in done.stderr


@pytest.mark.parametrize("works", [True, False])
def test_installing_says_one_line_and_shows_its_log_on_failure(machine, works):
    (machine.clone / "core").mkdir()
    for name in ("pyproject.toml", "core/pyproject.toml", "constraints.txt"):
        (machine.clone / name).touch()
    script = f"#!/bin/sh\necho Collecting all sorts; exit {int(not works)}\n"
    machine.add("../clone/.venv/bin/python", script)
    done = machine.make(".venv/.installed", UV="")
    assert (done.returncode == 0) == works
    assert done.stdout.startswith("Installing what constraints.txt pins")
    assert done.stdout.count("\n") == 1
    assert ("Collecting all sorts" in done.stderr) == (not works)
    assert (machine.clone / ".venv/install.log").read_text() == "Collecting all sorts\n"
    assert (machine.clone / ".venv/.installed").exists() == works


def test_ci_runs_the_test_command_of_the_readme_and_nothing_else():
    commands = re.findall(r"^make \w+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1] == "exec make test"
    assert [line.split()[0] for line in script[1:-1]] == ["set", "cd"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
