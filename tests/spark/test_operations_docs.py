"""The examples of docs/spark-operations.md run, on a local disk; that of Connect in its client."""

import re
from pathlib import Path

import zarr

from icefloe import Repository
from spark.jobs import create, expected

PAGE = Path(__file__).parents[2] / "docs" / "spark-operations.md"


def test_every_example_of_the_page_runs(spark, tmp_path, capsys):
    url = str(tmp_path / "era5")
    repo = Repository.create(url)
    session = repo.writable_session("main")
    create(session)[:] = expected((17, 23))
    session.commit("base")
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "0.json").write_text('{"y": 1, "x": 2, "value": -5}')
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert ["SparkSession.builder.remote" in block for block in blocks] == [False, False, True]
    names: dict[str, object] = {"spark": spark}
    for block in blocks[:-1]:
        # The virtual machine has another working directory.
        for name in ("s3://bucket/era5", "incoming", "checkpoint"):
            block = block.replace(f'"{name}"', f'"{tmp_path}/{name.rpartition("/")[2]}"')
        exec(compile(block, PAGE.name, "exec"), names)
    assert zarr.open_array(repo.readonly_session("main").store, path="a")[1, 2] == -5
    collected, key = capsys.readouterr().out.splitlines()
    assert collected == "0 0 0"
    assert re.fullmatch(r"streaming query \S+ batch 0 /a", key)
