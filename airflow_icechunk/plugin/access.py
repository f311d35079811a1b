"""Repositories as one user may see them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_icechunk.plugin.errors import ViewError
from airflow_icechunk.plugin.repositories import OpenRepository, connection_ids
from airflow_icechunk.plugin.security import reads_connection, sees_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_icechunk.plugin.repositories import Repositories
    from airflow_icechunk.plugin.security import User

_LISTING = 5.0
"""Seconds that a page with many repositories waits for the slowest of them."""


class UserRepositories:
    """Reads repositories, and hides what connections hold from who may not read those.

    :param repositories: of all users.
    :param user: who asks.
    """

    def __init__(self, repositories: Repositories, user: User) -> None:
        self._repositories = repositories
        self._user = user

    def listed(self) -> list[str]:
        """Connections whose repositories the user may see, of those that can be listed."""
        return self.visible(connection_ids())

    def visible(self, ids: Iterable[str]) -> list[str]:
        return [conn_id for conn_id in ids if sees_repository(conn_id, self._user)]

    def read[T](self, connection_id: str, function: Callable[[OpenRepository], T]) -> T:
        """What a function finds in a repository.

        :raises ViewError: it cannot be read, or not in time.
        """
        (found,) = self.read_all([connection_id], function, timeout=None).values()
        if isinstance(found, ViewError):
            raise found
        return found

    def read_all[T](
        self,
        ids: Iterable[str],
        function: Callable[[OpenRepository], T],
        *,
        timeout: float | None = _LISTING,
    ) -> dict[str, T | ViewError]:
        """What a function finds in many repositories, or why not."""
        ids = [*ids]
        known = {conn_id for conn_id in ids if reads_connection(conn_id, self._user)}

        def look(opened: OpenRepository) -> T:
            if opened.connection_id in known:
                return function(opened)
            return function(replace(opened, is_read_only=False))

        found = self._repositories.read_all(ids, look, timeout=timeout)
        return {
            conn_id: item.without_connection()
            if isinstance(item, ViewError) and conn_id not in known
            else item
            for conn_id, item in found.items()
        }
