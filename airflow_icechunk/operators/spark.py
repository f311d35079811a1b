"""Runs a Spark job that stages a write, and hands over the staged snapshot."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

import icefloe
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.lineage import operator_lineage
from airflow_icechunk.reports import SnapshotReport, report_snapshot
from airflow_icechunk.staged import snapshot_id
from airflow_icechunk.task_runs import TaskRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from subprocess import Popen

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

KILL_GRACE = 5.0
"""Seconds from asking the processes of a job to stop to making them."""


class IcechunkSparkSubmitOperator(SparkSubmitOperator):
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
    :param credentials: import path ``module:function`` of a function that gives secret storage
        options where the job runs.
    :param icechunk_conn_id: the connection to the repository. (templated)
    :param conn_id: the connection to Spark. It must exist.
    :param name: of the Spark application. (templated)
    :param kwargs: what ``SparkSubmitOperator`` takes, but ``application_args``; ``application`` is
        the driver program, and only worth giving where the cluster has it elsewhere.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "job",
        "job_params",
        "branch",
        "base",
        "key",
        "message",
        "metadata",
        "icechunk_conn_id",
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
        credentials: str | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        conn_id: str = "spark_default",
        name: str = "icechunk",
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=conn_id, name=name, **kwargs)
        self.job = job
        self.job_params = job_params
        self.branch = branch
        self.base = base
        self.key = key
        self.message = message
        self.metadata = metadata
        self.credentials = credentials
        self.icechunk_conn_id = icechunk_conn_id
        self._report: SnapshotReport | None = None

    @cached_property
    def hook(self) -> IcechunkHook:
        return IcechunkHook(self.icechunk_conn_id)

    def execute(self, context: Context) -> str:  # type: ignore[override]
        run = TaskRun.of(context)
        write_key = run.write_key(self.key)
        found = self.hook.repository.find_write(write_key)
        if found is None:
            found = self._submit(context, run, write_key)
        else:
            self.log.info("an earlier attempt has written %s: no job is submitted", found)
        self._report = report_snapshot(
            context, self.hook, found, outlets=self.outlets, write_key=write_key
        )
        return found

    def on_kill(self) -> None:
        # The provider kills the JVM alone; the Python driver below it would go on.
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None and process.poll() is None:
            end_process_group(process, KILL_GRACE)
        super().on_kill()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        return operator_lineage(self._report)

    def _submit(self, context: Context, run: TaskRun, write_key: str) -> str:
        # The provider falls back to YARN if there is no such connection; this raises.
        self.hook.get_connection(self._conn_id)
        self.application = self.application or driver_program()
        self.application_args = self._arguments(run, write_key)
        try:
            super().execute(context)
        except Exception:
            # A driver may die after it has written: the repository knows.
            found = self.hook.repository.find_write(write_key)
            if found is None:
                raise
            self.log.warning("the job failed after it had written %s", found, exc_info=True)
            return found
        finally:
            self._close_output()
        found = self.hook.repository.find_write(write_key)
        if found is None:
            raise RuntimeError(
                f"the job {self.job} ended well, but wrote nothing under the key {write_key}"
            )
        return found

    def _close_output(self) -> None:
        # The provider leaves the pipe open.
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None and process.poll() is not None and process.stdout is not None:
            process.stdout.close()

    def _arguments(self, run: TaskRun, write_key: str) -> list[str]:
        target = self.hook.target
        if target.secrets and not self.credentials:
            self.log.info(
                "the credentials of %s are not handed to Spark, which has to find its own",
                self.icechunk_conn_id,
            )
        start = ["--branch", self.branch]
        if self.base is not None:
            start = ["--base", snapshot_id(self.base)]
        arguments = ["--job", self.job, "--url", target.url, *start]
        arguments += ["--write-key", write_key, "--message", self.message]
        arguments += ["--metadata", json.dumps({**(self.metadata or {}), **run.stamp()})]
        arguments += ["--params", json.dumps(self.job_params or {})]
        if target.options:
            arguments += ["--storage-options", json.dumps(target.options)]
        if self.credentials:
            arguments += ["--credentials", self.credentials]
        return arguments

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        # In a session of their own, the processes of the job can be ended together.
        hook.submit = partial(hook.submit, start_new_session=True)  # type: ignore[method-assign]
        return hook


def driver_program() -> str:
    """The file that spark-submit runs."""
    return str(Path(icefloe.__file__).parent / "spark" / "app.py")


def end_process_group(process: Popen[Any], grace: float) -> None:
    """Ask all processes of a group to stop, and after `grace` seconds make them."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            # Reaped here, or the group would seem alive.
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)
