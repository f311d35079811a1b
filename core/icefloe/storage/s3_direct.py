"""Storage in an S3 bucket by plain requests: what a small commit asks for costs little.

A client for all of AWS computes for a millisecond at each request, and takes half a second to load.
For a bucket whose place and keys the options tell, five verbs of HTTP and a signature are enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import weakref
from base64 import b64encode
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientSession,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from yarl import URL

from icefloe.errors import StorageError
from icefloe.storage import s3_xml
from icefloe.storage.bodies import PART, collect, timeouts
from icefloe.storage.driver import Condition, Head, Require
from icefloe.storage.failures import Failures
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.settings import secrets
from icefloe.storage.signing import Request, quoted_path, signed_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from aiohttp import ClientResponse

    from icefloe.storage.s3_place import Place
    from icefloe.storage.settings import Settings

_IDLE = 15.0
"""Seconds for which a connection is kept: servers and routers drop them, some after 20."""
_META = "x-amz-meta-"
_REDIRECTS = frozenset({301, 307, 308})
_LONGEST_FAULT = 2**16
_FINAL = frozenset({"NoSuchKey"})


class DirectDriver:
    delete_batch = 1000

    def __init__(self, settings: Settings, place: Place) -> None:
        prefix = settings.url.partition("://")[2].partition("/")[2]
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = place
        self._failures = Failures(settings.url, secrets(settings.resolve()))
        self._concurrency = settings.concurrency
        self._deadline = settings.retries.deadline
        self._session: ClientSession | None = None

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        headers = {} if known is None else {"if-none-match": known.token}
        async with self._answer("GET", key, headers=headers, accepts={200, 304}) as answer:
            if answer.status == 304:
                return None
            data = await _body(answer)
        version = _version(answer)
        # Not every server heeds the condition.
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        async with self._answer("GET", key) as answer:
            return await _body(answer)

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        headers = {"range": f"bytes={start}-{start + length - 1}"}
        async with self._answer("GET", key, headers=headers, accepts={200, 206, 416}) as answer:
            if answer.status == 416:
                return b""
            # Some servers send the whole object, whatever the range.
            whole = answer.status == 200 and "Content-Range" not in answer.headers
            skip = start if whole else 0
            fits = not whole and (answer.content_length or length + 1) <= length
            parts = answer.content.iter_chunked(PART)
            return await collect(parts, skip=skip, limit=None if fits else length)

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        headers = {f"{_META}{name}": value for name, value in metadata.items()}
        headers["content-type"] = "application/octet-stream"
        if condition is Require.ABSENCE:
            headers["if-none-match"] = "*"
        elif isinstance(condition, Version):
            headers["if-match"] = condition.token
        conditional = condition is not Require.ANYTHING
        async with self._answer(
            "PUT", key, headers=headers, body=data, conditional=conditional
        ) as answer:
            return _version(answer)

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        origin = quoted_path(f"/{self._place.bucket}/{self._prefix}{source}")
        headers = {"x-amz-copy-source": origin}
        if expected is not None:
            headers["x-amz-copy-source-if-match"] = expected.token
        async with self._answer("PUT", target, headers=headers, told=source) as answer:
            # The server may have begun to answer before the copy failed.
            fault = s3_xml.fault(await collect(answer.content.iter_chunked(PART)))
        if fault.code:
            raise self._failures.from_status(500, fault.code, fault.message, key=source)

    def pages(self, prefix: str, start_after: str | None) -> _Pages:
        return _Pages(self, prefix, start_after)

    async def list_page(self, prefix: str, place: Mapping[str, str]) -> s3_xml.Listing:
        query = {
            "list-type": "2",
            "encoding-type": "url",
            "prefix": self._prefix + prefix,
            **place,
        }
        async with self._answer("GET", None, query=query, told=prefix) as answer:
            body = await _body(answer)
        with self._understood(prefix):
            return s3_xml.listing(body, len(self._prefix))

    def full_key(self, key: str) -> str:
        return self._prefix + key

    async def info(self, key: str) -> ObjectInfo:
        return (await self.head(key)).info

    async def head(self, key: str) -> Head:
        async with self._answer("HEAD", key) as answer:
            headers = answer.headers
        with self._understood(key):
            modified = parsedate_to_datetime(headers["Last-Modified"]).astimezone(UTC)
            info = ObjectInfo(key, int(headers["Content-Length"]), modified)
        metadata = {
            name.lower().removeprefix(_META): value
            for name, value in headers.items()
            if name.lower().startswith(_META)
        }
        return Head(info, _version(answer), metadata)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        body = s3_xml.deletion([self._prefix + key for key in keys])
        digest = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": digest, "content-type": "application/xml"}
        async with self._answer(
            "POST", None, query={"delete": ""}, headers=headers, body=body, told=keys[0]
        ) as answer:
            data = await _body(answer)
        with self._understood(keys[0]):
            failed = s3_xml.deletion_failures(data)
        return {
            key[len(self._prefix) :]: f"{fault.code}: {fault.message}"
            for key, fault in failed.items()
            if fault.code not in _FINAL
        }

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        key: str | None,
        *,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        accepts: frozenset[int] | set[int] = frozenset({200, 204}),
        conditional: bool = False,
        told: str | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """What the server says, if it is among what the caller accepts.

        Args:
            method: of HTTP.
            key: below the prefix; None asks the bucket.
            query: unquoted.
            headers: to send, signed.
            body: to send.
            accepts: statuses of answers.
            conditional: whether a 404 or 409 means that a condition tripped.
            told: the key to name in errors, where that is another one.
        """
        shown = key if told is None else told
        for is_last in (False, True):
            with self._translated(shown or ""):
                async with self._sent(method, key, query, headers, body) as answer:
                    if answer.status in accepts:
                        yield answer
                        return
                    text = await collect(answer.content.iter_chunked(PART), limit=_LONGEST_FAULT)
            fault = s3_xml.fault(text)
            region = answer.headers.get("x-amz-bucket-region") or fault.region
            if is_last or not region or region == self._place.region:
                raise self._failures.from_status(
                    answer.status,
                    fault.code or ("redirected" if answer.status in _REDIRECTS else ""),
                    fault.message,
                    key=shown or "",
                    conditional=conditional,
                )
            # Whoever does not know where a bucket is asks elsewhere once, and is told.
            self._place = self._place.in_region(region)

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        key: str | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> AsyncIterator[ClientResponse]:
        scheme, host, root = self._place.root()
        path = root if key is None else f"{root}/{self._prefix}{key}"
        request = Request(method, host, quoted_path(path) or "/", query, headers, body)
        signed = signed_headers(request, self._place.keys, self._place.region, datetime.now(UTC))
        text = request.query_string()
        url = URL(f"{scheme}://{host}{request.path}{'?' if text else ''}{text}", encoded=True)
        async with self._client().request(
            method,
            url,
            headers=signed,
            data=body if method in {"PUT", "POST"} else None,
            allow_redirects=False,
            timeout=timeouts(self._deadline, sends=bool(body)),
        ) as answer:
            yield answer

    def _client(self) -> ClientSession:
        if self._session is None:
            loop = asyncio.get_running_loop()
            self._session = ClientSession(
                connector=TCPConnector(
                    limit=self._concurrency, keepalive_timeout=_IDLE, ssl=_tls()
                ),
                cookie_jar=DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                skip_auto_headers=("Content-Type",),
            )
            weakref.finalize(self, _close, loop, self._session)
        return self._session

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise self._failures.unreachable(key, error) from self._shown(error)
        except (ClientError, OSError) as error:
            raise self._failures.transport(key, error) from self._shown(error)

    @contextmanager
    def _understood(self, key: str) -> Iterator[None]:
        """An answer that is not what S3 says: a server that is none, or a proxy's page."""
        try:
            yield
        except (ValueError, KeyError) as error:
            raise self._failures.other(key, error) from self._shown(error)

    def _shown(self, error: BaseException) -> BaseException | None:
        return self._failures.without_secrets(error)


