"""Storage in an Azure container, through adlfs's client: versions are ETags."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adlfs import AzureBlobFileSystem
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
)

from icefloe.errors import IcefloeError, InvalidInputError, NotFoundError, StorageError
from icefloe.storage.deadline import advance
from icefloe.storage.driver import Condition, Head, Require
from icefloe.storage.failures import Failures
from icefloe.storage.handle import Backend
from icefloe.storage.options import check_options, names_of
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.retry import RETRYABLE
from icefloe.storage.runners import IoLoop
from icefloe.storage.settings import Settings, secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Retrying is done above, where a lost answer is understood.
_ONCE = {"retry_total": 0}


class _Counted:
    """A body that tells the deadline what has come; the client hands over whole objects only."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, size: int = -1) -> bytes:
        part: bytes = await self._stream.read(size)
        advance(len(part))
        return part


def _count(response: Any) -> None:
    found = response.http_response
    inner: Any = getattr(found, "_internal_response", None) or getattr(
        found, "internal_response", None
    )
    if hasattr(inner, "content"):
        inner.content = _Counted(inner.content)


READING: dict[str, Any] = {**_ONCE, "raw_response_hook": _count}


class AzureDriver:
    delete_batch = 1

    def __init__(self, settings: Settings) -> None:
        options = settings.resolve()
        check_options(options, names_of(AzureBlobFileSystem.__init__), settings.url)
        container, _, prefix = settings.url.partition("://")[2].partition("/")
        # abfss://container@account.dfs.core.windows.net/...
        container, _, host = container.partition("@")
        if host:
            options.setdefault("account_name", host.partition(".")[0])
        self._container = container
        self._prefix = f"{prefix}/" if prefix else ""
        self._failures = Failures(settings.url, secrets(options))
        try:
            self._fs = AzureBlobFileSystem(
                **options, skip_instance_cache=True, use_listings_cache=False
            )
        except ValueError as error:
            shown = self._failures.other("", error)
            raise InvalidInputError(
                f"the options do not lead to {settings.url}: {shown}"
            ) from self._failures.without_secrets(error)

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        condition = {} if known is None else _condition(known, MatchConditions.IfModified)
        with self._translated(key):
            try:
                async with self._blob(key) as blob:
                    stream = await blob.download_blob(**condition, **READING)
                    data = await stream.readall()
            except HttpResponseError as error:
                if error.status_code == 304:
                    return None
                raise
        version = _version(stream.properties.etag)
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        with self._translated(key):
            async with self._blob(key) as blob:
                data: bytes = await (await blob.download_blob(**READING)).readall()
        return data

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._translated(key):
            try:
                async with self._blob(key) as blob:
                    stream = await blob.download_blob(offset=start, length=length, **READING)
                    data: bytes = await stream.readall()
            except HttpResponseError as error:
                if error.status_code == 416:
                    return b""
                raise
        return data

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        conditions: dict[str, Any] = {"overwrite": condition is not Require.ABSENCE}
        if isinstance(condition, Version):
            conditions |= _condition(condition, MatchConditions.IfNotModified)
        conditional = condition is not Require.ANYTHING
        with self._translated(key, conditional=conditional):
            async with self._blob(key) as blob:
                answer = await blob.upload_blob(
                    data, metadata=dict(metadata), **conditions, **_ONCE
                )
        return _version(answer["etag"])

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        # Azure's own copy needs a second authorization for the source, which not every credential
        # gives.
        found = await self.read(source, known=None)
        if found is None or (expected is not None and found.version != expected):
            raise self._failures.conflict(source, "it has changed")
        await self.write(target, found.data, condition=Require.ANYTHING, metadata={})

    def pages(self, prefix: str, start_after: str | None) -> _AzurePages:
        return _AzurePages(self, prefix, start_after or "")

    async def list_page(
        self, prefix: str, token: str | None
    ) -> tuple[list[ObjectInfo], str | None]:
        """One page, and the token of the next."""
        page = []
        with self._translated(prefix):
            client = self._fs.service_client.get_container_client(self._container)
            async with client:
                listing = client.list_blobs(
                    name_starts_with=self._prefix + prefix, include=["metadata"], **_ONCE
                ).by_page(continuation_token=token)
                async for blob in await anext(listing):
                    # Accounts with a hierarchy list folders too.
                    if (blob.metadata or {}).get("hdi_isfolder") != "true":
                        key = blob.name[len(self._prefix) :]
                        page.append(ObjectInfo(key, blob.size, blob.last_modified))
        return page, listing.continuation_token or None

    async def info(self, key: str) -> ObjectInfo:
        return (await self.head(key)).info

    async def head(self, key: str) -> Head:
        with self._translated(key):
            async with self._blob(key) as blob:
                found = await blob.get_blob_properties(**_ONCE)
        metadata = {name.lower(): value for name, value in (found.metadata or {}).items()}
        info = ObjectInfo(key, found.size, found.last_modified)
        return Head(info, _version(found.etag), metadata)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        (key,) = keys
        try:
            with self._translated(key):
                async with self._blob(key) as blob:
                    await blob.delete_blob(**_ONCE)
        except NotFoundError:
            return {}
        except StorageError as error:
            # Held by a lease or a policy, say: the other keys are deleted all the same.
            if error.kind in RETRYABLE:
                raise
            return {key: str(error)}
        return {}

    def _blob(self, key: str) -> Any:
        return self._fs.service_client.get_blob_client(self._container, self._prefix + key)

    @contextmanager
    def _translated(self, key: str, *, conditional: bool = False) -> Iterator[None]:
        try:
            yield
        # ValueError: of the client, about an answer that is none.
        except (AzureError, OSError, ValueError) as error:
            raise self._translate(key, error, conditional) from self._failures.without_secrets(
                error
            )

    def _translate(self, key: str, error: Exception, conditional: bool) -> IcefloeError:
        match error:
            case HttpResponseError(status_code=int() as status):
                code = str(getattr(error, "error_code", None) or "")
                message = str(error.message).partition("\n")[0]
                return self._failures.from_status(
                    status, code, message, key=key, conditional=conditional
                )
            case ClientAuthenticationError():
                return self._failures.denied(key, error)
            # The request was not sent; ServiceResponseError is the one without an answer.
            case ServiceRequestError():
                return self._failures.unreachable(key, error)
            case ValueError():
                return self._failures.other(key, error)
            case _:
                return self._failures.transport(key, error)


class _AzurePages:
    def __init__(self, driver: AzureDriver, prefix: str, start_after: str) -> None:
        self._driver = driver
        self._prefix = prefix
        self._start_after = start_after
        self._token: str | None = None
        self._finished = False

    async def next(self) -> list[ObjectInfo] | None:
        if self._finished:
            return None
        page, self._token = await self._driver.list_page(self._prefix, self._token)
        self._finished = self._token is None
        # Azure cannot start in the middle: what came before is listed again, and dropped.
        return [info for info in page if info.key > self._start_after]


def _version(etag: str) -> Version:
    return Version(etag.strip('"'))


def _condition(version: Version, match: MatchConditions) -> dict[str, Any]:
    return {"etag": f'"{version.token}"', "match_condition": match}


BACKEND = Backend(AzureDriver, IoLoop())
