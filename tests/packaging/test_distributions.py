"""The two distributions hold what they should, and pull in no more than they must."""

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import airflow_icechunk
import icefloe

ROOT = Path(__file__).parents[2]
PROJECTS = {"icefloe": ROOT / "core", "airflow_icechunk": ROOT}
MODULES = {"icefloe": {"pyspark_icechunk.py", "pyspark_icechunk_snapshots.py"}}
"""What lies beside the package: Spark finds data sources by such names."""


def build(project: Path, kind: str, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "-o", folder, project],
        check=True,
        capture_output=True,
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        package: build(project, "wheel", tmp_path_factory.mktemp(package))
        for package, project in PROJECTS.items()
    }


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def required(wheel: Path, *, extra: str | None = None) -> set[str]:
    """The names a wheel requires: always, or because of one extra."""
    requirements = (line.split(";") for line in metadata(wheel).get_all("Requires-Dist", []))
    wanted = [f"extra == '{extra}'"] if extra else []
    return {
        re.split(r"[^A-Za-z0-9._-]", requirement)[0]
        for requirement, *marker in requirements
        if [part.strip() for part in marker] == wanted
    }


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_holds_its_package_and_nothing_else(wheels, package):
    with zipfile.ZipFile(wheels[package]) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        package,
        *MODULES.get(package, ()),
    }
    assert f"{package}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("icefloe", {"icefloe", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO"}),
        (
            "airflow_icechunk",
            {
                "airflow_icechunk",
                "README.md",
                "CHANGELOG.md",
                "LICENSE",
                "pyproject.toml",
                "PKG-INFO",
            },
        ),
    ],
)
def test_a_source_distribution_holds_only_what_is_listed(tmp_path, package, files):
    with tarfile.open(build(PROJECTS[package], "sdist", tmp_path)) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops - {".gitignore"} - MODULES.get(package, set()) == files


def test_the_pages_of_the_plugin_are_in_the_wheel(wheels):
    with zipfile.ZipFile(wheels["airflow_icechunk"]) as archive:
        packed = {*archive.namelist()}
    plugin = ROOT / "airflow_icechunk" / "plugin"
    files = [*(plugin / "templates").iterdir(), *(plugin / "static").iterdir()]
    assert len(files) > 10
    assert {str(file.relative_to(ROOT)) for file in files} <= packed


def test_icefloe_alone_requires_neither_airflow_nor_pyspark_nor_zarr(wheels):
    assert required(wheels["icefloe"]) == {
        "flatbuffers",
        "fsspec",
        "msgpack",
        "numpy",
        "zstandard",
    }


def test_each_extra_of_icefloe_brings_its_library_and_all_brings_every_one(wheels):
    extras = metadata(wheels["icefloe"]).get_all("Provides-Extra", [])
    brought = {extra: required(wheels["icefloe"], extra=extra) for extra in extras}
    everything = brought.pop("all")
    promised = {
        "azure": {"adlfs"},
        "gcs": {"gcsfs"},
        "s3": {"s3fs"},
        "spark": {"pandas", "pyarrow", "pyspark", "zarr"},
        "zarr": {"zarr"},
    }
    assert promised.items() <= brought.items()
    assert everything == set().union(*brought.values())


def test_the_provider_requires_icefloe_airflow_and_the_providers_it_builds_on(wheels):
    assert required(wheels["airflow_icechunk"]) == {
        "apache-airflow",
        "apache-airflow-providers-apache-spark",
        "apache-airflow-providers-common-compat",
        "apache-airflow-providers-standard",
        "asgiref",
        "icefloe",
    }


def test_both_distributions_carry_one_version(wheels):
    versions = {metadata(wheel)["Version"] for wheel in wheels.values()}
    assert versions == {icefloe.__version__} == {airflow_icechunk.__version__}


def test_the_provider_accepts_the_icefloe_of_its_own_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"icefloe[zarr]~={icefloe.__version__}" in project["dependencies"]


@pytest.mark.timeout(600)
def test_icefloe_installs_and_imports_without_the_heavy_libraries(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--retries=1", "-c", constraints, ROOT / "core"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "connection" in installed.stderr:
        pytest.skip("no package index within reach")
    assert installed.returncode == 0, installed.stderr
    program = (
        "import importlib.util as u, icefloe;"
        "found = [n for n in ('core', 'airflow', 'pyspark', 'zarr') if u.find_spec(n)];"
        "assert not found, found"
    )
    subprocess.run([python, "-c", program], check=True, cwd=tmp_path)
