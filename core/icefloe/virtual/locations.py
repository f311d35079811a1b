"""Locations of virtual chunks: URLs in the one spelling that official clients write.

The scheme is in lower case and the rest as given, but for `file:` URLs, whose path is absolute,
percent-encoded and free of dot segments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from icefloe.errors import InvalidInputError
from icefloe.format.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMES = frozenset(
    {"s3", "tigris", "gs", "gcs", "az", "azure", "abfs", "http", "https", "file", "vcc"}
)
# Keys there are any text at all; elsewhere `..` would lead out of the container.
_VERBATIM = frozenset({"s3", "tigris"})

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TAIL = re.compile(r"[?#]")
_SUSPECT = re.compile(r"//|/\.|%2[ef]|%5c", re.IGNORECASE)
_DOT = re.compile(r"\.|%2e", re.IGNORECASE)
# What the WHATWG's URLs leave alone in a path.
_SAFE = "!$%&'()*+,-./:;=@[]^_|~"


def normalize(location: str) -> str:
    """The spelling that goes into a manifest.

    Raises:
        InvalidInputError: it is no absolute URL of a kind that virtual chunks may have.
    """
    scheme, colon, rest = location.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in SCHEMES:
        known = ", ".join(sorted(SCHEMES))
        raise invalid(location, f"it must be an absolute URL, with one of the schemes {known}")
    if _CONTROL.search(location):
        raise invalid(location, "it has control characters; percent-encode them")
    if scheme == "file":
        return _normal_file(location, rest)
    host, slash, _ = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not host or not slash:
        raise invalid(location, "it must have a bucket or host, and a path")
    return f"{scheme}:{rest}"


def normalize_all(locations: Ragged) -> Ragged:
    """`normalize` for a column, at the cost of its distinct values; rows must be present."""
    distinct, codes = locations.distinct()
    given = distinct.texts()
    normal = list(map(normalize, given))
    return locations if normal == given else Ragged.of_text(normal).take(codes)


def distinct_texts(locations: Ragged | Iterable[str]) -> list[str]:
    """Each location once; absent rows are left out."""
    if isinstance(locations, Ragged):
        distinct, _ = locations.take(locations.present).distinct()
        return distinct.texts()
    return list(dict.fromkeys(locations))


def object_key(location: str) -> str:
    """What the store calls the object: its path, percent-decoded, without bucket, host and query.

    The key of a file is its absolute path.

    Raises:
        InvalidInputError: the path could lead out of the container.
    """
    scheme, _, rest = location.partition("://")
    path = _TAIL.split(rest, maxsplit=1)[0].partition("/")[2]
    try:
        key = unquote(path, errors="surrogateescape" if scheme == "file" else "strict")
    except UnicodeDecodeError:
        raise invalid(location, "its escapes are not UTF-8") from None
    if not key or "\0" in key:
        raise invalid(location, "it names no object")
    if scheme not in _VERBATIM and _SUSPECT.search(f"/{path}"):
        _check_segments(location, key)
    return f"/{key}" if scheme == "file" else key


def _check_segments(location: str, key: str) -> None:
    if any(segment in {"", ".", ".."} for segment in key.split("/")):
        raise invalid(location, "it has an empty, '.' or '..' segment")


def _normal_file(location: str, rest: str) -> str:
    path, tail = rest, ""
    if found := _TAIL.search(rest):
        path, tail = rest[: found.start()], rest[found.start() :]
    path = path.replace("\\", "/")
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
        if host.lower() not in {"", "localhost"}:
            raise invalid(location, f"files are on this host, not on {host!r}")
    if not path.startswith("/"):
        raise invalid(location, "the path of a file must be absolute")
    return f"file://{quote(_without_dots(path), safe=_SAFE)}{tail}"


def _without_dots(path: str) -> str:
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        dots = _DOT.sub(".", segment)
        if dots == "..":
            kept = kept[:-1]
        elif dots != ".":
            kept.append(segment)
    if _DOT.sub(".", segments[-1]) in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)


def invalid(location: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"virtual chunk location {location!r}: {reason}", kind="invalid-virtual-ref"
    )
