"""The repositories behind connections: found, opened to be read only, and kept for a moment."""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock, Thread
from typing import TYPE_CHECKING, Any

from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_icechunk.failures import WrongConnectionError
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.plugin.errors import ViewError, as_view_error, secrets_of, without_secrets
from icefloe import IcefloeError, NotFoundError
from icefloe.assets import Assets
from icefloe.storage import Retries, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from icefloe.format.repo_info import RepoInfo

log = logging.getLogger(__name__)

_ENVIRONMENT = "AIRFLOW_CONN_"
_RETRIES = Retries(attempts=2)
"""Somebody is waiting in front of a screen."""


def connection_ids() -> list[str]:
    """Connections of the type, in the database and in the environment.

    Those in other secrets backends cannot be listed; their pages can be opened by URL.
    """
    kind = IcechunkHook.conn_type
    with create_session() as session:
        found = {*session.scalars(select(Connection.conn_id).where(Connection.conn_type == kind))}
    found |= {
        name.removeprefix(_ENVIRONMENT).lower()
        for name, text in os.environ.items()
        if name.startswith(_ENVIRONMENT) and _type_of(text) == kind
    }
    return sorted(found)


@dataclass(frozen=True, slots=True)
class OpenRepository:
    """A repository that can only be looked at."""

    connection_id: str
    assets: Assets
    is_read_only: bool
    """Whether the connection refuses writes."""
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def url(self) -> str:
        return without_secrets(self.assets.storage.url, self.secrets)

    def info(self) -> RepoInfo:
        """The repo object as it is now."""
        return self.assets.repo()[0]


def open_repository(connection_id: str) -> OpenRepository:
    """Open the repository of a connection; the store is asked.

    :raises ViewError: there is no such connection or repository, or it cannot be read.
    """
    hook = IcechunkHook(connection_id)
    try:
        connection = hook.get_connection(connection_id)
    except AirflowNotFoundException:
        connection = None
    except Exception as error:
        # A secrets backend that is away, or a connection that nobody can decrypt or parse.
        raise _logged(error, connection_id, ()) from None
    if connection is None or connection.conn_type != IcechunkHook.conn_type:
        raise ViewError(404, f"There is no connection {connection_id} of the type icechunk.")
    try:
        secrets = secrets_of(connection)
        target = hook.target
    except ValueError as error:
        if not isinstance(error, WrongConnectionError):
            raise _logged(error, connection_id, ()) from None
        # It repeats no value of the connection.
        raise ViewError(502, str(error), of_connection=True) from None
    try:
        storage = open_storage(
            target.url,
            {**target.options, **target.secrets},
            credentials=target.credentials,
            read_only=True,
            retries=_RETRIES,
        )
        opened = OpenRepository(
            connection_id,
            Assets(storage, manifest_cache_bytes=0),
            target.read_only,
            secrets,
        )
        opened.info()
    except Exception as error:
        if isinstance(error, NotFoundError) and error.kind == "object-not-found":
            url = without_secrets(target.url, secrets)
            raise ViewError(404, f"There is no repository at {url} yet.") from None
        told = _logged(error, connection_id, secrets)
        raise ViewError(told.status, told.text, of_connection=True) from None
    return opened


class _Threads:
    """Runs functions, some at a time. It keeps no process from ending, as an executor would.

    :param count: how many at a time.
    """

    def __init__(self, count: int) -> None:
        self._free = BoundedSemaphore(count)

    def submit[**P, T](
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            with self._free:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    future.set_result(function(*args, **kwargs))
                except Exception as error:
                    future.set_exception(error)

        Thread(target=run, name="icechunk-ui", daemon=True).start()
        return future


class Repositories:
    """Reads repositories in threads of their own, and never waits for long.

    :param timeout: seconds for opening, and again for reading.
    :param keep: seconds for which a repository stays open; a change of its connection counts
        after that.
    :param threads: that read one repository at the same time: where a store does not answer, the
        other repositories have threads of their own.
    """

    def __init__(self, *, timeout: float = 10.0, keep: float = 30.0, threads: int = 4) -> None:
        self._timeout = timeout
        self._keep = keep
        self._count = threads
        self._threads: dict[str, _Threads] = {}
        self._lock = Lock()
        self._open: dict[str, tuple[Future[OpenRepository], float]] = {}

    def read[T](self, connection_id: str, function: Callable[[OpenRepository], T]) -> T:
        """What a function finds in a repository.

        :raises ViewError: it cannot be read, or not in time.
        """
        (found,) = self.read_all([connection_id], function).values()
        if isinstance(found, ViewError):
            raise found
        return found

    def read_all[T](
        self,
        connection_ids: Iterable[str],
        function: Callable[[OpenRepository], T],
        *,
        timeout: float | None = None,
    ) -> dict[str, T | ViewError]:
        """What a function finds in many repositories, or why not; at the same time.

        :param timeout: seconds, if fewer than usual.
        """
        timeout = self._timeout if timeout is None else min(timeout, self._timeout)
        opening = {conn_id: self._opening(conn_id) for conn_id in connection_ids}
        wait(opening.values(), timeout)
        reading = {
            conn_id: self._threads_of(conn_id).submit(_look, future.result(), function)
            for conn_id, future in opening.items()
            if future.done() and future.exception() is None
        }
        wait(reading.values(), timeout)
        found: dict[str, T | ViewError] = {}
        for conn_id, opened in opening.items():
            future = reading.get(conn_id)
            if future is not None and future.done() and future.exception() is None:
                found[conn_id] = future.result()
            else:
                found[conn_id] = self._failure(future or opened, timeout)
        return found

    def _opening(self, connection_id: str) -> Future[OpenRepository]:
        """A store that does not answer has one thread waiting for it, whoever asks."""
        now = time.monotonic()
        with self._lock:
            self._open = {
                conn_id: (future, end)
                for conn_id, (future, end) in self._open.items()
                if not future.done() or (end > now and future.exception() is None)
            }
            if connection_id not in self._open:
                threads = self._threads_of(connection_id)
                future = threads.submit(open_repository, connection_id)
                self._open[connection_id] = future, now + self._keep
            return self._open[connection_id][0]

    def _threads_of(self, connection_id: str) -> _Threads:
        return self._threads.setdefault(connection_id, _Threads(self._count))

    def _failure(self, future: Future[Any], timeout: float) -> ViewError:
        if not future.done():
            future.cancel()
            return ViewError(504, f"The store did not answer within {timeout:g} seconds.")
        error = future.exception()
        if not isinstance(error, ViewError):
            raise TypeError("a repository failed in a way that nobody looked at") from error
        return error


def _look[T](opened: OpenRepository, function: Callable[[OpenRepository], T]) -> T:
    try:
        return function(opened)
    except Exception as error:
        raise _logged(error, opened.connection_id, opened.secrets) from None


def _logged(error: Exception, connection_id: str, secrets: tuple[str, ...]) -> ViewError:
    shown = as_view_error(error, secrets)
    if shown.status >= 500:
        text = without_secrets(f"{type(error).__name__}: {error}", secrets)
        log.warning("the repository of %s cannot be shown: %s", connection_id, text)
        if not isinstance(error, IcefloeError):
            # Places in the code, and no messages: nobody has looked for secrets in those.
            log.warning("%s", "".join(traceback.format_tb(error.__traceback__)))
    return shown


def _type_of(text: str) -> str | None:
    """The type of a connection as the environment spells it: JSON, or a URI."""
    if not text.lstrip().startswith("{"):
        return text.partition(":")[0]
    try:
        found = json.loads(text).get("conn_type")
    except ValueError:
        return None
    return found if isinstance(found, str) else None
