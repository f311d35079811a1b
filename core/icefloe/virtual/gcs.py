"""Virtual chunks in Google Cloud Storage."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from icefloe.config import ObjectStoreConfig
from icefloe.storage.gcs import GcsDriver
from icefloe.storage.runners import IoLoop
from icefloe.virtual.checksum import seconds
from icefloe.virtual.source import Kind, rooted, with_options

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum

_ANONYMOUS = ("skip_signature", "google_skip_signature")


class GcsSource(GcsDriver):
    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        # By the XML API, whose ETags the references have: those of the JSON API are others.
        place = f"{self._fs._location}/{quote(self._bucket, safe='')}/{quote(key, safe='/')}"
        status, headers, data = await self._send("GET", place, key, {}, part=(start, length))
        self._check(key, status, data)
        modified = seconds(headers.get("Last-Modified"))
        checksum.verify(etag=headers.get("ETag"), modified=modified)
        return data


def _connect(container: VirtualChunkContainer, settings: Settings) -> GcsSource:
    opts = container.store.opts if isinstance(container.store, ObjectStoreConfig.Gcs) else None
    is_anonymous = any((opts or {}).get(name, "").lower() == "true" for name in _ANONYMOUS)
    has_credentials = settings.options or settings.credentials
    found = {"token": "anon"} if is_anonymous and not has_credentials else {}
    return GcsSource(with_options(rooted(settings, container, "gs"), found))


KIND = Kind(_connect, IoLoop())
