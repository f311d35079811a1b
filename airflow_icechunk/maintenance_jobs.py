"""Maintenance that runs in a worker or on Spark: what is asked, and what is made of the result."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_icechunk.ages import as_time, check_age
from airflow_icechunk.arguments import (
    WrongArgumentError,
    check_choice,
    check_flag,
    flag,
    mapping,
    required,
    some_texts,
)
from airflow_icechunk.garbage import may_have_garbage
from airflow_icechunk.telling import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from icefloe import Repository

    type Stamp = Mapping[str, str | int]
    """Who does it; kept as metadata of a commit."""

log = logging.getLogger(__name__)

type Level = Literal["metadata", "objects", "data"]
LEVELS = get_args(Level.__value__)

_SHOWN = 100
"""Findings of one severity that are logged."""


class VerificationFailedError(AirflowFailException):
    """The repository is damaged: a retry would not change that, so none is made."""


class MaintenanceJob(Protocol):
    """A job; its fields are the options of the operator."""

    TASK: ClassVar[str]
    """What the driver program of icefloe calls it."""

    @property
    def branch(self) -> str | None:
        """The one that a commit of the job moves."""
        ...

    def find_needless(self, repository: Repository) -> dict[str, Any] | None:
        """The answer, if there is nothing to do."""
        ...

    def parameters(self, stamp: Stamp) -> dict[str, Any]:
        """For the driver program, as JSON."""
        ...

    def run(self, repository: Repository, stamp: Stamp) -> dict[str, Any]:
        """Do it here; the result as the driver program would report it."""
        ...

    def answer(self, result: Mapping[str, Any]) -> Any:
        """What a task returns; raises if the result is bad."""
        ...

    def describe(self, answer: Any) -> str:
        """The answer in words, for the log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollection:
    """See ``IcechunkGarbageCollectOperator``."""

    TASK: ClassVar[str] = "garbage_collect"
    branch: ClassVar[str | None] = None
    grace: timedelta | str = timedelta(days=7)
    skip_unchanged: bool = True
    force: bool = False
    dry_run: bool = False

    def find_needless(self, repository: Repository) -> dict[str, Any] | None:
        grace = datetime.now(UTC) - as_time("grace", self.grace)
        if not self.skip_unchanged or may_have_garbage(repository.ops_log(), grace):
            return None
        return {"skipped": True, "dry_run": self.dry_run}

    def parameters(self, stamp: Stamp) -> dict[str, Any]:
        cutoff = as_time("grace", self.grace).isoformat()
        return {"delete_object_older_than": cutoff, "dry_run": self.dry_run, "force": self.force}

    def run(self, repository: Repository, stamp: Stamp) -> dict[str, Any]:
        summary = repository.garbage_collect(
            delete_object_older_than=as_time("grace", self.grace),
            dry_run=self.dry_run,
            force=self.force,
        )
        return asdict(summary)

    def answer(self, result: Mapping[str, Any]) -> dict[str, Any]:
        if failed := result["objects_failed_to_delete"]:
            reasons = "; ".join(result["delete_errors"])
            raise RuntimeError(f"{failed} objects could not be deleted: {reasons}")
        return {"skipped": False, **{name: result[name] for name in _GC_COUNTS}}

    def describe(self, answer: Any) -> str:
        if answer["skipped"]:
            return "no garbage to collect: nothing has left any since the last collection"
        cutoff = as_time("grace", self.grace).isoformat(timespec="seconds")
        return f"collected garbage older than {cutoff}: {counted(answer)}"


