"""What xarray's own tests find in the conftest of xarray's work tree, which no wheel has."""

import pytest

MARKERS = ("flaky", "network", "skip_if_param", "skip_with_dask_array", "xfail_with_dask_array")


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: xarray's own")


def pytest_runtest_setup(item):
    """Skip the combinations of parameters that xarray's tests rule out."""
    for marker in item.iter_markers("skip_if_param"):
        conditions = dict(marker.kwargs)
        reason = conditions.pop("reason")
        if not conditions.pop("condition", True):
            continue
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if all(params.get(name) == value for name, value in conditions.items()):
            pytest.skip(reason)
