"""Fixtures that every suite may use: the servers, each started once, when first asked for."""

from pathlib import Path

import pytest

import servers

TESTS = Path(__file__).parent
LAST = {"airflow", "spark", "stack"}


def pytest_collection_modifyitems(items):
    # Spark and Airflow leave threads and signal handlers in their process, which the forks of
    # later tests would inherit.
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] in LAST)


@pytest.fixture(scope="session")
def s3_server():
    with servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def aws_server():
    """Answers as AWS does; for the shape of its answers, never for concurrency."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def careless_s3_server():
    """Accepts every conditional write, whatever its condition."""
    with servers.rclone() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_endpoint():
    with servers.fake_gcs() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure_connection():
    with servers.azurite() as connection:
        yield connection
