"""Containers and their stores as JSON, tagged as serde does it: `{"s3": {...}}`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from icefloe.config.conditions import Unrecognized
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
)
from icefloe.config.wire import (
    BOOL,
    TEXT,
    TEXTS,
    U32,
    Choice,
    Codec,
    Record,
    invalid,
    malformed,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.format.flexbuffers import JSON


@dataclass(frozen=True, slots=True)
class Store:
    """A store as serde tags it: `{"s3": {...}}`."""

    def decode(self, value: JSON, place: str) -> AnyObjectStoreConfig:
        match value:
            case "in_memory":
                return ObjectStoreConfig.InMemory()
            case {"local_file_system": str(path)}:
                return ObjectStoreConfig.LocalFileSystem(path)
            case {"http": dict(opts)}:
                headers = opts.get("headers")
                return ObjectStoreConfig.Http(
                    TEXTS.decode(opts, place),
                    {} if headers is None else TEXTS.decode(headers, f"{place}.headers"),
                )
            case dict() if len(value) == 1:
                ((tag, body),) = value.items()
                if tag in _TAGGED:
                    cls, codec = _TAGGED[tag]
                    store: AnyObjectStoreConfig = cls(codec.decode(body, f"{place}.{tag}"))
                    return store
        return Unrecognized.of(value)

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        match value:
            case ObjectStoreConfig.InMemory():
                return "in_memory"
            case ObjectStoreConfig.LocalFileSystem(path=path):
                return {"local_file_system": TEXT.encode(path, place, None)}
            case ObjectStoreConfig.Http(opts=opts, headers=headers):
                tree = TEXTS.encode(opts, place, None)
                if headers:
                    tree["headers"] = TEXTS.encode(headers, place, None)
                return {"http": tree}
            case Unrecognized():
                return value.raw
        for tag, (cls, codec) in _TAGGED.items():
            if type(value) is cls:
                body = previous.get(tag) if isinstance(previous, dict) else None
                (inner,) = fields(value)
                return {tag: codec.encode(getattr(value, inner.name), f"{place}.{tag}", body)}
        raise invalid(place, f"{value!r} is no object store config")


@dataclass(frozen=True, slots=True)
class Containers:
    def decode(self, value: JSON, place: str) -> dict[str, VirtualChunkContainer]:
        if not isinstance(value, dict):
            raise malformed(place, value, "a map")
        return {
            prefix: CONTAINER.decode(part, f"{place}[{prefix!r}]") for prefix, part in value.items()
        }

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        before = previous if isinstance(previous, dict) else {}
        tree: dict[str, JSON] = {}
        for prefix, container in value.items():
            inside, old = f"{place}[{prefix!r}]", before.get(prefix)
            # What another writer put there stays, whatever we think of it.
            if old is None or CONTAINER.decode(old, inside) != container:
                container.validate()
            tree[prefix] = CONTAINER.encode(container, inside, old)
        return tree


CHECKSUM = Choice(
    {
        "crc32": ChecksumAlgorithm.Crc32,
        "crc32c": ChecksumAlgorithm.Crc32c,
        "crc64_nvme": ChecksumAlgorithm.Crc64Nvme,
        "sha1": ChecksumAlgorithm.Sha1,
        "sha256": ChecksumAlgorithm.Sha256,
    }
)
S3_OPTIONS = Record(
    S3Options,
    named(TEXT, "region", "endpoint_url")
    | named(BOOL, "anonymous", "allow_http", "force_path_style", "requester_pays")
    | {"network_stream_timeout_seconds": U32, "checksum_algorithm": CHECKSUM},
)
_TAGGED: Mapping[str, tuple[Callable[[Any], Any], Codec]] = {
    "s3": (ObjectStoreConfig.S3, S3_OPTIONS),
    "s3_compatible": (ObjectStoreConfig.S3Compatible, S3_OPTIONS),
    "tigris": (ObjectStoreConfig.Tigris, S3_OPTIONS),
    "gcs": (ObjectStoreConfig.Gcs, TEXTS),
    "azure": (ObjectStoreConfig.Azure, TEXTS),
}
CONTAINER = Record(
    VirtualChunkContainer,
    named(TEXT, "name", "url_prefix") | {"store": Store()},
    required=frozenset({"url_prefix", "store"}),
)
CONTAINERS = Containers()
