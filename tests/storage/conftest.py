"""One contract, every backend."""

import asyncio
import uuid

import pytest
from adlfs import AzureBlobFileSystem

from icefloe.storage import MemoryStorage, Retries, open_storage

QUICK = Retries(attempts=3, initial=0.01, maximum=0.05)


@pytest.fixture
def local_url(tmp_path):
    return f"file://{tmp_path}/repository"


@pytest.fixture
def open_s3(s3_server):
    """Opens storages on one fresh root; keyword arguments go to `open_storage`."""
    url = s3_server.root()

    def open_(url=url, options=None, **arguments):
        arguments.setdefault("retries", QUICK)
        return open_storage(url, s3_server.options | (options or {}), **arguments)

    return open_


@pytest.fixture
def open_s3fs(open_s3):
    """The same through s3fs, which serves what the plain requests do not."""
    return lambda **arguments: open_s3(
        **{**arguments, "options": {"engine": "s3fs", **(arguments.get("options") or {})}}
    )


@pytest.fixture
def open_aws(aws_server):
    url = aws_server.root()
    return lambda **arguments: open_storage(url, aws_server.options, **arguments)


@pytest.fixture
def open_gcs(gcs_endpoint):
    url = f"gs://tests/{uuid.uuid4().hex}"
    options = {"token": "anon", "endpoint_url": gcs_endpoint}
    return lambda **arguments: open_storage(url, options, **arguments)


@pytest.fixture(scope="session")
def azure_container(azure_connection):
    AzureBlobFileSystem(connection_string=azure_connection).mkdir("tests")
    return "tests"


@pytest.fixture
def open_azure(azure_connection, azure_container):
    url = f"az://{azure_container}/{uuid.uuid4().hex}"
    options = {"connection_string": azure_connection}
    return lambda **arguments: open_storage(url, options, **arguments)


@pytest.fixture(params=["memory", "local", "s3", "s3fs", "aws", "gcs", "azure"])
def opener(request):
    """Opens storages on one fresh root, on each backend in turn."""
    match request.param:
        case "memory":
            url = f"memory://{uuid.uuid4().hex}"
            return lambda **arguments: open_storage(url, **arguments)
        case "local":
            url = request.getfixturevalue("local_url")
            return lambda **arguments: open_storage(url, **arguments)
        case name:
            return request.getfixturevalue(f"open_{name}")


@pytest.fixture
def storage(opener):
    return opener()


@pytest.fixture
def memory():
    return MemoryStorage()


@pytest.fixture
def run():
    """Runs a coroutine on a new event loop."""
    return asyncio.run
