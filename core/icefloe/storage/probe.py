"""Does the store keep its promises? Asked once, when a repository is created.

A store that ignores preconditions looks fine until two writers meet, and then loses commits in
silence.
"""

from __future__ import annotations

import uuid
import warnings
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, UnsafeStorageError

if TYPE_CHECKING:
    from icefloe.storage.protocol import Storage, Version


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
    key = f"icefloe-probe-{uuid.uuid4().hex}"
    try:
        _probe(storage, key)
    finally:
        storage.delete([key])


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
