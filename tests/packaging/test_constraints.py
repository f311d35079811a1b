"""constraints.txt pins names to versions, and nothing else; no file says where they come from."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = dict(line.partition("==")[::2] for line in LINES if not line.startswith("#"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Every name the two projects ask for, extras included, but not each other."""
    names = set()
    for path in (ROOT / "pyproject.toml", ROOT / "core" / "pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        groups = [project["dependencies"], *project["optional-dependencies"].values()]
        names |= {canonical(re.split(r"[^\w.-]", line)[0]) for group in groups for line in group}
    return names - {"icefloe"}


def test_every_line_is_a_name_and_a_version():
    for line in LINES:
        assert line.startswith("# ") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)


def test_every_declared_dependency_is_pinned():
    assert declared() <= {canonical(name) for name in PINS}


def test_pyspark_and_its_client_share_one_version():
    assert PINS["pyspark"] == PINS["pyspark-client"]


def required() -> set[str]:
    """Every name that installing both projects brings here, dependencies of dependencies too."""
    todo = [("icefloe", frozenset({"all"})), ("airflow-icechunk", frozenset({"dev"}))]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for line in distribution(name).requires or ():
            wanted = Requirement(line)
            marker = wanted.marker
            if marker and not any(marker.evaluate({"extra": each}) for each in extras or {""}):
                continue
            each = (canonical(wanted.name), frozenset(wanted.extras))
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return {name for name, _ in seen} - {"icefloe", "airflow-icechunk"}


@pytest.mark.skipif(sys.version_info[:2] != (3, 12), reason="the pins are those of Python 3.12")
def test_every_dependency_of_a_dependency_is_pinned_to_what_is_installed():
    pinned = {canonical(name): version for name, version in PINS.items()}
    wanted = required()
    assert len(wanted) > 100
    assert {name: distribution(name).version for name in wanted} == {
        name: pinned.get(name) for name in wanted
    }


def test_no_file_records_the_address_of_an_index():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    # Put together here, or this file would be found.
    address = re.compile(
        "|".join(
            ("index" + "[-_]url", "find" + "[-_]links", "python" + "hosted", "pypi" + r"\.org")
        )
    )
    found = [
        name
        for name in names
        if (ROOT / name).is_file()
        and address.search((ROOT / name).read_text(errors="replace").lower())
    ]
    assert not found
