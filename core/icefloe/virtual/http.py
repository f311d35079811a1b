"""Virtual chunks on web servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import ClientConnectorError, ClientError
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from icefloe.config import ObjectStoreConfig
from icefloe.errors import IcefloeError
from icefloe.storage.failures import Failures
from icefloe.storage.runners import IoLoop
from icefloe.storage.settings import secrets
from icefloe.virtual.checksum import seconds
from icefloe.virtual.source import Kind, rooted, with_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import ClientResponse

    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum

_SAFE = "/!$&'()*+,-.:;=@_~"


class HttpSource:
    """Takes the options of fsspec's file system for HTTP: `headers`, `client_kwargs`..."""

    def __init__(self, settings: Settings) -> None:
        options = settings.resolve()
        self._url = settings.url
        self._headers = dict(options.pop("headers", None) or {})
        self._failures = Failures(settings.url, secrets({**options, "headers": self._headers}))
        self._fs = HTTPFileSystem(**options, skip_instance_cache=True)

    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        # Compressed on the way, the bytes would not be those at the offset.
        headers = self._headers | {"Accept-Encoding": "identity"}
        headers["Range"] = f"bytes={start}-{start + length - 1}"
        url = URL(f"{self._url}/{quote(key, safe=_SAFE)}", encoded=True)
        with self._translated(key):
            session = await self._fs.set_session()
            async with session.get(url, headers=headers, **self._fs.kwargs) as response:
                if response.status not in (200, 206):
                    raise self._failures.from_status(
                        response.status, "", str(response.reason or ""), key=key
                    )
                # No If-Match: servers refuse their own weak ETags there. These are the headers of
                # these bytes, so nothing can change in between.
                modified = seconds(response.headers.get("Last-Modified"))
                checksum.verify(etag=response.headers.get("ETag"), modified=modified)
                if response.status == 200:
                    return await _pick(response, start, length)
                sent = response.headers.get("Content-Range", f"bytes {start}-")
                if not sent.startswith(f"bytes {start}-"):
                    raise self._failures.short_read(key, start, length, f"{sent} came")
                data: bytes = await response.read()
                return data[:length]

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except IcefloeError:
            # Ours already; a refusal is an OSError too.
            raise
        except ClientConnectorError as error:
            raise self._failures.unreachable(key, error) from self._failures.without_secrets(error)
        except (ClientError, OSError, TimeoutError) as error:
            raise self._failures.transport(key, error) from self._failures.without_secrets(error)


async def _pick(response: ClientResponse, start: int, length: int) -> bytes:
    """The range out of a whole object, from a server that ignores ranges."""
    picked = bytearray()
    async for part in response.content.iter_chunked(2**20):
        picked += part[max(start, 0) :]
        start -= len(part)
        if len(picked) >= length:
            break
    return bytes(picked[:length])


def _connect(container: VirtualChunkContainer, settings: Settings) -> HttpSource:
    scheme = container.url_prefix.partition("://")[0].lower()
    found: dict[str, Any] = {}
    if isinstance(container.store, ObjectStoreConfig.Http):
        found = {"headers": container.store.headers or {}}
    return HttpSource(with_options(rooted(settings, container, scheme), found))


KIND = Kind(_connect, IoLoop())
