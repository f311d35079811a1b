"""Asking the store, with an object of our own: does it honour preconditions, what time is it there?

A store that ignores preconditions looks fine until two writers meet, and then loses commits in
silence. A clock that is off makes what is being written look old.
"""

from __future__ import annotations

import uuid
import warnings
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, UnsafeStorageError

if TYPE_CHECKING:
    from datetime import datetime

    from icefloe.storage.protocol import Storage, Version

PROBE_PREFIX = "icefloe-probe-"


class UnsafeStorageWarning(UserWarning):
    """Commits may be lost on this store, and the user accepted that."""


def probe_preconditions(storage: Storage) -> None:
    """Try conditional writes on a key of our own, which is deleted again.

    Raises:
        UnsafeStorageError: the store ignores a precondition, or refuses one that holds.
    """
    if storage.unsafe_allow_no_preconditions:
        warnings.warn(
            f"{storage.url} was not asked whether it honours preconditions "
            "(unsafe_allow_no_preconditions=True): concurrent commits may be lost in silence",
            UnsafeStorageWarning,
            stacklevel=2,
        )
        return
    key = _key()
    try:
        _probe(storage, key)
    finally:
        storage.delete([key])


def store_time(storage: Storage) -> datetime:
    """What the store's clock says now: the time that it gives an object written for this."""
    key = _key()
    try:
        storage.put(key, b"")
        return storage.info(key).modified
    finally:
        storage.delete([key])


def _key() -> str:
    return f"{PROBE_PREFIX}{uuid.uuid4().hex}"


def _probe(storage: Storage, key: str) -> None:
    first = _write(storage, key, b"first", None)
    if first is None:
        raise _unsafe(storage, "refuses to create an object that does not exist (If-None-Match: *)")
    if _write(storage, key, b"second", None) is not None:
        raise _unsafe(storage, "overwrites an object that must not exist (If-None-Match: *)")
    second = _write(storage, key, b"third", first)
    if second is None:
        raise _unsafe(storage, "refuses to replace an object at its present version (If-Match)")
    if _write(storage, key, b"fourth", first) is not None:
        raise _unsafe(storage, "replaces an object that has changed since it was read (If-Match)")


def _write(storage: Storage, key: str, data: bytes, expected: Version | None) -> Version | None:
    try:
        return storage.put_if(key, data, expected=expected)
    except ConflictError:
        return None


def _unsafe(storage: Storage, fault: str) -> UnsafeStorageError:
    return UnsafeStorageError(
        f"{storage.url} cannot keep commits safe: the store {fault}. Use a store with conditional "
        "writes (AWS S3, GCS, Azure, SeaweedFS, Ceph, a local file system). Or, at your own risk "
        "and with one writer at a time, pass unsafe_allow_no_preconditions=True."
    )
