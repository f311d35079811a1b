"""Virtual chunks in Azure Blob Storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions

from icefloe.config import ObjectStoreConfig
from icefloe.storage.azure import READING, AzureDriver
from icefloe.storage.runners import IoLoop
from icefloe.virtual.checksum import bare
from icefloe.virtual.source import Kind, rooted, with_options

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum

_ACCOUNT = ("account", "account_name", "azure_storage_account_name")


class AzureSource(AzureDriver):
    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        condition: dict[str, Any] = dict(READING)
        if checksum.etag is not None:
            condition["etag"] = f'"{bare(checksum.etag)}"'
            condition["match_condition"] = MatchConditions.IfNotModified
        with self._translated(key):
            async with self._blob(key) as blob:
                stream = await blob.download_blob(offset=start, length=length, **condition)
                found = stream.properties
                checksum.verify(etag=found.etag, modified=found.last_modified.timestamp())
                data: bytes = await stream.readall()
        return data


def _connect(container: VirtualChunkContainer, settings: Settings) -> AzureSource:
    opts = container.store.opts if isinstance(container.store, ObjectStoreConfig.Azure) else None
    accounts = (value for name, value in (opts or {}).items() if name in _ACCOUNT)
    account = next(accounts, None)
    found = (
        {}
        if account is None or "connection_string" in settings.options
        else {"account_name": account}
    )
    return AzureSource(with_options(rooted(settings, container, "az"), found))


KIND = Kind(_connect, IoLoop())
