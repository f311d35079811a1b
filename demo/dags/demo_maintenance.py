"""Let go of old snapshots, delete what nothing needs, and read every chunk that is left."""

from airflow.sdk import DAG, Param

from airflow_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkVerifyOperator,
)
from airflow_icechunk.retries import icechunk_default_args

WEEK = 7 * 24 * 3600

with DAG(
    "demo_maintenance",
    schedule=None,
    catchup=False,
    default_args=icechunk_default_args(),
    params={
        # What a writer has uploaded and not yet committed is garbage, too: where anything may be
        # writing, both must be longer than the longest write.
        "older_than": Param(WEEK, type="integer", description="Seconds"),
        "grace": Param(WEEK, type="integer", description="Seconds"),
    },
    tags=["icechunk", "demo"],
) as dag:
    expire = IcechunkExpireSnapshotsOperator(
        task_id="expire", older_than="{{ params.older_than }}", keep_last=1
    )
    collect = IcechunkGarbageCollectOperator(
        task_id="collect_garbage", grace="{{ params.grace }}", skip_unchanged=False, force=True
    )
    verify = IcechunkVerifyOperator(task_id="verify", level="data")
    expire >> collect >> verify
