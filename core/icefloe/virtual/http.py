"""Virtual chunks on web servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config import ObjectStoreConfig
from icefloe.storage.http import HttpDriver
from icefloe.storage.runners import IoLoop
from icefloe.virtual.checksum import seconds
from icefloe.virtual.source import Kind, rooted, with_options

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum


class HttpSource(HttpDriver):
    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        async with self._part(key, start, length) as response:
            self._check_status(response, key, {200, 206})
            # No If-Match: servers refuse their own weak ETags there. These are the headers of
            # these bytes, so nothing can change in between.
            modified = seconds(response.headers.get("Last-Modified"))
            checksum.verify(etag=response.headers.get("ETag"), modified=modified)
            return await self._body(response, key, start, length)


def _connect(container: VirtualChunkContainer, settings: Settings) -> HttpSource:
    scheme = container.url_prefix.partition("://")[0].lower()
    found: dict[str, Any] = {}
    if isinstance(container.store, ObjectStoreConfig.Http):
        found = {"headers": container.store.headers or {}}
    return HttpSource(with_options(rooted(settings, container, scheme), found))


KIND = Kind(_connect, IoLoop())
