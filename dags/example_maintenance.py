"""Every night: let go of old snapshots, delete what nobody needs, and look whether all is well."""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkTrimOpsLogOperator,
    IcechunkVerifyOperator,
)
from airflow_icechunk.retries import icechunk_default_args

with DAG(
    "example_maintenance",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:
    expire = IcechunkExpireSnapshotsOperator(
        task_id="expire", older_than=timedelta(days=30), keep_last=10
    )
    # Longer than the longest write takes: what a writer uploaded and has not committed is garbage.
    collect = IcechunkGarbageCollectOperator(task_id="collect_garbage", grace=timedelta(days=7))
    verify = IcechunkVerifyOperator(task_id="verify", level="objects")
    trim = IcechunkTrimOpsLogOperator(task_id="trim_ops_log", keep=timedelta(days=90))
    expire >> collect >> verify >> trim
