"""Compare-and-swap that survives lost answers.

A conditional PUT whose first answer is lost is sent again, by the HTTP client if not by us, and the
second answer is "precondition failed" although our own write is what tripped it. So every such
write carries a unique id in its metadata; when the outcome is in doubt the object is read back and
the ids compared. Sending again is safe for the same reason: the condition lets one of the copies
in, and the id is the same on all.

One case looks like a lost race and is reported as one: our write landed, the answer was lost, and
another writer replaced our object before we looked. Callers re-read after a ConflictError and will
find their change in place.
"""

from __future__ import annotations

import asyncio
import uuid
from enum import Enum
from typing import TYPE_CHECKING

from icefloe.errors import (
    ConflictError,
    IcefloeError,
    NotFoundError,
    StorageError,
    UnknownOutcomeError,
)
from icefloe.storage.deadline import Deadline
from icefloe.storage.driver import Condition, Driver, RemoteDriver, Require
from icefloe.storage.protocol import Version
from icefloe.storage.retry import AMBIGUOUS, Retries

if TYPE_CHECKING:
    from collections.abc import Mapping

WRITE_ID = "icechunkwriteid"
"""Name of the metadata entry; the official clients write and compare the same one."""


_SENDING = 3 / 4
"""Of the deadline; the rest is left to look whether the write landed."""


class _Elsewhere(Enum):
    UNCHANGED = "unchanged"
    CHANGED = "changed"


async def write_if(
    driver: Driver,
    retries: Retries,
    key: str,
    data: bytes,
    *,
    expected: Version | None,
    metadata: Mapping[str, str],
) -> Version:
    """Write if the object is at `expected` (None: absent); `Storage.put_if` says what holds."""
    condition = Require.ABSENCE if expected is None else expected
    if isinstance(driver, RemoteDriver):
        return await _Attempt(driver, retries, key, data, condition, metadata).settle()
    return await driver.write(key, data, condition=condition, metadata=metadata)


class _Attempt:
    """One logical write: any number of requests under one id, and one deadline."""

    def __init__(
        self,
        driver: RemoteDriver,
        retries: Retries,
        key: str,
        data: bytes,
        condition: Condition,
        metadata: Mapping[str, str],
    ) -> None:
        self._driver = driver
        self._retries = retries
        self._key = key
        self._data = data
        self._condition = condition
        self._id = uuid.uuid4().hex
        self._metadata = {**metadata, WRITE_ID: self._id}
        self._in_doubt = False
        self._deadline = Deadline(retries.deadline, sends=len(data))

    async def settle(self) -> Version:
        until = self._deadline.sooner(_SENDING)
        try:
            return await self._retries.run(self._send, what=repr(self._key), until=until)
        except ConflictError as tripped:
            return await self._explain(tripped)
        except StorageError as failed:
            return await self._explain(failed)

    async def _send(self) -> Version:
        try:
            return await self._driver.write(
                self._key, self._data, condition=self._condition, metadata=self._metadata
            )
        except StorageError as error:
            self._in_doubt = self._in_doubt or error.kind in AMBIGUOUS
            raise
        except asyncio.CancelledError:
            self._in_doubt = True
            raise

    async def _explain(self, failure: IcefloeError) -> Version:
        """Our version if the write landed after all; else raise what is known."""
        tripped = isinstance(failure, ConflictError)
        try:
            found = await self._retries.run(self._look, what=repr(self._key), until=self._deadline)
        except StorageError as error:
            if tripped or self._in_doubt:
                text = (
                    f"{failure} - and reading it back failed, so the write may have landed: {error}"
                )
                raise UnknownOutcomeError(text) from error
            raise failure from failure.__cause__
        if isinstance(found, Version):
            return found
        if tripped:
            raise failure from failure.__cause__
        if found is _Elsewhere.CHANGED:
            text = f"{self._key!r} was written by another while our write failed: {failure}"
            raise ConflictError(text, kind="precondition-failed") from failure
        if self._in_doubt:
            text = (
                f"{failure} - the write has not landed yet, but a request may still be on its way"
            )
            raise UnknownOutcomeError(text) from failure
        raise failure from failure.__cause__

    async def _look(self) -> Version | _Elsewhere:
        try:
            head = await self._driver.head(self._key)
        except NotFoundError:
            absent = self._condition is Require.ABSENCE
            return _Elsewhere.UNCHANGED if absent else _Elsewhere.CHANGED
        found = head.metadata.get(WRITE_ID)
        if found == self._id:
            return head.version
        # Some stores drop metadata. Equal bytes then are our write, or one that nobody can tell
        # from it.
        if found is None and head.info.size == len(self._data):
            stored = await self._driver.read(self._key, known=None)
            if stored is not None and stored.data == self._data:
                return stored.version
        return _Elsewhere.UNCHANGED if head.version == self._condition else _Elsewhere.CHANGED
