"""Where a driver's coroutines run: on the shared IO loop, on threads, or at once.

Drivers are written once, as coroutines. Those of remote stores wait for sockets, and their sessions
belong to one loop: fsspec's, in its own thread. Those of blocking stores never suspend, so they
need no loop at all.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from fsspec.asyn import get_loop

from icefloe.errors import InternalError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager


class Runner(Protocol):
    suspends: bool
    """Whether coroutines may wait here for sockets and timers, and so be cut short."""

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Block until `work` is done."""
        ...

    async def run_async[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` from any event loop, without blocking it."""
        ...

    async def map[I, O](
        self, work: Callable[[I], Coroutine[Any, Any, O]], items: Sequence[I], *, limit: int
    ) -> list[O]:
        """Do `work` on each item, at most `limit` at a time; results in order, a failure raised."""
        ...


class IoLoop:
    """For drivers that await sockets."""

    suspends = True

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        loop = get_loop()
        if _running_loop() is loop:
            work.close()
            raise StorageError(
                "a blocking call on fsspec's IO loop would wait for itself: await the _async twin",
                kind="blocking-call-on-io-loop",
            )
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        finally:
            # Does nothing unless the wait was interrupted.
            future.cancel()

    async def run_async[T](self, work: Coroutine[Any, Any, T]) -> T:
        loop = get_loop()
        if _running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    async def map[I, O](
        self, work: Callable[[I], Coroutine[Any, Any, O]], items: Sequence[I], *, limit: int
    ) -> list[O]:
        results: dict[int, O] = {}
        waiting = iter(enumerate(items))

        async def worker() -> None:
            for index, item in waiting:
                results[index] = await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(limit, len(items))):
                    group.create_task(worker())
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        return [results[index] for index in range(len(items))]


class Slots:
    """At most so many requests under way; whoever waits for a turn is not late yet."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_process: dict[int, asyncio.Semaphore] = {}

    def taken(self, runner: Runner) -> AbstractAsyncContextManager[object]:
        if not runner.suspends:
            return nullcontext()
        # A child that was forked has a loop of its own.
        return self._by_process.setdefault(os.getpid(), asyncio.Semaphore(self._limit))


class Threads:
    """For drivers that block, on files: fsyncs and cold reads overlap."""

    suspends = False

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return _complete(work)

    async def run_async[T](self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.to_thread(_complete, work)

    async def map[I, O](
        self, work: Callable[[I], Coroutine[Any, Any, O]], items: Sequence[I], *, limit: int
    ) -> list[O]:
        workers = min(limit, len(items))
        if workers <= 1:
            return [_complete(work(item)) for item in items]
        results: dict[int, O] = {}
        waiting = iter(enumerate(items))

        def worker() -> None:
            try:
                for index, item in waiting:
                    results[index] = _complete(work(item))
            except BaseException:
                deque(waiting, maxlen=0)  # the other workers stop after what they are doing
                raise

        with ThreadPoolExecutor(workers, thread_name_prefix="icefloe") as pool:
            futures = [pool.submit(worker) for _ in range(workers)]
        for future in futures:
            future.result()
        return [results[index] for index in range(len(items))]


class Inline:
    """For drivers that neither wait nor block: those in memory."""

    suspends = False

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return _complete(work)

    async def run_async[T](self, work: Coroutine[Any, Any, T]) -> T:
        return _complete(work)

    async def map[I, O](
        self, work: Callable[[I], Coroutine[Any, Any, O]], items: Sequence[I], *, limit: int
    ) -> list[O]:
        return [_complete(work(item)) for item in items]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _complete[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InternalError("a blocking driver awaited something")
