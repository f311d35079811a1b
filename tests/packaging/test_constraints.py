"""constraints.txt pins names to versions, and nothing else."""

import re
import tomllib
from pathlib import Path

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
