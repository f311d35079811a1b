"""Days of weather: Spark jobs write them side by side, an audit looks, one commit shows them."""

from datetime import timedelta

import numpy as np
import zarr
from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.retries import icechunk_default_args
from airflow_icechunk.task_groups import icechunk_transaction
from demo import fields

CHUNKS = (12, 90, 180)
VARIABLES = {
    "t2m": {"units": "K", "standard_name": "air_temperature", "long_name": "2 m temperature"},
    "tp": {
        "units": "mm h-1",
        "standard_name": "lwe_precipitation_rate",
        "long_name": "Precipitation",
    },
}
COORDINATES = {
    "lat": (fields.LATITUDES, {"units": "degrees_north", "standard_name": "latitude"}),
    "lon": (fields.LONGITUDES, {"units": "degrees_east", "standard_name": "longitude"}),
}
TIME = {"units": f"hours since {fields.FIRST_DAY} 00:00", "standard_name": "time"}
KELVIN = (180.0, 335.0)
"""Colder and warmer it has never been on Earth."""

with DAG(
    "demo_ingest",
    schedule=None,
    catchup=False,
    default_args=icechunk_default_args() | {"retry_delay": timedelta(seconds=1)},
    params={
        "days": Param([{"day": fields.day_name(0), "source": "sound"}], type="array"),
        "tag": Param("v1", type="string"),
        "message": Param("Days of weather", type="string"),
    },
    tags=["icechunk", "demo"],
) as dag:

    @task
    def list_days(params):
        """What there is to write; elsewhere this would look what has arrived."""
        return params["days"]

    @task.icechunk(
        stage=True, message="Room for {{ params.days | map(attribute='day') | join(', ') }}"
    )
    def make_room(days, store):
        """Create the arrays, or make them longer; seen by nobody before the run is published."""
        group = zarr.group(store, attributes={"Conventions": "CF-1.11", "title": "Demo weather"})
        if "time" not in group:
            for name, (values, attributes) in COORDINATES.items():
                group.create_array(
                    name, data=values, chunks=values.shape, dimension_names=[name]
                ).attrs.update(attributes)
            group.create_array(
                "time", shape=0, chunks=744, dtype="i8", dimension_names=["time"], attributes=TIME
            )
            for name, attributes in VARIABLES.items():
                group.create_array(
                    name,
                    shape=(0, *fields.SHAPE),
                    chunks=CHUNKS,
                    dtype="f4",
                    fill_value=np.nan,
                    dimension_names=["time", "lat", "lon"],
                    attributes=attributes,
                )
        hours = max(group["time"].size, *(fields.hours_of(each["day"]).stop for each in days))
        for name in VARIABLES:
            group[name].resize((hours, *fields.SHAPE))
        group["time"].resize(hours)
        group["time"][:] = np.arange(hours)

    def write_days(base):
        return IcechunkSparkSubmitOperator.partial(
            task_id="write_day",
            job="demo.jobs:write_day",
            base=base,
            key="{{ task.job_params['day'] }}",
            message="{{ task.job_params['day'] }}, {{ task.job_params['source'] }}",
            # Each driver writes one day, and needs little.
            driver_memory="512m",
            conf={"spark.ui.enabled": "false"},
            map_index_template="{{ task.job_params['day'] }}",
        ).expand(job_params=days)

    @task
    def audit(snapshot_id, days):
        """Look at the merged snapshot, which is on no branch yet."""
        store = IcechunkHook().get_conn().readonly_session(snapshot_id=snapshot_id).store
        group = zarr.open_group(store, mode="r")
        for day in (each["day"] for each in days):
            hours = fields.hours_of(day)
            kelvin, rain = group["t2m"][hours], group["tp"][hours]
            lowest, highest = KELVIN
            impossible = int((~((kelvin > lowest) & (kelvin < highest))).sum())
            impossible += int((~(rain >= 0)).sum())
            if impossible:
                raise AirflowFailException(
                    f"{day}: {impossible} values that no place on Earth has ever had"
                )

    days = list_days()
    icechunk_transaction(
        prepare=lambda tip: make_room.override(base=tip)(days=days),
        write=write_days,
        audit=lambda merged: audit(merged, days),
        guards={"forbid_shrink": True},
        tag="{{ params.tag }}",
        if_exists="suffix",
        message="{{ params.message }}",
        metadata={"days": "{{ params.days | map(attribute='day') | join(' ') }}"},
    )
