"""From a URL to a storage handle: the scheme picks the backend."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.storage import local, memory
from icefloe.storage.handle import Backend, ObjectStorage
from icefloe.storage.keys import is_unicode
from icefloe.storage.settings import Credentials, Settings, with_deadline
from icefloe.storage.urls import refuse_credentials, refuse_in_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage.protocol import Storage
    from icefloe.storage.retry import Retries

# Scheme to its module (and extra) and to the one spelling that URLs are shown in.
_CLOUDS = {
    "s3": ("s3", "s3"),
    "s3a": ("s3", "s3"),
    "gs": ("gcs", "gs"),
    "gcs": ("gcs", "gs"),
    "az": ("azure", "az"),
    "abfs": ("azure", "az"),
    "abfss": ("azure", "az"),
}


_WEB = frozenset({"http", "https"})


def open_storage(
    url: str | os.PathLike[str] | Storage,
    storage_options: Mapping[str, Any] | None = None,
    *,
    credentials: Credentials | None = None,
    read_only: bool = False,
    retries: Retries | None = None,
    concurrency: int = 64,
    unsafe_allow_no_preconditions: bool = False,
) -> Storage:
    """A handle on the store at `url`; nothing is read or written yet.

    Args:
        url: a path, or `file://`, `memory://`, `s3://`, `gs://`, `az://` or any URL that fsspec
            reads; the last kind is read-only. A storage is returned as it is.
        storage_options: what the scheme's fsspec file system takes (`key`, `endpoint_url`, ...);
            and `deadline`, which goes over that of `retries`.
        credentials: called for secret options whenever a connection is made. Secrets are left out
            of pickles;
            an importable function goes along by name, and is called again where the pickle lands.
        read_only: refuse writes.
        retries: for throttling and broken connections, and how long an operation may take.
        concurrency: how many requests one call may have under way.
        unsafe_allow_no_preconditions: accept a store that ignores preconditions, and may so lose
            commits.

    Raises:
        InvalidInputError: the URL is none, holds credentials, or its scheme needs a package that is
            missing.
    """
    if not isinstance(url, str | os.PathLike):
        if not callable(getattr(url, "put_if", None)):
            raise InvalidInputError(
                f"{url!r} is no place: pass a URL or a path as str, a pathlib.Path, or a storage",
                kind="invalid-url",
            )
        if storage_options or credentials:
            raise InvalidInputError(f"{url!r} is open already and takes no options")
        return url
    place = os.fspath(url)
    if not isinstance(place, str) or not is_unicode(place):
        raise InvalidInputError(f"not Unicode text: {place!a}", kind="invalid-url")
    shown, backend = _find(place)
    options, retries = with_deadline(storage_options, retries)
    refuse_in_options(options)
    if options and backend in (local.BACKEND, memory.BACKEND):
        raise InvalidInputError(
            f"storage_options of {shown}: there is no option "
            f"{', '.join(map(ascii, options))}: this place takes deadline alone",
            kind="unknown-storage-option",
        )
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidInputError(f"concurrency must be an int and at least 1, not {concurrency!r}")
    settings = Settings(
        url=shown,
        options=options,
        credentials=credentials,
        read_only=read_only,
        retries=retries,
        concurrency=concurrency,
        unsafe_allow_no_preconditions=unsafe_allow_no_preconditions,
    )
    return (
        memory.open_named(settings)
        if backend is memory.BACKEND
        else ObjectStorage(settings, backend)
    )


def _find(url: str) -> tuple[str, Backend]:
    """The URL in its one spelling, and the backend of its scheme."""
    scheme, separator, place = url.partition("://")
    refuse_credentials(url)
    if "::" in url:
        return url, _load("foreign", "", "a chained URL")
    if not separator or scheme in {"file", "local"}:
        path = place if separator else url
        if not path.strip():
            raise InvalidInputError(f"neither a URL nor a path: {url!r}", kind="invalid-url")
        return f"file://{os.path.abspath(path)}", local.BACKEND
    place = place.strip("/")
    if not scheme or not place or "\0" in place:
        raise InvalidInputError(f"not a storage URL: {url!r}", kind="invalid-url")
    if scheme == "memory":
        return f"memory://{place}", memory.BACKEND
    return _find_remote(scheme, place)


def _find_remote(scheme: str, place: str) -> tuple[str, Backend]:
    if scheme in _CLOUDS:
        module, shown = _CLOUDS[scheme]
        return f"{shown}://{place}", _load(module, module, f"{scheme}://")
    module, extra = ("http", "s3") if scheme in _WEB else ("foreign", "")
    return f"{scheme}://{place}", _load(module, extra, f"{scheme}://")


def _load(module: str, extra: str, scheme: str) -> Backend:
    # Each of these modules needs a package that not everyone installs.
    try:
        backend: Backend = import_module(f"icefloe.storage.{module}").BACKEND
    except ImportError as error:
        raise InvalidInputError(
            f"{scheme} needs the package {error.name}: pip install 'icefloe[{extra}]'",
            kind="missing-dependency",
        ) from error
    return backend
