"""Choosing TCP ports on loopback."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK = "127.0.0.1"

PREFERRED: Mapping[str, int] = {
    "api": 8080,
    "spark-master-ui": 8090,
    "spark-worker-1-ui": 8091,
    "spark-worker-2-ui": 8092,
    "spark-master": 7077,
    "spark-worker-1": 7081,
    "spark-worker-2": 7082,
    "s3": 8333,
    "postgres": 5433,
    "weed-master": 9333,
    "weed-volume": 9340,
    "weed-filer": 9350,
    "weed-admin": 9360,
    "s3-grpc": 18333,
    "weed-master-grpc": 19333,
    "weed-volume-grpc": 19340,
    "weed-filer-grpc": 19350,
    "weed-admin-grpc": 19360,
}
"""What each port is for, and where the search for a free one starts.

All are below the range from which systems take the ports of outgoing connections, so none is taken
by accident between its choice and its use.
"""

_SEARCHED = 1000


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # As servers do it: connections that linger after a stop are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(preferred: Mapping[str, int]) -> dict[str, int]:
    """For each name its preferred port if that is free, else the next free one; all different."""
    chosen: dict[str, int] = {}
    for name, first in preferred.items():
        taken = set(chosen.values())
        candidates = range(first, first + _SEARCHED)
        try:
            chosen[name] = next(port for port in candidates if port not in taken and is_free(port))
        except StopIteration:
            last = candidates[-1]
            raise RuntimeError(f"no free port for {name} between {first} and {last}") from None
    return chosen
