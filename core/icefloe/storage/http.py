"""Storage on a web server: read-only, from one origin, and never more than was asked for."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html import unescape
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from aiohttp import ClientConnectorError, ClientError, ClientSession
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from icefloe.errors import IcefloeError, NotFoundError, StorageError
from icefloe.storage.bodies import PART, collect, timeouts
from icefloe.storage.failures import Failures
from icefloe.storage.handle import Backend
from icefloe.storage.options import check_options, names_of
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.read_only import ReadOnlyDriver
from icefloe.storage.runners import IoLoop
from icefloe.storage.settings import Settings, secrets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from aiohttp import ClientResponse

REFUSAL = (
    "HTTP is read-only: web servers have no conditional writes, which commits need. Write to the "
    "store behind the server: file://, s3://, gs:// or az://"
)
REDIRECTED = "redirected"
_SAFE = "/!$&'()*+,-.:;=@_~"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_NO_HEAD = frozenset({405, 501})
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"'?#]+)["']""", re.IGNORECASE)
_LONGEST_PAGE = 64 * 2**20
_PAGE = 200
_AT_ONCE = 16


_OPTIONS = names_of(HTTPFileSystem.__init__, ClientSession._request)
_NESTED = {"client_kwargs": names_of(ClientSession.__init__)}


