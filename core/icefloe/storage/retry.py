"""Which failures are worth another attempt, and how long to wait before it."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, StorageError

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


@dataclass(frozen=True, slots=True)
class Retries:
    """Exponential backoff with full jitter: the n-th wait is random in [0, initial * 2**n].

    Attributes:
        attempts: how often a request is made at most, the first included.
        initial: bound of the first wait, in seconds.
        maximum: bound of every wait, in seconds.
    """

    attempts: int = 10
    initial: float = 0.1
    maximum: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = field(
        default=asyncio.sleep, repr=False, compare=False
    )
    uniform: Callable[[], float] = field(default=_uniform, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.initial < 0 or self.maximum < 0:
            raise InvalidInputError(f"at least one attempt and no negative waits, not {self}")

    def delay(self, failed: int) -> float:
        """Seconds to wait after `failed` failures, one at least."""
        # Beyond 2**60 the product only overflows.
        return self.uniform() * min(self.maximum, self.initial * 2.0 ** min(failed - 1, 60))

    async def run[T](self, request: Callable[[], Awaitable[T]]) -> T:
        """The request's answer; or its first failure that is final, or its last of all."""
        failed = 0
        while True:
            try:
                return await request()
            except StorageError as error:
                failed += 1
                if error.kind not in RETRYABLE or failed >= self.attempts:
                    raise
                wait = self.delay(failed)
                logger.debug("attempt %d failed, next in %.2f s: %s", failed, wait, error)
            await self.sleep(wait)
