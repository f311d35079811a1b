"""Airflow's LocalExecutor without a server: tasks run in processes side by side, on one database.

A worker of the LocalExecutor talks to the execution API over HTTP. Here each worker brings the API
along and calls it in its own process.
"""

from __future__ import annotations

import multiprocessing
import signal
from typing import TYPE_CHECKING, Any

import structlog
from airflow import settings
from airflow.executors.local_executor import LocalExecutor
from airflow.sdk.api.client import Client
from airflow.sdk.execution_time.supervisor import in_process_api_server, supervise_task

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue


class EmbeddedExecutor(LocalExecutor):
    """Runs tasks in parallel, with nothing else running."""

    def _spawn_worker(self) -> None:
        worker = multiprocessing.Process(
            target=work,
            args=(self.activity_queue, self.result_queue, self._unread_messages),
        )
        worker.start()
        assert worker.pid is not None
        self.workers[worker.pid] = worker


def work(tasks: SimpleQueue[Any], results: SimpleQueue[Any], unread: Any) -> None:
    """Take tasks until there is a None, one after the other, each in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Connections to a database do not survive a fork.
    settings.reconfigure_orm()
    client = _client()
    while (task := tasks.get()) is not None:
        with unread:
            unread.value -= 1
        if task.running_state is not None:
            results.put((task.key, task.running_state, None))
        try:
            supervise_task(
                ti=task.ti,
                bundle_info=task.bundle_info,
                dag_rel_path=task.dag_rel_path,
                token="",
                client=client,
                log_path=task.log_path,
                subprocess_logs_to_stdout=True,
            )
            results.put((task.key, task.success_state, None))
        except Exception as error:
            structlog.get_logger(__name__).exception("a task could not be run")
            results.put((task.key, task.failure_state, error))


def _client() -> Client:
    # Built before the fork; its thread starts here, because threads do not survive one.
    transport = in_process_api_server().transport
    client = Client(base_url=None, token="", dry_run=True, transport=transport)
    client.base_url = "http://in-process.invalid./"
    return client
