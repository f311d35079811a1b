"""URLs are shown and travel in pickles, so there must be no credentials in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from icefloe.errors import InvalidInputError

BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Schemes with a name before the first slash, and behind it any text at all."""
_AT_ACCOUNT = frozenset({"az", "abfs", "abfss"})
_PATHS = frozenset({"file", "local", "memory"})


def refuse_credentials(url: str) -> None:
    """Look at each link of a URL, which may be chained: `simplecache::s3://...`.

    A secret may contain slashes, and then a parser of URLs takes it for a port and a path.

    Raises:
        InvalidInputError: there are, or seem to be, credentials in it. They are not repeated.
    """
    for link in url.split("::"):
        scheme, separator, place = link.partition("://")
        scheme = scheme.lower()
        if not separator or scheme in _PATHS:
            continue
        found = _before_bucket(scheme, place) if scheme in BUCKETS else _in_address(link, place)
        if found:
            raise InvalidInputError(
                f"no credentials in a {scheme}:// URL, please: use storage_options. An @ that "
                "belongs to a path is written %40",
                kind="invalid-url",
            )


def refuse_in_options(options: Mapping[str, Any]) -> None:
    """The same for every `endpoint_url` in the options, nested ones included."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            refuse_in_options(value)
        elif name == "endpoint_url" and isinstance(value, str):
            refuse_credentials(value)


def _before_bucket(scheme: str, place: str) -> bool:
    """Names of buckets have neither; but for ARNs, and for `container@account`."""
    name, _, _ = place.partition("/")
    if name.startswith("arn:"):
        name = name.replace(":", "")
    return ":" in name or ("@" in name and scheme not in _AT_ACCOUNT)


def _in_address(url: str, place: str) -> bool:
    try:
        parts = urlsplit(url)
        # "user:se/cret@host": what stands for the port is no number.
        _ = parts.port
    except ValueError:
        return True
    if "@" in parts.netloc or parts.query:
        return True
    # "user:12/34@host" looks like a port and a path.
    host = parts.netloc.rpartition("]")[2]
    return ":" in host and "@" in place.removeprefix(parts.netloc)
