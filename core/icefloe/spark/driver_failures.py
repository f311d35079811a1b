"""How driver programs tell why they failed; `icefloe.job_reports` has the contract."""

from __future__ import annotations

import argparse
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from icefloe.errors import InvalidInputError, StorageError
from icefloe.job_reports import JobFailure, delete_failure, store_failure
from icefloe.spark.task_errors import task_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage import Storage


class TellingParser(argparse.ArgumentParser):
    """A parser that tells wrong arguments in the way of all failures, too."""

    def error(self, message: str) -> NoReturn:
        tell(InvalidInputError(message, kind="wrong-arguments"))
        super().error(message)


@contextmanager
def failures_told(storage: Storage | None = None, key: str = "") -> Iterator[None]:
    """Tell of the error that leaves the block, also in the storage, where that is known by now."""
    if storage is not None:
        with suppress(StorageError):
            delete_failure(storage, key)
    try:
        yield
    except Exception as error:
        tell(error, storage, key)
        raise


def tell(error: BaseException, storage: Storage | None = None, key: str = "") -> None:
    """Print why the program fails, and keep it under the key of the job."""
    failure = JobFailure.of(task_error(error) or error)
    print(failure.as_line(), flush=True)
    if storage is not None:
        # The line is out, and the error itself is what has to be seen.
        with suppress(StorageError):
            store_failure(storage, key, failure)
