"""Where virtual chunks come from: containers, and the stores that they are in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from icefloe.config.conditions import Unrecognized
from icefloe.errors import InvalidInputError
from icefloe.storage.urls import refuse_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChecksumAlgorithm(Enum):
    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@dataclass(slots=True)
class S3Options:
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: int | None = None
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | Unrecognized | None = None


class ObjectStoreConfig:
    """The kinds of stores."""

    @dataclass(slots=True)
    class InMemory:
        """No URL leads into memory: a container cannot have it."""

    @dataclass(slots=True)
    class LocalFileSystem:
        """Files are found by their URL alone; `path` says which tree is meant."""

        path: str

    @dataclass(slots=True)
    class S3Compatible:
        """A server other than Amazon's, with the protocol of S3."""

        options: S3Options

    @dataclass(slots=True)
    class S3:
        """Amazon S3."""

        options: S3Options

    @dataclass(slots=True)
    class Tigris:
        """Tigris, which speaks the protocol of S3."""

        opts: S3Options

    @dataclass(slots=True)
    class Gcs:
        """Google Cloud Storage; `opts` are those of the object_store crate."""

        opts: Mapping[str, str] | None = None

        def __post_init__(self) -> None:
            self.opts = dict(self.opts or {})

    @dataclass(slots=True)
    class Azure:
        """Azure Blob Storage; `opts` are those of the object_store crate."""

        opts: Mapping[str, str] | None = None

        def __post_init__(self) -> None:
            self.opts = dict(self.opts or {})

    @dataclass(slots=True)
    class Http:
        """`headers` go along with every request, and are written into the repository as they are.

        Give secret ones when you authorise the container instead.
        """

        opts: Mapping[str, str] | None = None
        headers: Mapping[str, str] | None = field(default=None, repr=False)

        def __post_init__(self) -> None:
            self.opts = dict(self.opts or {})
            self.headers = dict(self.headers or {})


type AnyObjectStoreConfig = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Http
    | Unrecognized
)

_SCHEMES: dict[type, frozenset[str]] = {
    ObjectStoreConfig.LocalFileSystem: frozenset({"file"}),
    ObjectStoreConfig.S3: frozenset({"s3"}),
    ObjectStoreConfig.S3Compatible: frozenset({"s3"}),
    ObjectStoreConfig.Tigris: frozenset({"s3", "tigris"}),
    ObjectStoreConfig.Gcs: frozenset({"gs", "gcs"}),
    ObjectStoreConfig.Azure: frozenset({"az", "azure", "abfs"}),
    ObjectStoreConfig.Http: frozenset({"http", "https"}),
}


@dataclass(slots=True)
class VirtualChunkContainer:
    """Locations that begin with `url_prefix` are read from `store`.

    A container with a name also serves `vcc://name/path`, so that its prefix may change later.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None

    def validate(self) -> None:
        """Raise InvalidInputError unless official clients accept this container.

        And where it would carry credentials into the repository.
        """
        refuse_credentials(self.url_prefix)
        options = getattr(self.store, "options", None) or getattr(self.store, "opts", None)
        if isinstance(options, S3Options) and options.endpoint_url is not None:
            refuse_credentials(options.endpoint_url)
        if not self.url_prefix.endswith("/"):
            raise self._invalid("url_prefix must end in '/'")
        if self.name is not None and (not self.name or "/" in self.name):
            raise self._invalid(f"the name {self.name!r} is empty or has a '/'")
        scheme, separator, place = self.url_prefix.partition("://")
        if not separator:
            raise self._invalid("url_prefix must be a URL, such as s3://bucket/folder/")
        if scheme.lower() not in _SCHEMES.get(type(self.store), frozenset()):
            kind = type(self.store).__name__
            raise self._invalid(f"a store of kind {kind} has no {scheme}:// URLs")
        # The host of a file URL is empty; its path may not be.
        if not place.strip("/") or (place.startswith("/") and scheme.lower() != "file"):
            raise self._invalid("url_prefix must name a bucket, a host or a folder")

    def _invalid(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            f"virtual chunk container {self.url_prefix!r}: {reason}",
            kind="invalid-virtual-chunk-container",
        )


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    anonymous: bool = False,
    s3_compatible: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int | None = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> ObjectStoreConfig.S3 | ObjectStoreConfig.S3Compatible:
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    return (
        ObjectStoreConfig.S3Compatible(options) if s3_compatible else ObjectStoreConfig.S3(options)
    )


def gcs_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    return ObjectStoreConfig.Gcs(opts)


def azure_store(
    *, account: str, config: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Azure:
    return ObjectStoreConfig.Azure({"account": account, **(config or {})})


def http_store(
    opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Http:
    return ObjectStoreConfig.Http(opts, headers)


def local_filesystem_store(path: str) -> ObjectStoreConfig.LocalFileSystem:
    return ObjectStoreConfig.LocalFileSystem(path)
