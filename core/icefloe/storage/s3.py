"""Storage in an S3 bucket: by plain requests where the options say all, else through s3fs."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.storage.handle import Backend
from icefloe.storage.runners import IoLoop
from icefloe.storage.s3_direct import DirectDriver
from icefloe.storage.s3_place import Place

if TYPE_CHECKING:
    from icefloe.storage.driver import RemoteDriver
    from icefloe.storage.settings import Settings

if find_spec("s3fs") is None:
    # Told when a storage is opened, though only some of them need it.
    raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")

ENGINE = "engine"
"""The storage option that chooses; it is not for the file system."""
_ENGINES = ("direct", "s3fs")


def connect(settings: Settings) -> RemoteDriver:
    """A driver by the engine that was asked for, or by the one that is faster where both do."""
    engine = settings.options.get(ENGINE)
    if engine not in (None, *_ENGINES):
        raise InvalidInputError(
            f"storage_options of {settings.url}: engine={engine!a}, and there are: "
            f"{', '.join(_ENGINES)}",
            kind="invalid-storage-option",
        )
    rest = {name: value for name, value in settings.options.items() if name != ENGINE}
    settings = replace(settings, options=rest)
    place = None if engine == "s3fs" else Place.of(settings)
    if place is not None:
        return DirectDriver(settings, place)
    if engine == "direct":
        raise InvalidInputError(
            f"storage_options of {settings.url}: engine='direct' takes key and secret (or anon), "
            "token, endpoint_url and region_name, no proxies and no special buckets: leave engine "
            "out",
            kind="invalid-storage-option",
        )
    # Half a second to load.
    from icefloe.storage.s3_fsspec import S3Driver

    return S3Driver(settings)


BACKEND = Backend(connect, IoLoop())
