"""Virtual chunks in S3 buckets, and in what speaks its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config import ObjectStoreConfig, S3Options
from icefloe.errors import InternalError, InvalidInputError
from icefloe.storage.runners import IoLoop
from icefloe.storage.s3_fsspec import S3Driver, read_part
from icefloe.virtual.source import Kind, rooted, with_options

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum

_TIGRIS = "https://t3.storage.dev"


class S3Source(S3Driver):
    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        condition = {} if checksum.etag is None else {"IfMatch": checksum.etag}
        wanted = f"bytes={start}-{start + length - 1}"
        with self._translated(key):
            response = await self._call("get_object", key, Range=wanted, **condition)
            async with response["Body"]:
                # Not every server heeds the condition, but these are the headers of these bytes.
                checksum.verify(
                    etag=response.get("ETag"), modified=response["LastModified"].timestamp()
                )
                return await read_part(response, start, length)


def _connect(container: VirtualChunkContainer, settings: Settings) -> S3Source:
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            found = _options(container, options)
        case ObjectStoreConfig.Tigris(options):
            found = {"endpoint_url": _TIGRIS} | _options(container, options)
        case _:
            raise InternalError(f"{container.store!r} is no S3 store")
    if settings.options or settings.credentials:
        found.pop("anon", None)
    return S3Source(with_options(rooted(settings, container, "s3"), found))


def _options(container: VirtualChunkContainer, options: S3Options) -> dict[str, Any]:
    """What s3fs calls the options of the container."""
    found: dict[str, Any] = {"anon": options.anonymous, "requester_pays": options.requester_pays}
    if options.endpoint_url is not None:
        if options.endpoint_url.startswith("http://") and not options.allow_http:
            raise InvalidInputError(
                f"container {container.url_prefix!r}: its endpoint is {options.endpoint_url}, "
                "and its store does not allow_http",
                kind="invalid-virtual-chunk-container",
            )
        found["endpoint_url"] = options.endpoint_url
    if options.region is not None:
        found["client_kwargs"] = {"region_name": options.region}
    # Some servers send the checksum of the whole object with a part of it.
    config: dict[str, Any] = {"response_checksum_validation": "when_required"}
    if options.force_path_style:
        config["s3"] = {"addressing_style": "path"}
    if options.network_stream_timeout_seconds:
        config["read_timeout"] = options.network_stream_timeout_seconds
    return found | {"config_kwargs": config}


KIND = Kind(_connect, IoLoop())