class _Pages:
    def __init__(self, driver: DirectDriver, prefix: str, start_after: str | None) -> None:
        self._driver = driver
        self._prefix = prefix
        self._place = {} if start_after is None else {"start-after": driver.full_key(start_after)}
        self._finished = False

    async def next(self) -> list[ObjectInfo] | None:
        if self._finished:
            return None
        page = await self._driver.list_page(self._prefix, self._place)
        if page.next == "":
            raise StorageError("a listing goes on, and does not say where", kind="no-listing")
        self._finished = page.next is None
        self._place = {"continuation-token": page.next or ""}
        return page.objects


async def _body(answer: ClientResponse) -> bytes:
    return await collect(answer.content.iter_chunked(PART))


def _version(answer: ClientResponse) -> Version:
    # Some servers accept a tag in If-Match only as it is stored: without quotes.
    tag = answer.headers.get("ETag", "").strip('"')
    if not tag:
        raise StorageError(
            "the store sent no ETag, which tells one state of an object from another"
        )
    return Version(tag)


def _tls() -> Any:
    """Checks servers' certificates by the list that Python packages share, if it is there."""
    try:
        import certifi
    except ImportError:
        return True
    return ssl.create_default_context(cafile=certifi.where())


def _close(loop: asyncio.AbstractEventLoop, session: ClientSession) -> None:
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(session.close(), loop)
