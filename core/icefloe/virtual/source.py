"""What reads from one kind of store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.config import ObjectStoreConfig
from icefloe.errors import InvalidInputError
from icefloe.storage.urls import refuse_credentials

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.runners import Runner
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum


class Source(Protocol):
    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        """At most `length` bytes, of an object that answers to the checksum.

        Check and read are one: bytes of a changed object are never returned. Raises what storage
        drivers raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """How to reach a kind of store: `connect` does not block, `runner` runs its coroutines."""

    connect: Callable[[VirtualChunkContainer, Settings], Source]
    runner: Runner


# The module of each kind of store, and the extra that installs what it needs.
_MODULES: dict[type, tuple[str, str]] = {
    ObjectStoreConfig.LocalFileSystem: ("local", ""),
    ObjectStoreConfig.Http: ("http", "s3"),
    ObjectStoreConfig.S3: ("s3", "s3"),
    ObjectStoreConfig.S3Compatible: ("s3", "s3"),
    ObjectStoreConfig.Tigris: ("s3", "s3"),
    ObjectStoreConfig.Gcs: ("gcs", "gcs"),
    ObjectStoreConfig.Azure: ("azure", "azure"),
}


def kind_of(container: VirtualChunkContainer) -> Kind:
    """Load what reads this container.

    Raises:
        InvalidInputError: nothing does, or a package is missing.
    """
    if type(container.store) not in _MODULES:
        raise InvalidInputError(
            f"container {container.url_prefix!r}: nothing here reads its store {container.store!r}",
            kind="invalid-virtual-chunk-container",
        )
    module, extra = _MODULES[type(container.store)]
    # Most of these modules need a package that not everyone installs.
    try:
        kind: Kind = import_module(f"icefloe.virtual.{module}").KIND
    except ImportError as error:
        raise InvalidInputError(
            f"container {container.url_prefix!r} needs the package {error.name}: "
            f"pip install 'icefloe[{extra}]'",
            kind="missing-dependency",
        ) from error
    return kind


def rooted(settings: Settings, container: VirtualChunkContainer, scheme: str) -> Settings:
    """The settings for the container's whole bucket: keys of locations count from there."""
    # Another client may have written it: what is connected to is shown in messages.
    refuse_credentials(container.url_prefix)
    bucket = container.url_prefix.partition("://")[2].partition("/")[0]
    return replace(settings, url=f"{scheme}://{bucket}")


def with_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """The settings with the container's options, where the reader gave none of their own."""
    merged = {**options, **settings.options}
    for name, value in options.items():
        given = settings.options.get(name)
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            merged[name] = {**value, **given}
    return replace(settings, options=merged)
