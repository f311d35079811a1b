"""Reports of jobs, kept in the storage of the repository: what a driver prints may be lost.

A scheduler gives a key to the job that it starts, and looks for the report of that key afterwards.
Other clients of the repository ignore the folder.

A job that succeeds keeps what it has to say with `store_report` (`icefloe.spark.maintenance_app`,
under `--report-key`), or has a snapshot registered under its write key (`icefloe.spark.app`).

A job that fails tells why, as this JSON object:

    {"error": {"type": "InvalidInputError", "kind": "invalid-region", "message": "...",
               "retryable": false}}

`type` is the name of the class of the error, `kind` that of `icefloe.errors` (`job-error` where the
error is not one of icefloe's), `retryable` whether another attempt may succeed. Both programs tell
it in two ways, and then exit with a code that is not 0:

1. One line of the driver's output: `FAILURE_PREFIX` and the JSON, in one line. spark-submit passes
   it on, in client mode. Arguments that cannot be parsed are told in this way alone.
2. `store_failure` under the key: `--write-key` of `app`, `--report-key` of `maintenance_app`. It is
   all that comes back from a driver on a cluster. `find_failure` gives the object, None if there is
   none. It is no report: `find_report` does not see it.

Both programs forget the failure of their key when they begin. A scheduler calls `delete_failure`
before it starts an attempt, so that what it finds is not an older one's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    IcefloeError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsafeStorageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage import Storage

FOLDER = "icefloe/reports/"
FAILURE_PREFIX = "icefloe-job-error: "
_NAME_LENGTH = 32
_MESSAGE_LENGTH = 4000
"""Of a failure: the texts of foreign errors hold whole stacks."""
_FINAL = (
    AlreadyExistsError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnsafeStorageError,
)
"""What stays wrong until somebody acts."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed."""

    type: str
    kind: str
    message: str
    retryable: bool

    @classmethod
    def of(cls, error: BaseException) -> JobFailure:
        kind = error.kind if isinstance(error, IcefloeError) else "job-error"
        text = str(error)[:_MESSAGE_LENGTH]
        return cls(type(error).__name__, kind, text, not isinstance(error, _FINAL))

    def as_json(self) -> dict[str, Any]:
        return {"error": asdict(self)}

    def as_line(self) -> str:
        """What a driver prints; it has no line breaks."""
        return FAILURE_PREFIX + json.dumps(self.as_json())


def store_report(storage: Storage, key: str, report: Mapping[str, Any]) -> None:
    """Keep a report, in place of an older one of the same key. It must be plain JSON."""
    _store(storage, _place(key), report)


def find_report(storage: Storage, key: str) -> dict[str, Any] | None:
    """The report of a key; None if there is none.

    Raises:
        FormatError: it is not what `store_report` writes.
    """
    return _find(storage, _place(key))


def delete_report(storage: Storage, key: str) -> None:
    """Forget a report; there need not be one.

    Raises:
        StorageError: it is still there.
    """
    _delete(storage, _place(key))


def store_failure(storage: Storage, key: str, failure: JobFailure) -> None:
    """Keep why the job of a key failed, in place of an older failure."""
    _store(storage, _failure_place(key), failure.as_json())


def find_failure(storage: Storage, key: str) -> dict[str, Any] | None:
    """Why the job of a key failed, `{"error": {...}}`; None if it did not, or could not tell.

    Raises:
        FormatError: it is not what `store_failure` writes.
    """
    return _find(storage, _failure_place(key))


def delete_failure(storage: Storage, key: str) -> None:
    """Forget a failure; there need not be one.

    Raises:
        StorageError: it is still there.
    """
    _delete(storage, _failure_place(key))


def _store(storage: Storage, place: str, content: Mapping[str, Any]) -> None:
    storage.put(place, json.dumps(content, allow_nan=False).encode())


def _find(storage: Storage, place: str) -> dict[str, Any] | None:
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


def _delete(storage: Storage, place: str) -> None:
    for name, reason in storage.delete([place]).failures.items():
        raise StorageError(f"{name} cannot be deleted: {reason}")


def _place(key: str) -> str:
    # Keys are any text: the names of Dags and runs, and as long as people like.
    return f"{FOLDER}{sha256(key.encode()).hexdigest()[:_NAME_LENGTH]}.json"


def _failure_place(key: str) -> str:
    return _place(key).removesuffix(".json") + ".error.json"
