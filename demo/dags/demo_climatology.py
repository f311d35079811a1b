"""Wait for new days on main, without a worker; then derive the mean day from all of them."""

import zarr
from airflow.sdk import DAG, Param, task

from airflow_icechunk.retries import icechunk_default_args
from airflow_icechunk.sensors.icechunk import IcechunkBranchSensor

HOURS = 24

with DAG(
    "demo_climatology",
    schedule=None,
    catchup=False,
    default_args=icechunk_default_args(),
    params={"after": Param("", type="string", description="The last snapshot that was seen")},
    tags=["icechunk", "demo"],
) as dag:
    new_days = IcechunkBranchSensor(
        task_id="new_days",
        branch="main",
        after="{{ params.after }}",
        path="/t2m",
        deferrable=True,
        poke_interval=0.5,
    )

    @task.icechunk(message="Climatology of {{ ti.xcom_pull('new_days')['snapshot_id'] }}")
    def write_climatology(found, store):
        """Mean temperature of each hour of the day, and the mean rain of a day."""
        group = zarr.open_group(store)
        kelvin, rain = group["t2m"], group["tp"]
        days = kelvin.shape[0] // HOURS
        by_day = (days, HOURS, *kelvin.shape[1:])
        climatology = group.require_group("climatology")
        climatology.create_array(
            "t2m",
            data=kelvin[:].reshape(by_day).mean(axis=0, dtype="f8").astype("f4"),
            chunks=(12, 90, 180),
            dimension_names=["hour", "lat", "lon"],
            attributes={"units": "K", "long_name": "Mean 2 m temperature of each hour"},
            overwrite=True,
        )
        climatology.create_array(
            "tp",
            data=rain[:].reshape(by_day).sum(axis=1, dtype="f8").mean(axis=0).astype("f4"),
            chunks=(90, 180),
            dimension_names=["lat", "lon"],
            attributes={"units": "mm d-1", "long_name": "Mean daily precipitation"},
            overwrite=True,
        )
        return {"derived_from": found["snapshot_id"], "days": days}

    write_climatology(new_days.output)
