"""Make one array of many NetCDF files without copying them: the repository refers to them."""

import os
from pathlib import Path

import zarr
from airflow.sdk import DAG, task

import icefloe
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.transactions import IcechunkCommitOperator
from airflow_icechunk.retries import icechunk_default_args

# One file for each day, named in the order of the days. Spark's executors see this folder, too.
FOLDER = Path(os.environ.get("NETCDF_FOLDER", "/data/netcdf"))
PREFIX = f"file://{FOLDER}/"

config = icefloe.RepositoryConfig()
config.set_virtual_chunk_container(
    icefloe.VirtualChunkContainer(PREFIX, icefloe.local_filesystem_store(str(FOLDER)))
)

with DAG(
    "example_virtual_ingest",
    schedule=None,
    catchup=False,
    # A run adds the files that the one before did not see.
    max_active_runs=1,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create_repository", config=config)

    @task.short_circuit
    def list_new_files():
        session = IcechunkHook().get_conn().readonly_session("main")
        rain = session.node("/rain")
        known = 0 if rain is None else rain.array.shape[0].array_length
        return [str(path) for path in sorted(FOLDER.glob("*.nc"))[known:]]

    files = list_new_files()

    # Each file becomes one day of the array; executors find out where their chunks are.
    refer = IcechunkSparkSubmitOperator(
        task_id="refer_to_files",
        job="icefloe.spark:virtualize",
        job_params={"files": files, "concat_dim": "day", "new_dim": True},
    )

    commit = IcechunkCommitOperator(
        task_id="commit", snapshot_ids=refer.output, message="NetCDF files of {{ run_id }}"
    )

    @task
    def read_a_value(snapshot_id):
        """Whoever reads virtual chunks says which places they trust."""
        repo = IcechunkHook(authorize_virtual_chunk_access={PREFIX: None}).get_conn()
        store = repo.readonly_session(snapshot_id=snapshot_id).store
        return float(zarr.open_array(store, path="rain", mode="r")[-1, 0, 0])

    create >> files
    read_a_value(commit.output)
