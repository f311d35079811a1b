"""Operators on a repository as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_icechunk.arguments import check_choice
from airflow_icechunk.operators.icechunk import IcechunkOperator
from icefloe import Availability, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from icefloe import RepositoryConfig

_KNOWN = {item.name.lower(): item for item in Availability}


class IcechunkCreateRepositoryOperator(IcechunkOperator):
    """Create the repository of the connection where there is none; return the tip of ``main``.

    :param config: kept in a new repository, for all its clients; an existing one keeps its own.
    :param icechunk_conn_id: the connection. (templated)
    """

    def __init__(self, *, config: RepositoryConfig | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def execute(self, context: Context) -> str:
        try:
            self.hook.open()
        except NotFoundError:
            done = "created the repository"
        else:
            done = "the repository is there already, and keeps its configuration"
        tip = self.hook.open_or_create(self.config).lookup_branch("main")
        self.say("%s; main is at %s", done, tip)
        return self.report(context, tip, branch="main")


class IcechunkSetStatusOperator(IcechunkOperator):
    """Bring the repository online, make it read-only, or take it offline; return the status.

    For a window without writers: set ``read_only`` before, and ``online`` in a teardown after.

    :param status: ``online``, ``read_only`` or ``offline``. (templated)
    :param reason: shown to whoever is refused. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "status", "reason")

    def __init__(
        self,
        *,
        status: Literal["online", "read_only", "offline"] | str,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("status", status, _KNOWN)
        self.status = status
        self.reason = reason

    def execute(self, context: Context) -> dict[str, str | None]:
        check_choice("status", self.status, _KNOWN)
        wanted = _KNOWN[self.status]
        now = self.repository.get_status()
        if (now.availability, now.reason) != (wanted, self.reason):
            self.repository.set_status(wanted, self.reason)
            before = Availability(now.availability).name.lower()
            self.say("the status was %s, and is %s now", before, self.status)
        else:
            self.say("the status is %s already", self.status)
        return {"status": self.status, "reason": self.reason}
