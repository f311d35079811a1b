"""Operators that keep a repository small and healthy."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_icechunk.ages import as_time, check_age, span
from airflow_icechunk.arguments import check_choice, check_flag, flag, given, number, some_texts
from airflow_icechunk.maintenance_jobs import (
    LEVELS,
    GarbageCollection,
    ManifestRewriting,
    Repacking,
    Verification,
    VerificationFailedError,
)
from airflow_icechunk.operators.icechunk import IcechunkOperator
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.telling import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_icechunk.ages import Age
    from airflow_icechunk.maintenance_jobs import Level, MaintenanceJob

__all__ = [
    "IcechunkExpireSnapshotsOperator",
    "IcechunkGarbageCollectOperator",
    "IcechunkRepackOperator",
    "IcechunkRewriteManifestsOperator",
    "IcechunkTrimOpsLogOperator",
    "IcechunkVerifyOperator",
    "VerificationFailedError",
]


class IcechunkExpireSnapshotsOperator(IcechunkOperator):
    """Release old snapshots from the history; return how many, and which branches and tags went.

    Where there is nothing to release, the repository is left untouched. Their files go with the
    next garbage collection.

    :param older_than: an age, or a time. (templated)
    :param keep_last: how many snapshots every branch keeps whatever their age. (templated)
    :param branches: expire these alone; None means all. (templated)
    :param delete_expired_branches: delete branches whose tip is older; never ``main``.
        (templated)
    :param delete_expired_tags: delete tags whose snapshot is older; their names stay taken.
        (templated)
    :param dry_run: count, but change nothing. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "older_than",
        "keep_last",
        "branches",
        "delete_expired_branches",
        "delete_expired_tags",
        "is_dry_run",
    )

    def __init__(
        self,
        *,
        older_than: Age,
        keep_last: int | str | None = None,
        branches: Collection[str] | None = None,
        delete_expired_branches: bool | str = False,
        delete_expired_tags: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_age("older_than", older_than)
        check_flag("delete_expired_branches", delete_expired_branches)
        check_flag("delete_expired_tags", delete_expired_tags)
        check_flag("dry_run", dry_run)
        self.older_than = older_than
        self.keep_last = keep_last
        self.branches = branches
        self.delete_expired_branches = delete_expired_branches
        self.delete_expired_tags = delete_expired_tags
        self.is_dry_run = dry_run
        self._given = given(keep_last=keep_last, branches=branches)

    def execute(self, context: Context) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "older_than": as_time("older_than", self.older_than),
            "keep_last": None,
            "branches": None,
            "delete_expired_branches": flag(
                "delete_expired_branches", self.delete_expired_branches
            ),
            "delete_expired_tags": flag("delete_expired_tags", self.delete_expired_tags),
        }
        if "keep_last" in self._given:
            arguments["keep_last"] = number("keep_last", self.keep_last)
        if "branches" in self._given:
            arguments["branches"] = some_texts("branches", self.branches)
        is_dry_run = flag("dry_run", self.is_dry_run)
        result = self.repository.expire_snapshots(**arguments, dry_run=True)
        found = result.released_snapshots or result.deleted_branches or result.deleted_tags
        if found and not is_dry_run:
            result = self.repository.expire_snapshots(**arguments, dry_run=False)
        answer = {
            "released_snapshots": len(result.released_snapshots),
            "deleted_branches": [*result.deleted_branches],
            "deleted_tags": [*result.deleted_tags],
            "dry_run": is_dry_run,
        }
        cutoff = arguments["older_than"].isoformat(timespec="seconds")
        self.say("expired what is older than %s: %s", cutoff, counted(answer))
        return answer


