"""What Airflow has only from 3.3 on, used where it is there."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow import __version__ as airflow_version
from airflow.providers.common.compat import sdk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

log = logging.getLogger(__name__)

VERSION = tuple(int(part) for part in re.findall(r"\d+", airflow_version)[:2])
"""Of Airflow: major and minor."""

type Rule = tuple[Sequence[str], timedelta | None, str]
"""Import paths of exceptions; how long to wait before a retry, None for no retry; and why."""


def remembered(context: Context, key: str, choose: Callable[[], str]) -> str:
    """What an earlier attempt of the task chose under this key; the choice is made if none did.

    Before Airflow 3.3 there is nowhere to remember it, and every attempt chooses anew.
    """
    store: Any = context.get("task_state_store")
    if store is None:
        return choose()
    known = store.get(key)
    if isinstance(known, str):
        return known
    chosen = choose()
    store.set(key, chosen)
    return chosen


async def read_watermark(trigger: Any, key: str) -> str | None:
    """What `write_watermark` kept for the asset that a trigger watches."""
    store = getattr(trigger, "asset_state_store", None)
    if store is None:
        return None
    try:
        known = await store.aget(key)
    except ValueError:
        # Several assets share this trigger: there is no one place for a watermark.
        return None
    return known if isinstance(known, str) else None


async def write_watermark(trigger: Any, key: str, value: str) -> None:
    """Keep a watermark over restarts of the triggerer, where Airflow offers a place for it."""
    store = getattr(trigger, "asset_state_store", None)
    if store is None:
        return
    try:
        await store.aset(key, value)
    except ValueError:
        log.debug("several assets share this trigger: no watermark is kept")


def retry_policy(rules: Sequence[Rule]) -> Any | None:
    """A retry policy for `retry_policy=`; None before Airflow 3.3."""
    try:
        policy, rule, action = sdk.ExceptionRetryPolicy, sdk.RetryRule, sdk.RetryAction
    except (AttributeError, ImportError):
        return None
    return policy(
        rules=[
            rule(
                exception=cast("list[type[BaseException] | str]", [*exceptions]),
                action=action.FAIL if delay is None else action.RETRY,
                retry_delay=delay,
                reason=reason,
            )
            for exceptions, delay, reason in rules
        ]
    )
