"""Virtual chunks: bytes in somebody else's objects, described, found, and read with care."""

from icefloe.virtual.containers import Containers
from icefloe.virtual.locations import normalize, normalize_all
from icefloe.virtual.reader import VirtualReader
from icefloe.virtual.spec import VirtualChunkSpec

__all__ = ["Containers", "VirtualChunkSpec", "VirtualReader", "normalize", "normalize_all"]
