"""From an Airflow connection to an open repository."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_icechunk.connections import Target, read_connection
from airflow_icechunk.failures import MissingConnectionError
from icefloe import IcefloeError, NotFoundError, Repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from icefloe import RepositoryConfig


class IcechunkHook(BaseHook):
    """Opens the repository that a connection names.

    :param icechunk_conn_id: the connection, of the type ``icechunk``.
    :param authorize_virtual_chunk_access: prefixes or names of virtual chunk containers that may be
        read, each with storage options or None; see ``icefloe.Repository.open``.
    """

    conn_name_attr = "icechunk_conn_id"
    default_conn_name = "icechunk_default"
    conn_type = "icechunk"
    hook_name = "Icechunk"

    def __init__(
        self,
        icechunk_conn_id: str = default_conn_name,
        *,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.icechunk_conn_id = icechunk_conn_id
        self._authorize = authorize_virtual_chunk_access

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """For Airflow 3.1, which does not read the form from the provider's metadata."""
        return {
            "hidden_fields": ["port", "schema"],
            "relabeling": {
                "host": "Repository URL",
                "login": "Access key or account",
                "password": "Secret key",
            },
            "placeholders": {"host": "s3://bucket/prefix"},
        }

    @cached_property
    def target(self) -> Target:
        """Where the repository is, and how to get in; secrets are masked in logs from here on."""
        try:
            connection = self.get_connection(self.icechunk_conn_id)
        except AirflowNotFoundException as error:
            raise MissingConnectionError(str(error)) from None
        return self._read(connection)

    @cached_property
    def repository(self) -> Repository:
        """The repository, opened once for this hook."""
        return self.open()

    def get_conn(self) -> Repository:
        return self.repository

    async def aget_conn(self) -> Repository:
        """The repository, opened without blocking the event loop."""
        if "target" not in self.__dict__:
            connection = await self.aget_connection(self.icechunk_conn_id)
            self.__dict__["target"] = self._read(connection)
        # A delegated connection is looked up while opening, from the thread.
        return await sync_to_async(self.get_conn, thread_sensitive=False)()

    def open(self) -> Repository:
        """Open the repository.

        :raises icefloe.NotFoundError: there is none; this never creates one.
        """
        return Repository.open(
            self.target.url, authorize_virtual_chunk_access=self._authorize, **self._arguments()
        )

    def open_or_create(self, config: RepositoryConfig | None = None) -> Repository:
        """Open the repository, or create it where there is none."""
        self.__dict__.pop("repository", None)
        return Repository.open_or_create(
            self.target.url,
            config=config,
            authorize_virtual_chunk_access=self._authorize,
            **self._arguments(),
        )

    def test_connection(self) -> tuple[bool, str]:
        """Whether the repository can be read; it is never created or changed."""
        try:
            branches = len(self.open().list_branches())
        except NotFoundError:
            return False, f"There is no repository at {self.target.url}"
        except (IcefloeError, ValueError, OSError, ImportError) as error:
            return False, str(error)
        return True, f"Read the repository at {self.target.url}, which has {branches} branch(es)"

    def branch_head(self, branch: str) -> str:
        """The snapshot that a branch is at."""
        return self.repository.lookup_branch(branch)

    def is_published(self, snapshot_id: str, branch: str) -> bool:
        """Whether a snapshot is in the history of a branch."""
        history = self.repository.ancestry(branch=branch)
        return any(snapshot.id == snapshot_id for snapshot in history)

    def _read(self, connection: Connection) -> Target:
        target = read_connection(connection)
        for secret in target.secrets.values():
            mask_secret(secret)
        return target

    def _arguments(self) -> dict[str, Any]:
        target = self.target
        arguments: dict[str, Any] = {
            "storage_options": {**target.options, **target.secrets},
            "read_only": target.read_only,
        }
        if target.credentials is not None:
            arguments["credentials"] = target.credentials
        return arguments
