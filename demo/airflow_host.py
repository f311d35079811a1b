"""The process that Airflow runs in: it starts Dag runs on request, and answers when they end.

No server is started. Requests come as lines of JSON on stdin, answers go as lines of JSON to
stdout; what Airflow and its tasks print goes to stderr, which is a file. At the end of stdin it
ends, and everything it started with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import httpx

from demo.processes import end_descendants

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from fastapi import FastAPI

_FORK = get_context("fork")


def main() -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    dags = prepare()
    _answer(answers, {"ready": sorted(dags)})
    try:
        for line in sys.stdin:
            request = json.loads(line)
            run = _FORK.Process(target=_run, args=(dags[request["dag_id"]], request, answers))
            run.start()
    finally:
        end_descendants(os.getpid())


def prepare() -> dict[str, DAG]:
    """A database with all tables, the Dags, and all modules that a task needs: forks have them."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.sdk.execution_time import task_runner as task_runner
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from airflow.utils.db import initdb

    initdb()
    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = manager.get_all_dag_bundles()
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    if bag.import_errors:
        raise RuntimeError("\n".join(bag.import_errors.values()))
    # Every run would do it, and two at once get into each other's way.
    sync_bag_to_db(bag, bundle.name, bundle.version)
    asyncio.run(_build(in_process_api_server().app))
    return dict(bag.dags)


async def _build(api: FastAPI) -> None:
    """Let the execution API build its routes, which takes seconds: it does so when first asked."""
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://in-process") as client:
        (await client.get("/health")).raise_for_status()


def _run(dag: DAG, request: dict[str, Any], answers: int) -> None:
    from airflow import settings

    settings.reconfigure_orm()
    answer: dict[str, Any] = {"request": request["request"]}
    try:
        run = dag.test(run_conf=request["conf"], use_executor=request["parallel"])
        answer |= {"run_id": run.run_id, "state": str(run.state)}
    except BaseException:
        traceback.print_exc()
        answer |= {"run_id": None, "state": "crashed"}
    _answer(answers, answer)


def _answer(answers: int, answer: dict[str, Any]) -> None:
    # Short enough to arrive in one piece, whoever else is writing.
    os.write(answers, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
