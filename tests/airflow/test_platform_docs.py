"""The Dag of docs/platforms.md takes what a job on any platform has registered."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "platforms.md"


def test_the_dag_of_the_page_finds_a_write_by_its_key(run, stage):
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    dag = names["dag"]
    assert dag.task_dict["commit"].upstream_task_ids == {"staged"}
    find = dag.task_dict["staged"].python_callable
    key = "emr manual__1"
    with pytest.raises(RuntimeError, match="wrote nothing"):
        find(key)
    staged = stage(1, key=key)
    assert find(key) == staged
