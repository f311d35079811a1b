"""What tasks tell their logs: what was done, and to which repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_icechunk.hooks.icechunk import IcechunkHook


def told(hook: IcechunkHook, message: str, *about: object) -> str:
    """A line that names the repository. Its URL holds no secret: others are refused."""
    return f"{hook.repository.storage.url} ({hook.icechunk_conn_id}): {message % about}"


def counted(result: Mapping[str, object]) -> str:
    """Counts and other facts of a result in words, without what is not there."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in result.items()
        if value is not None and value is not False and name != "skipped"
    )