class IcechunkGarbageCollectOperator(IcechunkOperator):
    """Delete what no branch, tag or young snapshot needs; return what was deleted.

    A write that takes longer than ``grace`` may lose what it uploaded first: let no writer take
    that long. The result is ``{"skipped": True}`` where nothing can have become garbage since the
    last collection.

    :param grace: how old an object must be. (templated)
    :param skip_unchanged: do nothing where the log of operations shows no change that could leave
        garbage since the last collection. Uploads of writers that never committed wait, too.
        (templated)
    :param force: accept a grace period of less than a day. (templated)
    :param dry_run: count, but delete nothing. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "grace",
        "skip_unchanged",
        "force",
        "is_dry_run",
    )

    def __init__(
        self,
        *,
        grace: timedelta | str = timedelta(days=7),
        skip_unchanged: bool | str = True,
        force: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_age("grace", grace)
        check_flag("skip_unchanged", skip_unchanged)
        check_flag("force", force)
        check_flag("dry_run", dry_run)
        self.grace = grace
        self.skip_unchanged = skip_unchanged
        self.force = force
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> Any:
        job = GarbageCollection(
            grace=self.grace,
            skip_unchanged=flag("skip_unchanged", self.skip_unchanged),
            force=flag("force", self.force),
            dry_run=flag("dry_run", self.is_dry_run),
        )
        return do_here(self, job, context)


class IcechunkVerifyOperator(IcechunkOperator):
    """Read the repository as a doubting reader would; return how much is wrong, by severity.

    Findings are logged. Errors fail the task, without a retry.

    :param level: ``metadata`` reads all metadata files; ``objects`` also compares the chunk objects
        with all references; ``data`` also reads and decodes all chunks. (templated)
    :param fail_on: the least severity that fails the task: ``error`` or ``warning``.
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "level")

    def __init__(
        self,
        *,
        level: Level = "metadata",
        fail_on: Literal["error", "warning"] = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("level", level, LEVELS)
        check_choice("fail_on", fail_on, ["error", "warning"])
        self.level = level
        self.fail_on = fail_on

    def execute(self, context: Context) -> Any:
        return do_here(self, Verification(level=self.level, fail_on=self.fail_on), context)


class IcechunkRewriteManifestsOperator(IcechunkOperator):
    """Cut the manifests of a branch as the configuration says now; return the new tip.

    Values stay as they are. Each attempt commits; only manifests that do not fit are rewritten.

    :param branch: the branch. (templated)
    :param message: of the commit. (templated)
    :param metadata: any JSON, kept with the commit. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "branch",
        "message",
        "metadata",
    )

    def __init__(
        self,
        *,
        branch: str = "main",
        message: str = "Rewrite manifests",
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.message = message
        self.metadata = metadata

    def execute(self, context: Context) -> Any:
        job = ManifestRewriting(branch=self.branch, message=self.message, metadata=self.metadata)
        return do_here(self, job, context)


class IcechunkRepackOperator(IcechunkOperator):
    """Move small chunks into larger objects; return counts, and the new tip if there is one.

    Values stay as they are; a second attempt finds nothing left to do.

    :param branch: the branch. (templated)
    :param arrays: paths of arrays; None means all. (templated)
    :param message: of the commit. (templated)
    :param metadata: any JSON, kept with the commit. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (
        *IcechunkOperator.template_fields,
        "branch",
        "arrays",
        "message",
        "metadata",
    )

    def __init__(
        self,
        *,
        branch: str = "main",
        arrays: Collection[str] | None = None,
        message: str = "Repack small chunks",
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.arrays = arrays
        self.message = message
        self.metadata = metadata
        self._given = given(arrays=arrays)

    def execute(self, context: Context) -> Any:
        arrays = some_texts("arrays", self.arrays) if "arrays" in self._given else None
        job = Repacking(
            branch=self.branch, arrays=arrays, message=self.message, metadata=self.metadata
        )
        return do_here(self, job, context)


class IcechunkTrimOpsLogOperator(IcechunkOperator):
    """Delete backups of the repo object that only old operations need; return counts.

    :param keep: how many of the latest operations to keep, or how old ones; never less than 1,000.
        (templated)
    :param dry_run: count, but delete nothing. (templated)
    :param icechunk_conn_id: the connection. (templated)
    """

    template_fields: Sequence[str] = (*IcechunkOperator.template_fields, "keep", "is_dry_run")

    def __init__(
        self,
        *,
        keep: int | timedelta | str = 1000,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_flag("dry_run", dry_run)
        self.keep = keep
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        age = self.keep if isinstance(self.keep, timedelta) else span(self.keep)
        keep = number("keep", self.keep) if age is None else age
        is_dry_run = flag("dry_run", self.is_dry_run)
        result = self.repository.trim_ops_log(keep=keep, dry_run=is_dry_run)
        if result.failures:
            raise RuntimeError(f"{len(result.failures)} backups could not be deleted")
        answer = {
            "backups_deleted": result.backups_deleted,
            "bytes_deleted": result.bytes_deleted,
            "operations_kept": result.operations_kept,
            "dry_run": is_dry_run,
        }
        self.say("trimmed the log of operations, keeping %s: %s", keep, counted(answer))
        return answer


def do_here(operator: IcechunkOperator, job: MaintenanceJob, context: Context) -> Any:
    """Run a job in this process, unless there is nothing to do; what the task returns."""
    repository = operator.repository
    if (answer := job.find_needless(repository)) is not None:
        operator.say("%s", job.describe(answer))
        return answer
    result = job.run(repository, TaskRun.of(context).stamp())
    answer = job.answer(result)
    operator.say("%s", job.describe(answer))
    if job.branch is not None:
        tip = result["snapshot_id"] or operator.hook.branch_head(job.branch)
        operator.report(context, tip, branch=job.branch)
    return answer
