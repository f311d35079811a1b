"""Storage in an S3 bucket, through s3fs: whatever botocore knows of keys, places and proxies."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import s3fs
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from aiohttp import ClientConnectorError
from aiohttp import ClientError as HttpError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)

from icefloe.errors import IcefloeError, UnsafeStorageError
from icefloe.storage.bodies import PART, collect
from icefloe.storage.driver import Condition, Head, Require
from icefloe.storage.failures import Failures
from icefloe.storage.options import check_options, names_of
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.settings import Settings, secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_OPTIONS = names_of(s3fs.S3FileSystem.__init__, AioSession.__init__)
_NESTED = {
    "client_kwargs": names_of(AioSession._create_client),
    "config_kwargs": names_of(AioConfig.__init__) | set(AioConfig.OPTION_DEFAULTS),
}


class S3Driver:
    delete_batch = 1000

    def __init__(self, settings: Settings) -> None:
        options = settings.resolve()
        check_options(options, _OPTIONS, settings.url, _NESTED)
        bucket, _, prefix = settings.url.partition("://")[2].partition("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._failures = Failures(settings.url, secrets(options))
        # s3fs opens as many connections as its pool allows: 10 unless told.
        config = {
            "max_pool_connections": settings.concurrency,
            "retries": {"total_max_attempts": 1},
        }
        options["config_kwargs"] = config | options.get("config_kwargs", {})
        # A cached instance would be shared with other code, and its listings go stale.
        self._fs = s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)
        # Retrying is done above, where a lost answer is understood.
        self._fs.retries = 1
        self._knows_conditions = False

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        condition = {} if known is None else {"IfNoneMatch": known.token}
        with self._translated(key):
            try:
                response = await self._call("get_object", key, **condition)
            except OSError as error:
                if _status(error) == 304:
                    return None
                raise
            data = await _read_body(response)
        version = _version(response)
        # Not every server heeds the condition.
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        with self._translated(key):
            return await _read_body(await self._call("get_object", key))

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        wanted = f"bytes={start}-{start + length - 1}"
        with self._translated(key):
            try:
                response = await self._call("get_object", key, Range=wanted)
            except OSError as error:
                if _status(error) == 416:
                    return b""
                raise
            return await read_part(response, start, length)

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        conditions = {}
        if condition is Require.ABSENCE:
            conditions["IfNoneMatch"] = "*"
        elif isinstance(condition, Version):
            conditions["IfMatch"] = condition.token
        with self._translated(key, conditional=bool(conditions)):
            response = await self._call(
                "put_object", key, Body=data, Metadata=dict(metadata), **conditions
            )
        return _version(response)

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        condition = {} if expected is None else {"CopySourceIfMatch": expected.token}
        origin = {"Bucket": self._bucket, "Key": self._prefix + source}
        with self._translated(source):
            await self._call("copy_object", target, CopySource=origin, **condition)

    def pages(self, prefix: str, start_after: str | None) -> _S3Pages:
        return _S3Pages(self, prefix, start_after)

    async def list_page(self, prefix: str, **place: str) -> tuple[list[ObjectInfo], str | None]:
        """One page, and the token of the next."""
        with self._translated(prefix):
            response = await self._call_s3(
                "list_objects_v2", Bucket=self._bucket, Prefix=self._prefix + prefix, **place
            )
        skip = len(self._prefix)
        page = [
            ObjectInfo(found["Key"][skip:], found["Size"], found["LastModified"])
            for found in response.get("Contents", ())
        ]
        return page, response.get("NextContinuationToken")

    def full_key(self, key: str) -> str:
        return self._prefix + key

    async def info(self, key: str) -> ObjectInfo:
        return (await self.head(key)).info

    async def head(self, key: str) -> Head:
        with self._translated(key):
            response = await self._call("head_object", key)
        info = ObjectInfo(key, response["ContentLength"], response["LastModified"])
        metadata = {name.lower(): value for name, value in response["Metadata"].items()}
        return Head(info, _version(response), metadata)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        objects = [{"Key": self._prefix + key} for key in keys]
        with self._translated(keys[0]):
            response = await self._call_s3(
                "delete_objects", Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
            )
        return {
            failed["Key"][len(self._prefix) :]: f"{failed.get('Code')}: {failed.get('Message')}"
            for failed in response.get("Errors", ())
            if failed.get("Code") != "NoSuchKey"
        }

    async def _call(self, method: str, key: str, **arguments: Any) -> dict[str, Any]:
        return await self._call_s3(method, Bucket=self._bucket, Key=self._prefix + key, **arguments)

    async def _call_s3(self, method: str, **arguments: Any) -> dict[str, Any]:
        if not self._knows_conditions:
            await self._check_client()
        response: dict[str, Any] = await self._fs._call_s3(method, **arguments)
        return response

    async def _check_client(self) -> None:
        # s3fs drops arguments that botocore does not know: an old one would write unconditionally.
        client = await self._fs.set_session()
        known = client.meta.service_model.operation_model("PutObject").input_shape.members
        if not {"IfMatch", "IfNoneMatch"} <= set(known):
            raise UnsafeStorageError("the installed botocore has no conditional writes: upgrade it")
        self._knows_conditions = True

    @contextmanager
    def _translated(self, key: str, *, conditional: bool = False) -> Iterator[None]:
        try:
            yield
        except (OSError, HttpError, BotoCoreError) as error:
            raise self._translate(key, error, conditional) from self._failures.without_secrets(
                error
            )

    def _translate(self, key: str, error: Exception, conditional: bool) -> IcefloeError:
        if answer := _answer(error):
            return self._failures.from_status(
                answer.status, answer.code, answer.message, key=key, conditional=conditional
            )
        match error:
            case EndpointConnectionError() | ConnectTimeoutError() | ClientConnectorError():
                return self._failures.unreachable(key, error)
            case NoCredentialsError() | PartialCredentialsError():
                return self._failures.denied(key, error)
            case HTTPClientError() | HttpError() | OSError() | IncompleteReadError():
                return self._failures.transport(key, error)
            case _:
                return self._failures.other(key, error)


class _S3Pages:
    def __init__(self, driver: S3Driver, prefix: str, start_after: str | None) -> None:
        self._driver = driver
        self._prefix = prefix
        self._place = {} if start_after is None else {"StartAfter": driver.full_key(start_after)}
        self._finished = False

    async def next(self) -> list[ObjectInfo] | None:
        if self._finished:
            return None
        page, token = await self._driver.list_page(self._prefix, **self._place)
        self._finished = token is None
        self._place = {"ContinuationToken": token or ""}
        return page


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    code: str
    message: str


def _answer(error: BaseException) -> _Answer | None:
    """What the server said; None if it said nothing. s3fs keeps the original as the cause."""
    original = error.__cause__ if error.__cause__ is not None else error
    if not isinstance(original, ClientError):
        return None
    response = original.response
    said = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _Answer(status, str(said.get("Code", "")), str(said.get("Message", "")))


def _status(error: BaseException) -> int | None:
    answer = _answer(error)
    return answer.status if answer else None


async def _read_body(response: Mapping[str, Any]) -> bytes:
    async with response["Body"] as body:
        return await collect(body.iter_chunks(PART))


async def read_part(response: Mapping[str, Any], start: int, length: int) -> bytes:
    """The range that was asked for; no more is read, whatever the server sends."""
    # Some servers send the whole object, whatever the range.
    whole = "ContentRange" not in response
    async with response["Body"] as body:
        skip = start if whole else 0
        # What is announced and fits is read to its end, so that the connection can serve again.
        fits = not whole and (response.get("ContentLength") or length + 1) <= length
        limit = None if fits else length
        return await collect(body.iter_chunks(PART), skip=skip, limit=limit)


def _version(response: Mapping[str, Any]) -> Version:
    # Some servers accept a tag in If-Match only as it is stored: without quotes.
    return Version(response["ETag"].strip('"'))
