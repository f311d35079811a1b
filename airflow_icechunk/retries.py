"""Which failures of a repository are worth another attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_icechunk import compat

_NOW = timedelta(seconds=5)
_LATER = timedelta(minutes=2)

RULES: tuple[compat.Rule, ...] = (
    (["icefloe.ConflictError"], _NOW, "somebody else wrote first: begin anew from the tip"),
    (["icefloe.ThrottledError"], _LATER, "the store asks to slow down"),
    (["icefloe.UnknownOutcomeError"], _NOW, "a retry looks whether the write landed"),
    (["icefloe.PermissionDeniedError"], None, "the credentials or the policy are wrong"),
    (["icefloe.UnsafeStorageError"], None, "the store cannot keep commits safe"),
    (["icefloe.StorageError"], _NOW, "the store failed"),
    (
        ["icefloe.NotFoundError", "icefloe.AlreadyExistsError", "icefloe.InvalidInputError"],
        None,
        "it stays missing, taken or wrong until somebody acts",
    ),
    (["icefloe.FormatError", "icefloe.InternalError"], None, "somebody has to look at it"),
    (["icefloe.ReadOnlyError"], _LATER, "the repository takes no writes now"),
)
"""The first one that fits counts."""


def icechunk_retry_policy() -> Any | None:
    """For ``retry_policy=``: what to do about which error; None before Airflow 3.3."""
    return compat.retry_policy(RULES)


def icechunk_default_args(*, retries: int = 3) -> dict[str, Any]:
    """For ``default_args=``: retries, and the retry policy where Airflow has such.

    :param retries: how often at most.
    """
    policy = icechunk_retry_policy()
    arguments: dict[str, Any] = {"retries": retries, "retry_delay": timedelta(seconds=30)}
    return arguments if policy is None else {**arguments, "retry_policy": policy}
