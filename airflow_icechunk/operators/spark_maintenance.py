"""Runs maintenance on Spark, for repositories that are too large for one worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_icechunk.arguments import given, mapping, required
from airflow_icechunk.failures import final_errors
from airflow_icechunk.lineage import operator_lineage
from airflow_icechunk.links import LINKS
from airflow_icechunk.maintenance_jobs import JOBS, check_options, make_job
from airflow_icechunk.reports import SnapshotReport, report_snapshot
from airflow_icechunk.spark_jobs import IcechunkSparkOperator
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.telling import told
from icefloe.job_reports import delete_report, find_report

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_icechunk.maintenance_jobs import MaintenanceJob


class IcechunkSparkMaintenanceOperator(IcechunkSparkOperator):
    """Collect garbage, verify, rewrite manifests or repack on Spark; return what was done.

    Options, results and the reasons to skip or to fail are those of the operator that does the same
    in a worker: ``IcechunkGarbageCollectOperator``, ``IcechunkVerifyOperator``,
    ``IcechunkRewriteManifestsOperator`` and ``IcechunkRepackOperator``.

    The driver leaves its report in the repository. A retry that finds the report of an earlier
    attempt returns that, and submits nothing. Clearing the task does the work again.

    :param maintenance: ``garbage_collect``, ``verify``, ``rewrite_manifests`` or ``repack``.
    :param options: arguments of the operator that does the same in a worker. (templated)
    :param credentials: import path ``module:function`` of a function that gives secret storage
        options where the job runs.
    :param icechunk_conn_id: the connection to the repository. (templated)
    :param conn_id: the connection to Spark. It must exist.
    :param name: of the Spark application; Dag, task, map index and run without it. (templated)
    :param kwargs: what ``SparkSubmitOperator`` takes, but ``application_args``.
    """

    template_fields: Sequence[str] = (*IcechunkSparkOperator.template_fields, "options")
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}
    operator_extra_links: Collection[BaseOperatorLink] = LINKS

    def __init__(
        self, *, maintenance: str, options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if maintenance not in JOBS:
            raise ValueError(f"there is no maintenance {maintenance!r}; there is {', '.join(JOBS)}")
        if isinstance(options, Mapping):
            # What templates make of the values is seen later.
            check_options(maintenance, options)
        self.maintenance = maintenance
        self.options = options
        self._is_given = options is not None
        self._given = given(**options) if isinstance(options, Mapping) else frozenset()
        self._report: SnapshotReport | None = None

    @final_errors()
    def execute(self, context: Context) -> Any:
        if self._is_given and not isinstance(self.options, Mapping):
            required("options", self.options)
        options = mapping("options", self.options)
        job = make_job(self.maintenance, options, self._given)
        run = TaskRun.of(context)
        key = run.write_key(job.TASK)
        repository = self.hook.repository
        report = find_report(repository.storage, key)
        if report is None:
            if (needless := job.find_needless(repository)) is not None:
                self.log.info("%s", told(self.hook, "%s", job.describe(needless)))
                return needless
            report = self._submit(context, job, run, key)
        else:
            message = "an earlier attempt has done it: no job is submitted"
            self.log.info("%s", told(self.hook, message))
        try:
            answer = job.answer(report["result"])
            self.log.info("%s", told(self.hook, "%s", job.describe(answer)))
            self._tell(context, job, report["result"])
        finally:
            # A retry of what failed has to do it again.
            delete_report(repository.storage, key)
        return answer

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        return operator_lineage(self._report)

    def _submit(
        self, context: Context, job: MaintenanceJob, run: TaskRun, key: str
    ) -> dict[str, Any]:
        arguments = ["--task", job.TASK, "--report-key", key]
        arguments += ["--params", json.dumps(job.parameters(run.stamp()))]
        storage = self.hook.repository.storage
        try:
            self.run_driver(context, "maintenance_app.py", arguments, key=key)
        except Exception:
            # A driver may die after it has reported: the repository knows.
            report = find_report(storage, key)
            if report is None:
                raise
            self.log.warning("the job failed after it had reported", exc_info=True)
            return report
        report = find_report(storage, key)
        if report is None:
            raise RuntimeError(f"the job ended well, but left no report under the key {key}")
        return report

    def _tell(self, context: Context, job: MaintenanceJob, result: Mapping[str, Any]) -> None:
        if job.branch is None:
            return
        tip = result["snapshot_id"] or self.hook.branch_head(job.branch)
        self._report = report_snapshot(
            context, self.hook, tip, outlets=self.outlets, branch=job.branch
        )
