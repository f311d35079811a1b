"""A job that imports nothing beyond what `icefloe[spark,s3]` installs."""

import importlib.util

import numpy as np
import zarr

from icefloe import spark as ice


def ones(block):
    # Where tasks run, too, there is nothing else.
    assert importlib.util.find_spec("airflow") is None
    assert importlib.util.find_spec("icechunk") is None
    return np.ones(block.shape)


def run(spark, session):
    zarr.create_array(session.store, name="a", shape=(17, 23), chunks=(4, 5), dtype="f8")
    ice.write(spark, ice.plan(session, "a"), ones)
