"""icefloe: the Icechunk format in pure Python. See `Repository`."""

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
    ThrottledError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from icefloe.repository import Repository, SnapshotInfo
from icefloe.session import Session
from icefloe.storage import MemoryStorage, Retries, Storage, open_storage
from icefloe.version import __version__

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "FormatError",
    "IcefloeError",
    "InternalError",
    "InvalidInputError",
    "MemoryStorage",
    "NotFoundError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "Repository",
    "Retries",
    "Session",
    "SessionStateError",
    "SnapshotInfo",
    "Storage",
    "StorageError",
    "ThrottledError",
    "UnknownOutcomeError",
    "UnsafeStorageError",
    "__version__",
    "open_storage",
]
