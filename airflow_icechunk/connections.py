"""From an Airflow connection to a URL and options for a store, secrets apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_icechunk import delegation
from airflow_icechunk.failures import WrongConnectionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_icechunk.delegation import Credentials

EXTRAS = frozenset(
    {
        "url",
        "endpoint_url",
        "region",
        "anonymous",
        "path_style",
        "read_only",
        "session_token",
        "account_name",
        "project",
        *delegation.PROVIDERS,
    }
)
"""Keys of a connection's extra that are read. Any other is refused: it may be a secret."""

_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a repository is, and how to get in."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """For the store; they hold no secret and may be shown."""
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    """Gives more secrets, whenever a connection to the store is made."""
    read_only: bool = False


def read_connection(connection: Connection) -> Target:
    """What a connection of the type `icechunk` says.

    :raises WrongConnectionError: it is of another type, names no URL, or has extras that nobody
        knows. Messages repeat no value.
    """
    if connection.conn_type != "icechunk":
        raise WrongConnectionError(
            f"connection {connection.conn_id!r} is of the type {connection.conn_type!r}, and must "
            "be of the type 'icechunk'"
        )
    extras = {name: value for name, value in _extras(connection).items() if value not in (None, "")}
    if unknown := extras.keys() - EXTRAS:
        raise WrongConnectionError(
            f"connection {connection.conn_id!r} has unknown extras: {', '.join(sorted(unknown))}; "
            f"known are {', '.join(sorted(EXTRAS))}"
        )
    url = connection.host or extras.get("url")
    if not url:
        raise WrongConnectionError(
            f"connection {connection.conn_id!r} names no repository: put its URL into the field "
            "Repository URL (host)"
        )
    kind = _SCHEMES.get(str(url).partition("://")[0], "other") if "://" in str(url) else "other"
    given = _Given(connection.login, connection.password, extras)
    options, secrets = _READERS[kind](given)
    delegates = sorted(delegation.PROVIDERS.keys() & extras.keys())
    if len(delegates) > 1 or (delegates and secrets):
        raise WrongConnectionError(
            f"connection {connection.conn_id!r} has several sources of credentials: keep one of "
            f"login and password, {', '.join(sorted(delegation.PROVIDERS))}"
        )
    credentials = None
    if delegates:
        credentials = delegation.credentials_of(delegates[0], str(extras[delegates[0]]), kind)
    return Target(
        url=str(url),
        options=options,
        secrets=secrets,
        credentials=credentials,
        read_only=_flag(extras, "read_only"),
    )


def _extras(connection: Connection) -> dict[str, Any]:
    extras: dict[str, Any] = connection.extra_dejson
    return extras


@dataclass(frozen=True, slots=True)
class _Given:
    login: str | None = field(repr=False)
    password: str | None = field(repr=False)
    extras: Mapping[str, Any] = field(repr=False)


type _Options = tuple[dict[str, Any], dict[str, Any]]
"""Options to show, and secrets."""


def _s3(given: _Given) -> _Options:
    options: dict[str, Any] = {}
    if endpoint := given.extras.get("endpoint_url"):
        options["endpoint_url"] = endpoint
    if region := given.extras.get("region"):
        options["client_kwargs"] = {"region_name": region}
    if _flag(given.extras, "anonymous"):
        options["anon"] = True
    if _flag(given.extras, "path_style"):
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    secrets = {
        "key": given.login,
        "secret": given.password,
        "token": given.extras.get("session_token"),
    }
    return options, _present(secrets)


def _gcs(given: _Given) -> _Options:
    options = _present(
        {"endpoint_url": given.extras.get("endpoint_url"), "project": given.extras.get("project")}
    )
    if _flag(given.extras, "anonymous"):
        options["token"] = "anon"
    return options, _present({"token": given.password})


def _azure(given: _Given) -> _Options:
    options = _present(
        {
            "account_name": given.extras.get("account_name") or given.login,
            "account_host": given.extras.get("endpoint_url"),
        }
    )
    if _flag(given.extras, "anonymous"):
        options["anon"] = True
    secrets = {"account_key": given.password, "sas_token": given.extras.get("session_token")}
    return options, _present(secrets)


def _other(given: _Given) -> _Options:
    return {}, {}


_READERS = {"s3": _s3, "gcs": _gcs, "azure": _azure, "other": _other}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _flag(extras: Mapping[str, Any], name: str) -> bool:
    value = extras.get(name, False)
    # A connection written as a URI has texts only.
    return value.strip().lower() in {"1", "true", "yes"} if isinstance(value, str) else bool(value)
