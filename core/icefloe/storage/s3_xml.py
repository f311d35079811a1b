"""The documents that S3 speaks in: errors, listings, deletions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from icefloe.storage.protocol import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree.ElementTree import Element


@dataclass(frozen=True, slots=True)
class Fault:
    """What the server says of a request that failed; empty where it says nothing."""

    code: str = ""
    message: str = ""
    region: str = ""
    """Where the bucket is, if the request was signed for another region."""


@dataclass(frozen=True, slots=True)
class Listing:
    objects: list[ObjectInfo]
    next: str | None


def fault(body: bytes) -> Fault:
    """An error document; no other text is taken for one."""
    root = _parsed(body)
    if root is None or _name(root) != "Error":
        return Fault()
    return Fault(_text(root, "Code"), _text(root, "Message"), _text(root, "Region"))


def listing(body: bytes, skip: int) -> Listing:
    """A page of objects, the first `skip` letters of their keys left out.

    Raises:
        ValueError: it is none.
    """
    root = _parsed(body)
    if root is None or _name(root) != "ListBucketResult":
        raise ValueError("the answer is no listing")
    quoted = _text(root, "EncodingType") == "url"
    found = [
        ObjectInfo(
            (unquote_plus(key) if quoted else key)[skip:],
            int(_text(item, "Size")),
            datetime.fromisoformat(_text(item, "LastModified")),
        )
        for item in _all(root, "Contents")
        for key in [_text(item, "Key")]
    ]
    more = _text(root, "IsTruncated") == "true"
    return Listing(found, _text(root, "NextContinuationToken") if more else None)


def deletion(keys: Sequence[str]) -> bytes:
    """Asks for objects to be deleted, and to hear of failures only."""
    objects = "".join(f"<Object><Key>{escape(key, _ENTITIES)}</Key></Object>" for key in keys)
    return f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode()


def deletion_failures(body: bytes) -> dict[str, Fault]:
    """The keys that are still there, and why.

    Raises:
        ValueError: the answer is no such document.
    """
    root = _parsed(body)
    if root is None or _name(root) != "DeleteResult":
        raise ValueError("the answer does not tell what was deleted")
    return {
        _text(item, "Key"): Fault(_text(item, "Code"), _text(item, "Message"))
        for item in _all(root, "Error")
    }


# XML readers take a bare carriage return for a line feed.
_ENTITIES = {"\r": "&#13;", "\n": "&#10;"}


def _parsed(body: bytes) -> Element | None:
    try:
        return ET.fromstring(body)
    except ET.ParseError:
        return None


def _name(element: Element) -> str:
    """Without the namespace, which not every server writes."""
    return element.tag.rpartition("}")[2]


def _all(element: Element, name: str) -> Iterator[Element]:
    return (child for child in element if _name(child) == name)


def _text(element: Element, name: str) -> str:
    found = next(_all(element, name), None)
    return "" if found is None or found.text is None else found.text
