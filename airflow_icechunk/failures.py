"""Failures, told apart by whether another attempt can mend them; and the failures of Spark jobs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
)

from icefloe import IcefloeError, errors
from icefloe.job_reports import JobFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MissingConnectionError(AirflowFailException, AirflowNotFoundException):
    """There is no such connection: no retry makes one."""


class WrongConnectionError(AirflowFailException, ValueError):
    """A connection does not say what it must: no retry changes that. Repeats none of its values."""


class FinalError(AirflowFailException):
    """What a retry cannot mend; the cause is in the message."""


class SparkJobError(AirflowException):
    """A Spark job failed, with an error that is not of icefloe; another attempt may succeed."""


@contextmanager
def final_errors() -> Iterator[None]:
    """Let errors that a retry cannot mend fail the task at once.

    :raises FinalError: in place of such an error.
    """
    try:
        yield
    except IcefloeError as error:
        failure = JobFailure.of(error)
        if failure.retryable:
            raise
        raise FinalError(f"{failure.type}: {failure.message}") from error


def job_error(failure: Mapping[str, Any]) -> Exception:
    """The error of a task whose Spark job failed.

    :param failure: as ``icefloe.job_reports`` describes it.
    """
    told = JobFailure(**failure["error"])
    text = f"the Spark job failed: {told.type}: {told.message}"
    if not told.retryable:
        return FinalError(text)
    # As itself, so that a retry policy can tell one that throttles from one that fails.
    kind = getattr(errors, told.type, None)
    if isinstance(kind, type) and issubclass(kind, IcefloeError):
        error = kind(text)
        error.kind = told.kind
        return error
    return SparkJobError(text)
