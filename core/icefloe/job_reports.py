"""Reports of jobs, kept in the storage of the repository: what a driver prints may be lost.

A scheduler gives a key to the job that it starts, and looks for the report of that key afterwards.
Other clients of the repository ignore the folder.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage import Storage

FOLDER = "icefloe/reports/"
_NAME_LENGTH = 32


def store_report(storage: Storage, key: str, report: Mapping[str, Any]) -> None:
    """Keep a report, in place of an older one of the same key. It must be plain JSON."""
    data = json.dumps(report, allow_nan=False).encode()
    storage.put(_place(key), data)


def find_report(storage: Storage, key: str) -> dict[str, Any] | None:
    """The report of a key; None if there is none.

    Raises:
        FormatError: it is not what `store_report` writes.
    """
    place = _place(key)
    try:
        (data,) = storage.get_many([place])
    except NotFoundError:
        return None
    try:
        report = json.loads(data)
    except ValueError as error:
        raise FormatError(f"{place} is not JSON: {error}", kind="invalid-report") from error
    if not isinstance(report, dict):
        raise FormatError(f"{place} is not a JSON object", kind="invalid-report")
    return report


def delete_report(storage: Storage, key: str) -> None:
    """Forget a report; there need not be one.

    Raises:
        StorageError: it is still there.
    """
    for place, reason in storage.delete([_place(key)]).failures.items():
        raise StorageError(f"{place} cannot be deleted: {reason}")


def _place(key: str) -> str:
    # Keys are any text: the names of Dags and runs, and as long as people like.
    return f"{FOLDER}{sha256(key.encode()).hexdigest()[:_NAME_LENGTH]}.json"
