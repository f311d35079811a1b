"""xarray's own tests of its zarr backend: on our store, and once more through `to_icechunk`.

Each override is a deviation, with its reason above it. All other tests run as xarray has them.
"""

import contextlib

import pytest
import zarr
from xarray.tests.conftest import time_unit, use_dask  # noqa: F401
from xarray.tests.test_backends import ZarrBase

from icefloe import ConflictError, MemoryStorage, Repository, SessionStateError
from icefloe.xarray import to_icechunk

# zarr's opinions on its own format, which xarray's test settings let pass, too.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]


# Icechunk has zarr v3 only. A parameter, because xarray's markers look at it.
@pytest.fixture(params=[3])
def default_zarr_format(request):
    with zarr.config.set(default_zarr_format=request.param):
        yield


class TestIcechunkStore(ZarrBase):
    commits = False

    @contextlib.contextmanager
    def create_zarr_target(self):
        yield Repository.create(MemoryStorage()).writable_session("main").store

    def open(self, path, **kwargs):
        if self.commits:
            path.session.commit("saved")
        return super().open(path, **kwargs)

    # What a copy of a writable session writes would be lost, so it does not travel until committed.
    def test_pickle(self):
        with pytest.raises(SessionStateError):
            super().test_pickle()
        self.commits = True
        super().test_pickle()

    # The same.
    def test_pickle_dataarray(self):
        with pytest.raises(SessionStateError):
            super().test_pickle_dataarray()
        self.commits = True
        super().test_pickle_dataarray()


class TestToIcechunk(TestIcechunkStore):
    """The same through `to_icechunk`, wherever a test saves through the class."""

    def save(self, dataset, store_target, **kwargs):
        # to_icechunk has no delayed writes; and some tests save to a path, to compare.
        if "compute" in kwargs or isinstance(store_target, str):
            return super().save(dataset, store_target, **kwargs)
        kwargs.pop("consolidated", None)
        return to_icechunk(dataset, store_target.session, **kwargs)

    # With safe_chunks=False xarray lets two blocks write one chunk, and loses one of them in
    # silence. Forks that wrote one chunk do not merge.
    def test_chunk_encoding_with_dask(self):
        with pytest.raises(ConflictError, match="written by two forks"):
            super().test_chunk_encoding_with_dask()

    # The same.
    def test_shard_encoding_with_dask(self):
        with pytest.raises(ConflictError, match="written by two forks"):
            super().test_shard_encoding_with_dask()
