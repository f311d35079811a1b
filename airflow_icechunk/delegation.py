"""Credentials from connections that other providers manage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from airflow.sdk import BaseHook

from airflow_icechunk.failures import WrongConnectionError

type Credentials = Callable[[], Mapping[str, Any]]


def credentials_of(extra: str, conn_id: str, kind: str) -> Credentials:
    """A function that asks the other connection for credentials whenever it is called.

    :param extra: which extra of our connection names the other one.
    :param conn_id: the other connection.
    :param kind: of store, as the URL says.
    :raises WrongConnectionError: such a connection has nothing to say about such a store.
    """
    store, function = PROVIDERS[extra]
    if store != kind:
        raise WrongConnectionError(
            f"{extra} gives credentials for another kind of store than the URL names"
        )
    return partial(function, conn_id)


def aws_credentials(conn_id: str) -> dict[str, Any]:
    module = _load("airflow.providers.amazon.aws.hooks.base_aws", "amazon", "aws_conn_id")
    hook = module.AwsGenericHook(aws_conn_id=conn_id, client_type="s3")
    # Frozen: key, secret and token of one moment belong together.
    found = hook.get_credentials(region_name=hook.region_name)
    secrets = {"key": found.access_key, "secret": found.secret_key, "token": found.token}
    return {name: value for name, value in secrets.items() if value}


def gcp_credentials(conn_id: str) -> dict[str, Any]:
    module = _load("airflow.providers.google.common.hooks.base_google", "google", "gcp_conn_id")
    return {"token": module.GoogleBaseHook(gcp_conn_id=conn_id).get_credentials()}


def azure_credentials(conn_id: str) -> dict[str, Any]:
    """What a connection of the type `wasb` says, in the names of adlfs."""
    connection = BaseHook.get_connection(conn_id)
    extras = connection.extra_dejson
    if tenant := extras.get("tenant_id"):
        secrets = {
            "tenant_id": tenant,
            "client_id": connection.login,
            "client_secret": connection.password,
            "account_name": _account(connection.host),
        }
    else:
        secrets = {
            "account_name": connection.login,
            "account_key": connection.password,
            "connection_string": extras.get("connection_string"),
            "sas_token": extras.get("sas_token"),
        }
    return {name: value for name, value in secrets.items() if value}


PROVIDERS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "aws_conn_id": ("s3", aws_credentials),
    "gcp_conn_id": ("gcs", gcp_credentials),
    "azure_conn_id": ("azure", azure_credentials),
}
"""By extra: the kind of store, and who gives its credentials."""


def _account(host: str | None) -> str | None:
    # `https://account.blob.core.windows.net/`, or the account alone.
    return None if not host else host.rpartition("//")[2].partition(".")[0].strip("/")


def _load(module: str, provider: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = f"apache-airflow-providers-{provider}"
        raise ModuleNotFoundError(f"{extra} needs {package}: pip install {package}") from error
