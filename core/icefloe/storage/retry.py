"""Which failures are worth another attempt, how long to wait before it, and when to give up."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, StorageError
from icefloe.storage.deadline import Deadline, check_deadline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

UNREACHABLE = "unreachable"
TRANSPORT = "transport"
SERVER_ERROR = "server-error"
THROTTLED = "throttled"

AMBIGUOUS = frozenset({TRANSPORT, SERVER_ERROR})
"""After these a write may have landed. A refused connection or a "slow down" means it did not."""

RETRYABLE = AMBIGUOUS | {UNREACHABLE, THROTTLED}


def _uniform() -> float:
    # random.random itself would pickle with the state of the generator, and all executors would
    # wait alike.
    return random.random()


async def _block(seconds: float) -> None:
    # It is driven without a loop, so nobody else waits.
    time.sleep(seconds)  # noqa: ASYNC251


@dataclass(frozen=True, slots=True)
class Retries:
    """Exponential backoff with full jitter: the n-th wait is random in [0, initial * 2**n].

    Attributes:
        attempts: how often a request is made at most, the first included.
        initial: bound of the first wait, in seconds.
        maximum: bound of every wait, in seconds.
        deadline: seconds after which an operation is given up, all attempts and waits included;
            see `Deadline` for what large ones may take. Infinity for none.
    """

    attempts: int = 10
    initial: float = 0.1
    maximum: float = 30.0
    deadline: float = 30.0
    sleep: Callable[[float], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )
    uniform: Callable[[], float] = field(default=_uniform, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int):
            raise InvalidInputError(f"attempts={self.attempts!r}: it counts, so pass an int")
        if self.attempts < 1 or self.initial < 0 or self.maximum < 0:
            raise InvalidInputError(f"at least one attempt and no negative waits, not {self}")
        check_deadline(self.deadline)

    def delay(self, failed: int) -> float:
        """Seconds to wait after `failed` failures, one at least."""
        # Beyond 2**60 the product only overflows.
        return self.uniform() * min(self.maximum, self.initial * 2.0 ** min(failed - 1, 60))

    async def run[T](
        self,
        request: Callable[[], Awaitable[T]],
        *,
        what: str = "the store",
        sends: int = 0,
        suspends: bool = True,
        until: Deadline | None = None,
    ) -> T:
        """The request's answer; or its first failure that is final, or its last before giving up.

        Args:
            request: makes one attempt.
            what: is asked, for messages.
            sends: how many bytes an attempt sends.
            suspends: whether the request runs on an event loop, so that it can be cut short. One
                that blocks is only not made again after the deadline.
            until: when to give up, where several calls belong to one operation.
        """
        deadline = until or Deadline(self.deadline, sends=sends)
        failed = 0
        before: StorageError | None = None
        while True:
            try:
                if not suspends:
                    return await request()
                async with deadline.limit():
                    return await request()
            except TimeoutError as error:
                if deadline.left > 0:
                    raise
                raise _late(what, deadline, failed + 1, before) from error
            except StorageError as error:
                failed, before = failed + 1, error
                if error.kind not in RETRYABLE or failed >= self.attempts:
                    raise
                wait = self.delay(failed)
                if wait >= deadline.left:
                    raise _given_up(error, deadline, failed) from error
                logger.warning(
                    "attempt %d of %d failed, next in %.1f s: %s",
                    failed,
                    self.attempts,
                    wait,
                    error,
                )
            await (self.sleep or (asyncio.sleep if suspends else _block))(wait)


def _late(
    what: str, deadline: Deadline, attempts: int, before: StorageError | None
) -> StorageError:
    told = "" if before is None else f". The attempt before: {before}"
    return StorageError(
        f"{what}: no answer within {deadline.elapsed:.1f} s, in {_times(attempts)}; "
        f"{_remedy(deadline)}{told}",
        kind=TRANSPORT,
    )


def _given_up(error: StorageError, deadline: Deadline, attempts: int) -> StorageError:
    return type(error)(
        f"{error} - given up after {deadline.elapsed:.1f} s and {_times(attempts)}; "
        f"{_remedy(deadline)}",
        kind=error.kind,
    )


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _remedy(deadline: Deadline) -> str:
    return f"the deadline is {deadline.seconds:g} s (storage option `deadline`)"
