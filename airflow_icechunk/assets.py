"""Assets that stand for a branch of a repository, or for what lies under a path of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_icechunk.arguments import WrongArgumentError
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.lineage import dataset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from pydantic import JsonValue

    from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger

SCHEME = "icechunk"


def icechunk_uri(
    *,
    icechunk_conn_id: str = IcechunkHook.default_conn_name,
    branch: str = "main",
    path: str = "/",
) -> str:
    """``icechunk://<connection>/<path>?branch=<branch>``; a snapshot belongs in the event."""
    place = quote(path.strip("/"))
    return f"{SCHEME}://{icechunk_conn_id}/{place}?{urlencode({'branch': branch})}"


def icechunk_asset(
    *,
    icechunk_conn_id: str = IcechunkHook.default_conn_name,
    branch: str = "main",
    path: str = "/",
    name: str | None = None,
    extra: Mapping[str, JsonValue] | None = None,
    trigger: IcechunkBranchTrigger | None = None,
) -> Asset:
    """The asset of a branch, or of an array or group on it.

    :param icechunk_conn_id: the connection.
    :param branch: the branch.
    :param path: of an array or group; the root means all of it.
    :param name: of the asset; its URI if there is none.
    :param extra: kept with the asset.
    :param trigger: watches the branch, so that commits from outside Airflow make events too; of the
        same connection, branch and path.
    :raises ValueError: the trigger watches something else, or ends with its first event.
    """
    if trigger is not None:
        _check_watch(trigger, icechunk_conn_id, branch, path)
    uri = icechunk_uri(icechunk_conn_id=icechunk_conn_id, branch=branch, path=path)
    watchers = [] if trigger is None else [AssetWatcher(name=name or uri, trigger=trigger)]
    return Asset(name=name or uri, uri=uri, extra=dict(extra or {}), watchers=watchers)


def _check_watch(
    trigger: IcechunkBranchTrigger, icechunk_conn_id: str, branch: str, path: str
) -> None:
    if trigger.once:
        raise WrongArgumentError("once=True is for deferred sensors: a watcher would end with it")
    watched = {
        "icechunk_conn_id": (icechunk_conn_id, trigger.icechunk_conn_id),
        "branch": (branch, trigger.branch),
        "path": (f"/{path.strip('/')}", f"/{(trigger.path or '').strip('/')}"),
    }
    for name, (of_asset, of_trigger) in watched.items():
        if of_asset != of_trigger:
            raise WrongArgumentError(
                f"{name} of the asset is {of_asset!r}, and of its trigger {of_trigger!r}: give "
                "both the same, or the events are of something else"
            )


def create_asset(
    *,
    icechunk_conn_id: str = IcechunkHook.default_conn_name,
    branch: str = "main",
    path: str = "/",
    extra: Mapping[str, JsonValue] | None = None,
) -> Asset:
    """What Airflow's lineage makes of a hook's report."""
    return icechunk_asset(icechunk_conn_id=icechunk_conn_id, branch=branch, path=path, extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """One spelling for one asset: a branch is always named.

    :raises ValueError: the URI names no connection.
    """
    if not uri.netloc:
        raise ValueError("an icechunk URI names a connection: icechunk://<connection>/<path>")
    branch = parse_qs(uri.query).get("branch", ["main"])[-1]
    return uri._replace(path=f"/{uri.path.strip('/')}", query=urlencode({"branch": branch}))


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """The dataset of an asset, under the name that Spark gives to the same place."""
    parts = urlsplit(asset.uri)
    return dataset(IcechunkHook(parts.netloc).target.url, path=parts.path)
