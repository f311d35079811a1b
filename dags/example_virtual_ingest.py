"""Make one array of many NetCDF files without copying them: the repository refers to them."""

import os
from pathlib import Path

import zarr
from airflow.sdk import DAG, task
from netcdf3 import read_variables
from zarr.codecs import BytesCodec

import icefloe
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator
from airflow_icechunk.retries import icechunk_default_args
from airflow_icechunk.task_groups import icechunk_transaction

# One file for each day, named in the order of the days.
FOLDER = Path(os.environ.get("NETCDF_FOLDER", "/data/netcdf"))
PREFIX = f"file://{FOLDER}/"
FILES_PER_TASK = 100

config = icefloe.RepositoryConfig()
config.set_virtual_chunk_container(
    icefloe.VirtualChunkContainer(PREFIX, icefloe.local_filesystem_store(str(FOLDER)))
)

with DAG(
    "example_virtual_ingest",
    schedule=None,
    catchup=False,
    default_args=icechunk_default_args(),
    tags=["icechunk", "example"],
) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create_repository", config=config)

    @task
    def list_batches():
        names = sorted(path.name for path in FOLDER.glob("*.nc"))
        starts = range(0, len(names), FILES_PER_TASK)
        return [{"first": at, "names": names[at : at + FILES_PER_TASK]} for at in starts]

    @task.icechunk(stage=True)
    def make_array(store, batches):
        """As large as all files; its chunks are just as the files have them."""
        days = batches[-1]["first"] + len(batches[-1]["names"])
        rain = read_variables(FOLDER / batches[0]["names"][0])["rain"]
        zarr.create_array(
            store,
            name="rain",
            shape=(days, *rain.shape),
            chunks=(1, *rain.shape),
            dtype=rain.dtype,
            serializer=BytesCodec(endian="big"),
            compressors=None,
            overwrite=True,
        )

    @task.icechunk(stage=True)
    def add_files(batch, store):
        refs = []
        for day, name in enumerate(batch["names"], batch["first"]):
            rain = read_variables(FOLDER / name)["rain"]
            refs.append(
                icefloe.VirtualChunkSpec([day, 0, 0], PREFIX + name, rain.offset, rain.length)
            )
        if refused := store.set_virtual_refs("rain", refs):
            raise ValueError(f"{len(refused)} files lie outside {PREFIX}")
        return {"files": len(refs)}

    @task
    def read_a_value(snapshot_id):
        """Whoever reads virtual chunks says which places they trust."""
        repo = IcechunkHook(authorize_virtual_chunk_access={PREFIX: None}).get_conn()
        store = repo.readonly_session(snapshot_id=snapshot_id).store
        return float(zarr.open_array(store, path="rain", mode="r")[-1, 0, 0])

    batches = list_batches()
    transaction = icechunk_transaction(
        prepare=lambda tip: make_array.override(base=tip)(batches=batches),
        write=lambda base: add_files.override(base=base).expand(batch=batches),
        message="NetCDF files of {{ run_id }}",
        audit=read_a_value,
    )
    create >> batches
    create >> transaction.group
