"""New snapshots of a branch, as a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.spark.options import open_repository
from icefloe.spark.task_errors import marked

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before 4.2, Spark asks no source to stop at what is there.

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.streaming.datasource import ReadLimit

SCHEMA = (
    "snapshot_id string, parent_id string, written_at timestamp, message string, metadata string"
)


def begin_of(options: Mapping[str, str]) -> str:
    """Where a stream begins. Raises InvalidInputError if the option `from` is something else."""
    begin = options.get("from", "latest")
    if begin not in ("latest", "earliest"):
        raise InvalidInputError(f"the option 'from' is 'latest' or 'earliest', not {begin!r}")
    return begin


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """The snapshots after `start`, up to `end`."""

    start: str | None
    end: str


@dataclass
class SnapshotStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Snapshots that appear in a branch's history, oldest first.

    Offsets are snapshot ids. Where a branch was reset, those that the old history did not have
    follow. The option `from` is `latest` (what comes after the query began) or `earliest`.
    """

    options: dict[str, str]
    _target: str | None = field(default=None, init=False)
    """Where a query that stops at what is there now has to stop."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._tip()

    @marked()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if begin_of(self.options) == "earliest":
            return {"snapshot_id": None}
        return {"snapshot_id": self._tip()}

    @marked()
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        # Before 4.2, Spark says neither.
        return {"snapshot_id": self._target or self._tip()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        return [Range(start["snapshot_id"], end["snapshot_id"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if isinstance(partition, Range):
            with marked():
                yield from self._rows(partition)

    def _rows(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        repo = open_repository(self.options)
        known: set[str] = set()
        try:
            if partition.start is not None:
                known = {item.id for item in repo.ancestry(snapshot_id=partition.start)}
            history = repo.ancestry(snapshot_id=partition.end)
            new = list(takewhile(lambda item: item.id not in known, history))
        except NotFoundError as error:
            raise NotFoundError(
                f"{error}: the stream stood there, and what followed is not known any more. Start "
                "again with a new checkpoint, and expire snapshots later than streams read them",
                kind="stream-behind-expiry",
            ) from error
        for item in reversed(new):
            metadata = json.dumps(dict(item.metadata))
            yield item.id, item.parent_id, item.written_at, item.message, metadata

    def _tip(self) -> str:
        branch = self.options.get("branch", "main")
        return open_repository(self.options).lookup_branch(branch)
