"""How a store is opened: URL, options, credentials, and which of them may leave the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.storage.deadline import check_deadline
from icefloe.storage.retry import Retries

type Credentials = Callable[[], Mapping[str, Any]]
"""Gives secret storage options whenever a connection is made; pickled by its import path."""

DEADLINE = "deadline"

# Allow-lists: an option that nobody has judged is treated as a secret.
_PUBLIC = frozenset(
    # s3fs
    {"engine", "anon", "endpoint_url", "profile", "requester_pays", "use_ssl", "version_aware"}
    # gcsfs
    | {"access", "default_location", "project", "requests_timeout"}
    # adlfs
    | {"account_host", "account_name", "location_mode", "tenant_id"}
    | {"connection_timeout", "read_timeout", "timeout"}
)
_PUBLIC_NESTED = {
    "client_kwargs": frozenset({"endpoint_url", "region_name", "use_ssl", "verify"}),
    "config_kwargs": frozenset(
        {"connect_timeout", "max_pool_connections", "read_timeout", "region_name", "retries", "s3"}
        | {"parameter_validation", "signature_version", "tcp_keepalive"}
        | {"request_checksum_calculation", "response_checksum_validation"}
        | {"use_dualstack_endpoint", "use_fips_endpoint"}
    ),
}
# gcsfs takes a secret or the name of a method in the same option.
_PUBLIC_TOKENS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything needed to connect again, in this process or another.

    Attributes:
        url: the root, without secrets.
        options: what the backend's fsspec file system takes; may hold secrets.
        credentials: see `Credentials`; its answer goes over `options`.
        read_only: refuse writes before they reach the store.
        retries: for throttling and broken connections.
        concurrency: how many requests one call may have under way.
        unsafe_allow_no_preconditions: accept a store that may lose commits.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    read_only: bool = False
    retries: Retries = field(default_factory=Retries)
    concurrency: int = 64
    unsafe_allow_no_preconditions: bool = False

    def resolve(self) -> dict[str, Any]:
        """The options to connect with, the credentials' answer included."""
        return {**self.options, **(self.credentials() if self.credentials else {})}

    def shareable(self) -> Settings:
        """These settings without secrets, fit for a pickle.

        Raises:
            InvalidInputError: `credentials` is no importable function, so it could carry secrets
                along.
        """
        if self.credentials is not None and not _is_importable(self.credentials):
            raise InvalidInputError(
                "to go into a pickle, credentials must be a function that its module holds by name",
                kind="credentials-not-importable",
            )
        return replace(self, options=public(self.options))


def with_deadline(
    options: Mapping[str, Any] | None, retries: Retries | None
) -> tuple[dict[str, Any], Retries]:
    """The options for the file system, and the retries with the one option that is ours."""
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInputError(
            f"storage_options is a {type(options).__name__}: pass a mapping of options to values"
        )
    if retries is not None and not isinstance(retries, Retries):
        raise InvalidInputError(f"retries={retries!r}: pass icefloe.Retries(attempts=...)")
    rest = dict(options or {})
    found = retries or Retries()
    deadline = rest.pop(DEADLINE, None)
    return rest, found if deadline is None else replace(found, deadline=check_deadline(deadline))


def public(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options known to hold no secret."""
    shared = {name: value for name, value in options.items() if name in _PUBLIC}
    for name, allowed in _PUBLIC_NESTED.items():
        if isinstance(nested := options.get(name), Mapping):
            shared[name] = {inner: nested[inner] for inner in nested if inner in allowed}
    if isinstance(token := options.get("token"), str) and token in _PUBLIC_TOKENS:
        shared["token"] = token
    return shared


def secrets(options: Mapping[str, Any]) -> frozenset[str]:
    """Every text in the options that is not known to be public."""
    return _texts(options) - _texts(public(options))


def _texts(value: object) -> frozenset[str]:
    match value:
        case str():
            return frozenset({value})
        case bytes():
            return frozenset({value.decode(errors="replace")})
        case Mapping():
            return frozenset().union(*map(_texts, value.values()))
        case list() | tuple():
            return frozenset().union(*map(_texts, value))
        case _:
            return frozenset()


def _is_importable(function: Credentials) -> bool:
    found: object = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "<none>").split("."):
        found = getattr(found, name, None)
    return found is function
