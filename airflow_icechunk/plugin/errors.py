"""What a page cannot show, as a status and a text that holds no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_icechunk.delegation import PROVIDERS
from icefloe import IcefloeError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow.sdk import Connection

_PUBLIC = frozenset({"url", "endpoint_url", "region", "account_name", "project", *PROVIDERS})
"""Extras of a connection that may be shown."""
# A shorter secret would blank out innocent text.
_SHORTEST_SECRET = 4
_USER_IN_URL = re.compile(r"(?<=//)[^/@\s]+@")
_QUERY_IN_URL = re.compile(r"(?<=[\w/])\?[^\s'\"]+")


class ViewError(Exception):
    """The answer is an error page.

    :param status: of HTTP.
    :param text: shown to the user: free of secrets.
    :param of_connection: the text may tell of the connection, and not of the repository alone.
    """

    def __init__(self, status: int, text: str, *, of_connection: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.of_connection = of_connection

    def without_connection(self) -> ViewError:
        """The same for a user who may not read the connection."""
        if not self.of_connection:
            return self
        text = "The repository cannot be read. Whoever may read its connection is told why."
        return ViewError(self.status, text)


def secrets_of(connection: Connection) -> tuple[str, ...]:
    """Every text in a connection that is not known to be harmless."""
    extras = {name: value for name, value in connection.extra_dejson.items() if name not in _PUBLIC}
    found = {*_texts([connection.login, connection.password, extras])}
    # The longest first: one may be a part of another.
    return tuple(sorted(found, key=len, reverse=True))


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text for all to see."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY_IN_URL.sub("?***", _USER_IN_URL.sub("***@", text))


def as_view_error(error: Exception, secrets: Iterable[str] = ()) -> ViewError:
    """What a failure of a repository looks like to a user."""
    match error:
        case ViewError():
            return error
        case NotFoundError():
            return ViewError(404, without_secrets(str(error), secrets))
        case InvalidInputError():
            return ViewError(422, without_secrets(str(error), secrets))
        case IcefloeError():
            return ViewError(502, without_secrets(str(error), secrets), of_connection=True)
    # Whatever it is, nobody has judged its text.
    text = f"{type(error).__name__}; the log of the API server has more"
    return ViewError(502, text, of_connection=True)


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list):
            yield from _texts(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            yield value