class HttpDriver(ReadOnlyDriver):
    """Takes the options of fsspec's file system for HTTP: `headers`, `client_kwargs`...

    Redirects are followed within the origin only: headers may hold credentials, and an answer from
    elsewhere is not what the URL names.
    """

    refusal = REFUSAL

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.url)
        options = settings.resolve()
        check_options(options, _OPTIONS, settings.url, _NESTED)
        self._headers = dict(options.pop("headers", None) or {})
        self._failures = Failures(settings.url, secrets({**options, "headers": self._headers}))
        self._fs = HTTPFileSystem(**options, skip_instance_cache=True)
        self._arguments = {**self._fs.kwargs, "allow_redirects": False}
        if "timeout" not in (options.get("client_kwargs") or {}):
            self._arguments.setdefault("timeout", timeouts(settings.retries.deadline))

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        data = await self.read_bytes(key)
        version = Version.of(data)
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        async with self._answer("GET", key) as response:
            self._check_status(response, key, {200})
            return await collect(response.content.iter_chunked(PART))

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        async with self._part(key, start, length) as response:
            if response.status == 416:
                return b""
            return await self._body(response, key, start, length)

    @asynccontextmanager
    async def _part(self, key: str, start: int, length: int) -> AsyncIterator[ClientResponse]:
        wanted = {"Range": f"bytes={start}-{start + length - 1}"}
        async with self._answer("GET", key, wanted) as response:
            if response.status != 416:
                self._check_status(response, key, {200, 206})
            yield response

    async def _body(self, response: ClientResponse, key: str, start: int, length: int) -> bytes:
        parts = response.content.iter_chunked(PART)
        if response.status == 200:
            # From a server that ignores ranges.
            return await collect(parts, skip=start, limit=length)
        sent = response.headers.get("Content-Range", "none")
        found = _RANGE.fullmatch(sent)
        if not found or int(found[1]) != start or int(found[2]) >= start + length:
            raise self._failures.short_read(key, start, length, f"{sent} came")
        announced = response.content_length
        # What is announced and fits is read to its end, so that the connection can serve again.
        fits = announced is not None and announced <= length
        return await collect(parts, limit=None if fits else length)

    async def info(self, key: str) -> ObjectInfo:
        for method in ("HEAD", "GET"):
            async with self._answer(method, key) as response:
                if method == "HEAD" and response.status in _NO_HEAD:
                    continue
                self._check_status(response, key, {200})
                modified = _modified(response.headers.get("Last-Modified"))
                return ObjectInfo(key, response.content_length or 0, modified)
        raise AssertionError("GET is always looked at")

    def pages(self, prefix: str, start_after: str | None) -> _HttpPages:
        return _HttpPages(self, prefix, start_after or "")

    async def links(self, folder: str) -> list[str]:
        """Keys in a folder, and folders with their slash, by the page that the server makes of it.

        Raises:
            StorageError: the server shows no such page.
        """
        try:
            async with self._answer("GET", folder) as response:
                self._check_status(response, folder, {200})
                if response.content_type != "text/html":
                    raise StorageError(f"{self._url} does not list folders", kind="no-listing")
                page = await collect(response.content.iter_chunked(PART), limit=_LONGEST_PAGE)
                base = response.url
        except NotFoundError:
            return []
        found = set()
        for link in _LINK.findall(page.decode(errors="replace")):
            target = base.join(URL(unescape(link), encoded=True))
            below = str(target).removeprefix(str(base))
            name, slash, rest = below.partition("/")
            if below != str(target) and name and not rest:
                found.add(folder + unquote(name) + slash)
        return sorted(found)

    @asynccontextmanager
    async def _answer(
        self, method: str, key: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[ClientResponse]:
        url = URL(f"{self._url}/{quote(key, safe=_SAFE)}", encoded=True)
        # Compressed on the way, the bytes would not be those at the offset.
        sent = {**self._headers, "Accept-Encoding": "identity", **(headers or {})}
        with self._translated(key):
            session = await self._fs.set_session()
            for _ in range(_MOST_REDIRECTS + 1):
                async with session.request(
                    method, url, headers=sent, **self._arguments
                ) as response:
                    if response.status not in _REDIRECTS:
                        self._check_encoding(response, key)
                        yield response
                        return
                    url = self._redirected(response, url, key)
        raise StorageError(
            f"{key!r} in {self._url}: more than {_MOST_REDIRECTS} redirects", kind=REDIRECTED
        )

    def _redirected(self, response: ClientResponse, url: URL, key: str) -> URL:
        target = url.join(URL(response.headers.get("Location", "")))
        if target.origin() != url.origin():
            raise StorageError(
                f"{key!r} in {self._url}: the server redirects to another origin, "
                f"{target.scheme}://{target.host}, which is not followed: use a URL there",
                kind=REDIRECTED,
            )
        return target

    def _check_status(self, response: ClientResponse, key: str, good: set[int]) -> None:
        if response.status not in good:
            reason = str(response.reason or "")
            raise self._failures.from_status(response.status, "", reason, key=key)

    def _check_encoding(self, response: ClientResponse, key: str) -> None:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise StorageError(
                f"{key!r} in {self._url}: the server sends it with Content-Encoding {encoding}, so "
                "the bytes are not those of the object",
                kind="content-encoding",
            )

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
        except ValueError as error:
            # A redirect to what is no URL.
            raise self._failures.other(key, error) from self._failures.without_secrets(error)


class _HttpPages:
    """In key order: the pages of folders are read as they are reached."""

    def __init__(self, driver: HttpDriver, prefix: str, start_after: str) -> None:
        self._driver = driver
        self._prefix = prefix
        self._start_after = start_after
        folder, slash, _ = prefix.rpartition("/")
        # The next one last; folders end with a slash, and the root is empty.
        self._waiting = [folder + slash]

    async def next(self) -> list[ObjectInfo] | None:
        while self._waiting:
            first = self._waiting[-1]
            if not first or first.endswith("/"):
                found = await self._driver.links(first)
                # Only now, so that a folder whose page failed is asked for again.
                self._waiting[-1:] = reversed([key for key in found if self._is_wanted(key)])
                continue
            keys = [*takewhile(lambda key: not key.endswith("/"), reversed(self._waiting[-_PAGE:]))]
            page = await self._infos(keys)
            del self._waiting[-len(keys) :]
            if page:
                return page
        return None

    def _is_wanted(self, key: str) -> bool:
        if key.endswith("/"):
            inside = key.startswith(self._prefix) or self._prefix.startswith(key)
            return inside and (key > self._start_after or self._start_after.startswith(key))
        return key.startswith(self._prefix) and key > self._start_after

    async def _infos(self, keys: Sequence[str]) -> list[ObjectInfo]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def info(key: str) -> ObjectInfo | None:
            async with slots:
                try:
                    return await self._driver.info(key)
                except NotFoundError:
                    # Deleted while the listing was under way.
                    return None

        found = await asyncio.gather(*map(info, keys))
        return [each for each in found if each is not None]


def _modified(date: str | None) -> datetime:
    try:
        if date is not None:
            return parsedate_to_datetime(date)
    except ValueError:
        pass
    # Unknown must not look old: garbage collection deletes what is old.
    return datetime.now(UTC)


BACKEND = Backend(HttpDriver, IoLoop(), refuses_writes=REFUSAL)