_GC_COUNTS = (
    "bytes_deleted",
    "chunks_deleted",
    "manifests_deleted",
    "snapshots_deleted",
    "transaction_logs_deleted",
    "dry_run",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """See ``IcechunkVerifyOperator``."""

    TASK: ClassVar[str] = "verify"
    branch: ClassVar[str | None] = None
    level: Level = "metadata"
    fail_on: Literal["error", "warning"] = "error"

    def find_needless(self, repository: Repository) -> dict[str, Any] | None:
        return None

    def parameters(self, stamp: Stamp) -> dict[str, Any]:
        check_choice("level", self.level, LEVELS)
        check_choice("fail_on", self.fail_on, ["error", "warning"])
        return {"level": self.level}

    def run(self, repository: Repository, stamp: Stamp) -> dict[str, Any]:
        return {
            "findings": [asdict(finding) for finding in repository.verify(**self.parameters(stamp))]
        }

    def answer(self, result: Mapping[str, Any]) -> dict[str, Any]:
        counts = Counter[str]()
        for finding in result["findings"]:
            severity = finding["severity"]
            counts[severity] += 1
            if counts[severity] <= _SHOWN:
                told = (finding["file"], finding["message"], finding["what_to_do"])
                log.warning("%s in %s: %s; %s", severity, *told)
        failing = counts["error"] + (counts["warning"] if self.fail_on == "warning" else 0)
        if failing:
            raise VerificationFailedError(f"{failing} things are wrong with the repository")
        return {"level": self.level, **{name: counts[name] for name in ("error", "warning")}}

    def describe(self, answer: Any) -> str:
        return f"verified the repository: {counted(answer)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRewriting:
    """See ``IcechunkRewriteManifestsOperator``."""

    TASK: ClassVar[str] = "rewrite_manifests"
    branch: str = "main"
    message: str = "Rewrite manifests"
    metadata: Mapping[str, Any] | None = None

    def find_needless(self, repository: Repository) -> dict[str, Any] | None:
        return None

    def parameters(self, stamp: Stamp) -> dict[str, Any]:
        metadata = {**mapping("metadata", self.metadata), **stamp}
        return {
            "message": required("message", self.message),
            "branch": required("branch", self.branch),
            "metadata": metadata,
        }

    def run(self, repository: Repository, stamp: Stamp) -> dict[str, Any]:
        return {"snapshot_id": repository.rewrite_manifests(**self.parameters(stamp))}

    def answer(self, result: Mapping[str, Any]) -> Any:
        return result["snapshot_id"]

    def describe(self, answer: Any) -> str:
        return f"cut the manifests of {self.branch} as configured; its tip is {answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repacking:
    """See ``IcechunkRepackOperator``."""

    TASK: ClassVar[str] = "repack"
    branch: str = "main"
    arrays: Collection[str] | None = None
    message: str = "Repack small chunks"
    metadata: Mapping[str, Any] | None = None

    def find_needless(self, repository: Repository) -> dict[str, Any] | None:
        return None

    def parameters(self, stamp: Stamp) -> dict[str, Any]:
        return {
            "branch": required("branch", self.branch),
            "arrays": None if self.arrays is None else some_texts("arrays", self.arrays),
            "message": required("message", self.message),
            "metadata": {**mapping("metadata", self.metadata), **stamp},
        }

    def run(self, repository: Repository, stamp: Stamp) -> dict[str, Any]:
        return asdict(repository.repack(**self.parameters(stamp)))

    def answer(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return dict(result)

    def describe(self, answer: Any) -> str:
        return f"repacked {self.branch}: {counted(answer)}"


JOBS: dict[str, type[MaintenanceJob]] = {
    kind.TASK: kind for kind in (GarbageCollection, Verification, ManifestRewriting, Repacking)
}


def make_job(name: str, options: Mapping[str, Any], filled: Collection[str] = ()) -> MaintenanceJob:
    """The job of a name, with these options, in which nothing is a template any more.

    :param name: of the job.
    :param options: its fields.
    :param filled: options that must not be None.
    :raises ValueError: there is no such job, it has no such option, or a value is wrong.
    """
    kind, flags = _kind(name, options)
    for option in filled:
        if options.get(option) is None:
            raise WrongArgumentError(f"{option} is None: look at its template")
    found = {
        option: flag(option, value) if option in flags else value
        for option, value in options.items()
    }
    job: MaintenanceJob = kind(**found)
    return job


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Judge what is known of options when the Dag is parsed.

    :raises ValueError: as for `make_job`; what is not known yet is let through.
    """
    _, flags = _kind(name, options)
    for option in flags & options.keys():
        check_flag(option, options[option])
    if "grace" in options:
        check_age("grace", options["grace"])
    for option, choices in (("level", LEVELS), ("fail_on", ["error", "warning"])):
        if option in options:
            check_choice(option, options[option], choices)


def _kind(name: str, options: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """The class of a job, and which of its options are yes or no."""
    if name not in JOBS:
        raise ValueError(f"there is no maintenance {name!r}; there is {', '.join(JOBS)}")
    kind: Any = JOBS[name]
    known = {field.name for field in fields(kind)}
    if unknown := options.keys() - known:
        raise ValueError(
            f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
        )
    return kind, {field.name for field in fields(kind) if isinstance(field.default, bool)}
