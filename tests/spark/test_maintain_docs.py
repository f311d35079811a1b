"""The examples of docs/spark-maintenance.md run, on a small repository on local disk."""

import re
from pathlib import Path

import zarr

from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe.job_reports import find_report, store_report

PAGE = Path(__file__).parents[2] / "docs" / "spark-maintenance.md"
KEY = "weekly 2026-11-18"


def test_every_example_of_the_page_runs(spark, tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    repo = Repository.create(tmp_path / "era5", config=config)
    with repo.transaction("main", message="values") as store:
        zarr.create_array(store, name="a", shape=(20,), chunks=(5,), dtype="f8")[:] = 1
    store_report(repo.storage, KEY, {"task": "verify", "finished_at": "now", "result": {}})
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        block = block.replace("s3://bucket/era5", repo.storage.url)
        exec(compile(block, PAGE.name, "exec"), names)
    assert find_report(repo.storage, KEY) is None
    assert repo.verify("data") == []
