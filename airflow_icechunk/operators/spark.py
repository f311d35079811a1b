"""Runs a Spark job that stages a write, and hands over the staged snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_icechunk.arguments import (
    check_flag,
    check_function,
    flag,
    given,
    mapping,
    required,
    texts,
)
from airflow_icechunk.failures import final_errors
from airflow_icechunk.lineage import operator_lineage
from airflow_icechunk.reports import SnapshotReport, report_snapshot
from airflow_icechunk.spark_jobs import IcechunkSparkOperator
from airflow_icechunk.staged import named_id
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.telling import told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class IcechunkSparkSubmitOperator(IcechunkSparkOperator):
    """Run ``job(spark, session, **job_params)`` on Spark; return the snapshot it staged.

    The job writes through the session. When it returns, what it wrote is flushed as a staged
    snapshot under a write key, which this operator makes of Dag, run, task, map index and ``key``.
    The operator looks the key up before it submits, so a retry takes what an earlier attempt has
    written, and again afterwards: the repository is the result channel. A driver that outlives its
    task can so not write twice.

    Clearing the task makes a new key: the work is done again.

    Credentials are not handed to Spark. Its driver and executors find their own (instance role,
    environment), or ``credentials`` names a function that finds them there.

    :param job: import path of the function, ``module:function``. (templated)
    :param job_params: keyword arguments of the job, any JSON. (templated)
    :param branch: where the write starts from, if there is no ``base``. (templated)
    :param base: the snapshot that the write starts from, such as the one that another task
        prepared. (templated)
    :param key: what tells this write from others of the task, such as a region; worth giving to
        mapped tasks, because after a clear an index may mean another item. (templated)
    :param message: of the staged snapshot. (templated)
    :param metadata: any JSON, kept with the staged snapshot. (templated)
    :param virtual_chunks: prefixes of containers whose virtual chunks the job may read, with
        credentials that Spark finds. (templated)
    :param credentials: import path ``module:function`` of a function that gives secret storage
        options where the job runs.
    :param icechunk_conn_id: the connection to the repository. (templated)
    :param conn_id: the connection to Spark. It must exist.
    :param allow_empty: a job that writes nothing stages an empty snapshot; otherwise it fails.
        (templated)
    :param name: of the Spark application; Dag, task, map index and run without it. (templated)
    :param kwargs: what ``SparkSubmitOperator`` takes, but ``application_args``; ``application`` is
        the driver program, and only worth giving where the cluster has it elsewhere.
    """

    template_fields: Sequence[str] = (
        *IcechunkSparkOperator.template_fields,
        "job",
        "job_params",
        "branch",
        "base",
        "key",
        "message",
        "metadata",
        "virtual_chunks",
        "allow_empty",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"job_params": "json", "metadata": "json"}

    def __init__(
        self,
        *,
        job: str,
        job_params: Mapping[str, Any] | None = None,
        branch: str = "main",
        base: str | None = None,
        key: str | None = None,
        message: str = "{{ task.task_id }} of {{ dag.dag_id }}, {{ run_id }}",
        metadata: Mapping[str, Any] | None = None,
        virtual_chunks: Sequence[str] = (),
        allow_empty: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_function("job", job)
        check_flag("allow_empty", allow_empty)
        self.job = job
        self.job_params = job_params
        self.branch = branch
        self.base = base
        self.key = key
        self.message = message
        self.metadata = metadata
        self.virtual_chunks = virtual_chunks
        self.allow_empty = allow_empty
        self._given = given(base=base, key=key, job_params=job_params)
        self._report: SnapshotReport | None = None

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Of a mapped task nothing is made when the Dag is parsed: what is known is judged here."""
        for name in {"job", "credentials"} & kwargs.keys():
            check_function(name, kwargs[name])
        return super().partial(**kwargs)

    @final_errors()
    def execute(self, context: Context) -> str:  # type: ignore[override]
        check_function("job", self.job)
        run = TaskRun.of(context)
        write_key = run.write_key(required("key", self.key) if "key" in self._given else None)
        found = self.hook.repository.find_write(write_key)
        if found is None:
            found = self._submit(context, run, write_key)
        else:
            message = "an earlier attempt has staged %s: no job is submitted"
            self.log.info("%s", told(self.hook, message, found))
        self._report = report_snapshot(
            context, self.hook, found, outlets=self.outlets, write_key=write_key
        )
        return found

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        return operator_lineage(self._report)

    def _submit(self, context: Context, run: TaskRun, write_key: str) -> str:
        try:
            self.run_driver(context, "app.py", self._arguments(run, write_key), key=write_key)
        except Exception:
            # A driver may die after it has written: the repository knows.
            found = self.hook.repository.find_write(write_key)
            if found is None:
                raise
            message = "the job failed after it had staged %s"
            self.log.warning("%s", told(self.hook, message, found), exc_info=True)
            return found
        found = self.hook.repository.find_write(write_key)
        if found is None:
            raise RuntimeError(
                f"the job {self.job} ended well, but wrote nothing under the key {write_key}"
            )
        message = "the job %s staged %s under the key %s"
        self.log.info("%s", told(self.hook, message, self.job, found, write_key))
        return found

    def _arguments(self, run: TaskRun, write_key: str) -> list[str]:
        if "base" in self._given:
            start = ["--base", named_id("base", self.base)]
        else:
            start = ["--branch", required("branch", self.branch)]
        if "job_params" in self._given and not isinstance(self.job_params, Mapping):
            required("job_params", self.job_params)
        metadata = {**mapping("metadata", self.metadata), **run.stamp()}
        arguments = ["--job", self.job, *start]
        arguments += ["--write-key", write_key, "--message", required("message", self.message)]
        arguments += ["--allow-empty"] if flag("allow_empty", self.allow_empty) else []
        arguments += ["--metadata", json.dumps(metadata)]
        for prefix in texts("virtual_chunks", self.virtual_chunks):
            arguments += ["--virtual-chunks", prefix]
        return [*arguments, "--params", json.dumps(mapping("job_params", self.job_params))]
