"""Storage in a Google Cloud Storage bucket, through gcsfs's session: versions are generations."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import ClientConnectorError, ClientError

# The package's default class asks over gRPC what kind of bucket it has, and stalls where nobody
# answers.
from gcsfs.core import GCSFileSystem
from google.auth.exceptions import GoogleAuthError, TransportError
from yarl import URL

from icefloe.errors import NotFoundError, StorageError
from icefloe.storage.bodies import PART, collect, timeouts
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

    from aiohttp import ClientResponse
    from multidict import CIMultiDictProxy

type _Answer = tuple[int, CIMultiDictProxy[str], bytes]

_NO_QUERY: Mapping[str, str] = {}


class GcsDriver:
    delete_batch = 1

    def __init__(self, settings: Settings) -> None:
        options = settings.resolve()
        check_options(options, names_of(GCSFileSystem.__init__), settings.url)
        bucket, _, prefix = settings.url.partition("://")[2].partition("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._failures = Failures(settings.url, secrets(options))
        self._deadline = settings.retries.deadline
        self._fs = GCSFileSystem(**options, skip_instance_cache=True, use_listings_cache=False)

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        condition = {} if known is None else {"ifGenerationNotMatch": known.token}
        status, headers, data = await self._request("GET", key, {"alt": "media"} | condition)
        if status == 304:
            return None
        self._check(key, status, data)
        version = Version(headers["x-goog-generation"])
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        status, _, data = await self._request("GET", key, {"alt": "media"})
        self._check(key, status, data)
        return data

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        part = start, length
        status, _, data = await self._request("GET", key, {"alt": "media"}, part=part)
        if status == 416:
            return b""
        self._check(key, status, data)
        return data

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        conditions = {}
        if condition is Require.ABSENCE:
            conditions["ifGenerationMatch"] = "0"
        elif isinstance(condition, Version):
            conditions["ifGenerationMatch"] = condition.token
        # Multipart, because it carries the metadata in the same request; a simple upload cannot.
        boundary = uuid.uuid4().hex
        resource = json.dumps({"name": self._prefix + key, "metadata": dict(metadata)})
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                resource.encode(),
                f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        status, _, answer = await self._send(
            "POST",
            f"{self._fs._location}/upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            key,
            {"uploadType": "multipart"} | conditions,
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            body=body,
        )
        self._check(key, status, answer, conditional=bool(conditions))
        return Version(str(json.loads(answer)["generation"]))

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        place = f"{self._objects}/{self._name(source)}/rewriteTo/b/{quote(self._bucket, safe='')}/o"
        parameters = {} if expected is None else {"ifSourceGenerationMatch": expected.token}
        while True:
            status, _, answer = await self._send(
                "POST", f"{place}/{self._name(target)}", source, parameters
            )
            self._check(source, status, answer)
            # A large object is rewritten in several calls.
            progress = json.loads(answer)
            if progress.get("done", True):
                return
            parameters["rewriteToken"] = progress["rewriteToken"]

    def pages(self, prefix: str, start_after: str | None) -> _GcsPages:
        return _GcsPages(self, prefix, start_after)

    async def list_page(
        self, prefix: str, place: dict[str, str]
    ) -> tuple[list[ObjectInfo], str | None]:
        """One page, and the token of the next."""
        status, _, answer = await self._send(
            "GET",
            self._objects,
            prefix,
            {"prefix": self._prefix + prefix, "maxResults": "1000"} | place,
        )
        self._check(prefix, status, answer)
        listing = json.loads(answer)
        skip = len(self._prefix)
        page = [_info(item["name"][skip:], item) for item in listing.get("items", ())]
        return page, listing.get("nextPageToken")

    def full_key(self, key: str) -> str:
        return self._prefix + key

    async def info(self, key: str) -> ObjectInfo:
        return (await self.head(key)).info

    async def head(self, key: str) -> Head:
        status, _, answer = await self._request("GET", key)
        self._check(key, status, answer)
        resource = json.loads(answer)
        metadata = {name.lower(): value for name, value in resource.get("metadata", {}).items()}
        return Head(_info(key, resource), Version(str(resource["generation"])), metadata)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        (key,) = keys
        status, _, answer = await self._request("DELETE", key)
        try:
            self._check(key, status, answer)
        except NotFoundError:
            return {}
        except StorageError as error:
            # Held by a policy, say: the other keys are deleted all the same.
            if error.kind in RETRYABLE:
                raise
            return {key: str(error)}
        return {}

    @property
    def _objects(self) -> str:
        return f"{self._fs.base}b/{quote(self._bucket, safe='')}/o"

    def _name(self, key: str) -> str:
        return quote(self._prefix + key, safe="")

    async def _request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] = _NO_QUERY,
        *,
        part: tuple[int, int] | None = None,
    ) -> _Answer:
        url = f"{self._objects}/{self._name(key)}"
        return await self._send(method, url, key, query, part=part)

    async def _send(
        self,
        method: str,
        url: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        part: tuple[int, int] | None = None,
    ) -> _Answer:
        """Status, headers and body; of a `part` (start and length) no more, whatever comes."""
        if part is not None:
            start, length = part
            headers = {**(headers or {}), "Range": f"bytes={start}-{start + length - 1}"}
        # Not through gcsfs's own call: it retries by itself, and hides the status.
        fs: Any = self._fs
        with self._translated(key):
            await fs._set_session()
            async with fs.session.request(
                method,
                URL(url, encoded=True),
                params=fs._get_params(query),
                headers=fs._get_headers(headers),
                data=body,
                timeout=fs.requests_timeout or timeouts(self._deadline, sends=body is not None),
            ) as response:
                return response.status, response.headers, await _body(response, part)

    def _check(self, key: str, status: int, answer: bytes, *, conditional: bool = False) -> None:
        if status >= 300:
            code, message = _failure(answer)
            raise self._failures.from_status(
                status, code, message, key=key, conditional=conditional
            )

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (ClientConnectorError, TransportError) as error:
            raise self._failures.unreachable(key, error) from self._failures.without_secrets(error)
        except GoogleAuthError as error:
            raise self._failures.denied(key, error) from self._failures.without_secrets(error)
        except (ClientError, OSError) as error:
            raise self._failures.transport(key, error) from self._failures.without_secrets(error)


class _GcsPages:
    def __init__(self, driver: GcsDriver, prefix: str, start_after: str | None) -> None:
        self._driver = driver
        self._prefix = prefix
        self._start_after = start_after
        # GCS starts at this name, not after it.
        self._place = {} if start_after is None else {"startOffset": driver.full_key(start_after)}
        self._finished = False

    async def next(self) -> list[ObjectInfo] | None:
        if self._finished:
            return None
        page, token = await self._driver.list_page(self._prefix, self._place)
        self._finished = token is None
        self._place["pageToken"] = token or ""
        return [info for info in page if info.key != self._start_after]


async def _body(response: ClientResponse, part: tuple[int, int] | None) -> bytes:
    parts = response.content.iter_chunked(PART)
    if part is None or response.status not in (200, 206):
        return await collect(parts)
    start, length = part
    if response.status == 200:
        # Some servers send the whole object, whatever the range.
        return await collect(parts, skip=start, limit=length)
    announced = response.content_length
    # What is announced and fits is read to its end, so that the connection can serve again.
    fits = announced is not None and announced <= length
    return await collect(parts, limit=None if fits else length)


def _info(key: str, resource: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, int(resource["size"]), datetime.fromisoformat(resource["updated"]))


def _failure(answer: bytes) -> tuple[str, str]:
    """Google's reason and message, where the answer has them."""
    try:
        error = json.loads(answer)["error"]
        return str(error["errors"][0]["reason"]), str(error["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return "", answer[:200].decode(errors="replace")


BACKEND = Backend(GcsDriver, IoLoop())
