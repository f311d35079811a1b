"""The examples of docs/spark-arrays.md run, and leave a repository that is whole."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe

PAGE = Path(__file__).parents[2] / "docs" / "spark-arrays.md"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning")
def test_every_example_of_the_page_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    prefix = f"file://{tmp_path}/netcdf/"
    repo = icefloe.Repository.open("weather", authorize_virtual_chunk_access={prefix: None})
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    t2m = root["t2m"][:]
    np.testing.assert_array_equal(root["t2m_by_place"][:], t2m)
    np.testing.assert_array_equal(root["copy/t2m"][48:], t2m[48:])
    np.testing.assert_array_equal(root["is_warm"][:], t2m > 0.5)
    assert root["kelvin"].chunks == (72, 3, 4)
    assert root["kelvin_2"].shape == (72, 2, 2)
    wide = np.pad(np.pad(t2m, ((0, 0), (2, 2), (0, 0)), "edge"), ((0, 0), (0, 0), (2, 2)), "wrap")
    windows = np.lib.stride_tricks.sliding_window_view(wide, (5, 5), axis=(1, 2))
    np.testing.assert_allclose(root["smooth"][:], windows.mean(axis=(3, 4)), rtol=1e-6)
    assert repo.verify("data") == []
