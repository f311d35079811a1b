"""The documentation is true: its code runs, its commands are understood, its links lead somewhere.

Blocks of `python` run here, page by page, from top to bottom. Blocks of `py` need Spark or Airflow:
the tests named in `RUN_ELSEWHERE` run them. Of blocks of `bash`, what is ours is run or looked up.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "core/README.md", "dags/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "py", "bash", "text", "dockerfile"}
RUN_ELSEWHERE = {
    "airflow.md": "tests/airflow/test_provider.py",
    "quickstart.md": "tests/test_docs.py",
    "platforms.md": "tests/airflow/test_platform_docs.py",
    "spark.md": "tests/spark/test_spark_docs.py",
    "spark-arrays.md": "tests/spark/test_array_docs.py",
    "spark-maintenance.md": "tests/spark/test_maintain_docs.py",
    "spark-operations.md": "tests/spark/test_operations_docs.py",
}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page, language):
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


@each_page
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@each_page
def test_every_block_says_what_it_is_and_somebody_runs_it(page):
    assert {found for found, _ in BLOCK.findall(page.read_text())} <= LANGUAGES
    if blocks(page, "py"):
        test = ROOT / RUN_ELSEWHERE[page.name]
        assert page.name in test.read_text()


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@each_page
def test_the_shell_understands_the_commands_of_a_page(page):
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        for command in commands(block):
            check(command)


def commands(block):
    """The commands of a block, continued lines joined, comments left out."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check(words):
    match words:
        case ["make", *targets]:
            known = re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {word for word in targets if "=" not in word} <= {*known}, words
        case ["pip", "install", *packages]:
            for package in packages:
                check_package(package)


def check_package(package):
    name, _, extras = package.partition("[")
    places = {"icefloe": "core", "./core": "core", "airflow-icechunk": ".", ".": "."}
    if name not in places:
        return
    project = tomllib.loads((ROOT / places[name] / "pyproject.toml").read_text())["project"]
    wanted = {extra for extra in extras.rstrip("]").split(",") if extra}
    assert wanted <= project["optional-dependencies"].keys(), package


OURS = sorted(
    {
        tuple(command)
        for page in PAGES
        for block in blocks(page, "bash")
        for command in commands(block)
        if command[0] == "icefloe" and "COMMAND" not in command
    }
)


@pytest.mark.parametrize("command", OURS, ids=" ".join)
def test_a_command_of_icefloe_does_what_a_page_says(command, tmp_path, capsys):
    repo = Repository.create(tmp_path / "archive")
    for value in range(2):
        with repo.transaction("main", message="values") as store:
            zarr.create_array(store, name="t2m", data=np.full((40, 50), value), overwrite=True)
    words = [str(tmp_path / "archive") if "://" in word else word for word in command[1:]]
    assert main(words) == 0, capsys.readouterr().err


@pytest.mark.s3
def test_the_repository_of_quickstart_md_can_be_on_s3(s3_server, monkeypatch):
    (block,) = blocks(ROOT / "docs" / "quickstart.md", "py")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.options["endpoint_url"])
    url = s3_server.root()
    names: dict[str, object] = {"icefloe": icefloe}
    exec(compile(block.replace("s3://bucket/archive", url), "quickstart.md", "exec"), names)
    assert Repository.open(url, s3_server.options).list_branches() == {"main"}


def test_the_commands_of_icefloe_are_shown():
    assert len(OURS) >= 8
    assert shutil.which("bash")
