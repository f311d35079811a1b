"""Snapshot ids as they arrive from upstream tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_icechunk.arguments import WrongArgumentError, check_no_list, is_known, required
from icefloe import InvalidInputError, SnapshotId

_SHOWN = 40


def staged_ids(value: Any) -> list[str]:
    """The ids in an XCom: of one task, of mapped tasks, or of several tasks; each one once.

    :raises WrongArgumentError: one is missing or is no snapshot id, or there is none.
    """
    if isinstance(value, str):
        check_no_list("snapshot_ids", value)
    found = [*_flat(value)]
    if not found:
        raise WrongArgumentError("there is no staged snapshot: the tasks upstream returned none")
    if missing := sum(item is None for item in found):
        raise WrongArgumentError(
            f"{missing} of {len(found)} staged snapshots are missing: a task upstream returned "
            "none, or its XCom is gone. Clear that task"
        )
    return [*dict.fromkeys(snapshot_id(item) for item in found)]


def snapshot_id(value: Any) -> str:
    """A snapshot id, checked.

    :raises WrongArgumentError: it is none.
    """
    if isinstance(value, str):
        try:
            return str(SnapshotId.parse(value))
        except InvalidInputError:
            pass
    # Whatever it is, it may be large.
    shown = repr(value)[:_SHOWN] if isinstance(value, str | int | float) else type(value).__name__
    raise WrongArgumentError(f"not a snapshot id: {shown}")


def check_snapshot_id(name: str, value: Any) -> None:
    """Refuse a text that is no snapshot id; none, and what is not known yet, is let through.

    :raises WrongArgumentError: it is none.
    """
    if value is not None and is_known(value):
        named_id(name, value)


def named_id(name: str, value: Any) -> str:
    """The snapshot id that an argument gives.

    :raises WrongArgumentError: it is none, and which argument that is.
    """
    required(name, value)
    try:
        return snapshot_id(value)
    except WrongArgumentError as error:
        raise WrongArgumentError(f"{name} is {error}") from None


def _flat(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        return [value]
    # The XComs of mapped tasks are a lazy sequence: a slice is one request, iterating one for each.
    return [item for part in value[:] for item in _flat(part)]
