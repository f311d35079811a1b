"""Running a driver program of icefloe on Spark: no credentials handed over, all processes ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowNotFoundException

import icefloe
from airflow_icechunk.arguments import check_function
from airflow_icechunk.failures import MissingConnectionError, WrongConnectionError, job_error
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.links import LINKS
from icefloe import IcefloeError
from icefloe.job_reports import FAILURE_PREFIX, delete_failure, find_failure

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from subprocess import Popen

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import BaseOperatorLink, Context

APPLICATION_NAME = (
    "{{ dag.dag_id | truncate(60, True, '') }}.{{ task.task_id | truncate(60, True, '') }}"
    "{{ '[%d]' | format(ti.map_index) if ti.map_index is number and ti.map_index >= 0 else '' }}"
    ".{{ run_id | truncate(60, True, '') }}"
)
"""Readable in Spark's user interface, and bounded."""
KILL_GRACE = 5.0
"""Seconds from asking the processes of a job to stop to making them."""


class IcechunkSparkOperator(SparkSubmitOperator):
    """Base of operators that run a driver program of icefloe.

    Credentials are not handed to Spark. Its driver and executors find their own (instance role,
    environment), or ``credentials`` names a function that finds them there.

    :param credentials: import path ``module:function`` of a function that gives secret storage
        options where the job runs.
    :param icechunk_conn_id: the connection to the repository. (templated)
    :param conn_id: the connection to Spark. It must exist.
    :param name: of the Spark application; Dag, task, map index and run without it. (templated)
    :param kwargs: what ``SparkSubmitOperator`` takes, but ``application_args``; ``application`` is
        the driver program, and only worth giving where the cluster has it elsewhere.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "icechunk_conn_id")
    operator_extra_links: Collection[BaseOperatorLink] = LINKS
    left_snapshot = False

    def __init__(
        self,
        *,
        credentials: str | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        conn_id: str = "spark_default",
        name: str = APPLICATION_NAME,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=conn_id, name=name, **kwargs)
        if credentials is not None:
            check_function("credentials", credentials)
        if "application_args" in kwargs:
            raise ValueError("application_args are made by this operator: give job_params")
        self.credentials = credentials
        self.icechunk_conn_id = icechunk_conn_id
        self._failure: dict[str, Any] | None = None

    @cached_property
    def hook(self) -> IcechunkHook:
        return IcechunkHook(self.icechunk_conn_id)

    def run_driver(
        self, context: Context, program: str, arguments: Sequence[str], *, key: str
    ) -> None:
        """Submit a program of ``icefloe.spark``, and wait until it has ended.

        :param context: of the task.
        :param program: its file name, unless ``application`` is given.
        :param arguments: beside those that say where the repository is.
        :param key: tells this work from what the task did before it was cleared.
        """
        # Under it the provider remembers a driver on the cluster, to go on with it in a retry.
        self.external_id_key = f"spark_job_{key}"
        self._check_connection()
        self.application = self.application or driver_program(program)
        self.application_args = [*arguments, "--app-name", self.name, *self._place()]
        storage = self.hook.repository.storage
        self._failure = None
        # The driver does so, too: a worker that may only read need not fail.
        with contextlib.suppress(IcefloeError):
            delete_failure(storage, key)
        try:
            super().execute(context)
        except Exception:
            failure = self._failure or find_failure(storage, key)
            if failure is None:
                raise
            # What spark-submit says of it is in the log already.
            raise job_error(failure) from None
        finally:
            self._close_output()

    def on_kill(self) -> None:
        # The provider kills the JVM alone; the Python driver below it would go on.
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None and process.poll() is None:
            end_process_group(process, KILL_GRACE)
        super().on_kill()

    def _place(self) -> list[str]:
        """Where the repository is, without what is secret: arguments are shown by `ps`."""
        target = self.hook.target
        if target.secrets and not self.credentials:
            self.log.info(
                "the credentials of %s are not handed to Spark, which has to find its own",
                self.icechunk_conn_id,
            )
        arguments = ["--url", target.url]
        if target.options:
            arguments += ["--storage-options", json.dumps(target.options)]
        if self.credentials:
            arguments += ["--credentials", self.credentials]
        return arguments

    def _close_output(self) -> None:
        # The provider leaves the pipe open.
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None and process.poll() is not None and process.stdout is not None:
            process.stdout.close()

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        # In a session of their own, the processes of the job can be ended together.
        hook.submit = partial(hook.submit, start_new_session=True)  # type: ignore[method-assign]
        read = hook._process_spark_submit_log

        def read_failure(lines: Iterator[Any]) -> None:
            read(self._with_failure(lines))

        hook._process_spark_submit_log = read_failure  # type: ignore[method-assign,assignment]
        return hook

    def _with_failure(self, lines: Iterable[str]) -> Iterator[str]:
        """Output of the driver, in which the reason of a failure may be told."""
        for line in lines:
            _, prefix, told = line.partition(FAILURE_PREFIX)
            if prefix:
                with contextlib.suppress(ValueError):
                    # Another process may have written into the line: the storage has it, too.
                    self._failure = json.loads(told)
            yield line

    def _check_connection(self) -> None:
        try:
            connection = self.hook.get_connection(self._conn_id)
        except AirflowNotFoundException as error:
            # The provider would fall back to YARN.
            raise MissingConnectionError(str(error)) from None
        if connection.conn_type == IcechunkHook.conn_type:
            raise WrongConnectionError(
                f"conn_id is {self._conn_id!r}, a connection of the type icechunk, and must be one "
                "to Spark; the one to the repository is icechunk_conn_id"
            )


def driver_program(name: str = "app.py") -> str:
    """The file that spark-submit runs."""
    return str(Path(icefloe.__file__).parent / "spark" / name)


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
