"""Keys to bytes, on any store: see `protocol.Storage`."""

from icefloe.storage.memory import MemoryStorage
from icefloe.storage.open import open_storage
from icefloe.storage.probe import (
    PROBE_PREFIX,
    UnsafeStorageWarning,
    probe_preconditions,
    store_time,
)
from icefloe.storage.protocol import (
    DeleteResult,
    Object,
    ObjectInfo,
    ObjectRange,
    Storage,
    Version,
)
from icefloe.storage.retry import Retries
from icefloe.storage.settings import Credentials

__all__ = [
    "PROBE_PREFIX",
    "Credentials",
    "DeleteResult",
    "MemoryStorage",
    "Object",
    "ObjectInfo",
    "ObjectRange",
    "Retries",
    "Storage",
    "UnsafeStorageWarning",
    "Version",
    "open_storage",
    "probe_preconditions",
    "store_time",
]
