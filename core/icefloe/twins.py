"""Asynchronous twins of blocking methods."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def twin[S, **P, T](
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[None, None, T]]:
    """The same method, awaited: it runs on a thread and leaves the event loop free."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    run.__name__ = f"{method.__name__}_async"
    return run
