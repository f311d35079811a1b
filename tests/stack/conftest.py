"""Folders for stacks, and processes to supervise."""

import sys

import pytest

from stack.component import Component


@pytest.fixture
def folder(tmp_path):
    for name in ("logs", "run"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def component(folder):
    """Make a component that runs a Python program, healthy once it has written a file."""

    def make(name, program, **fields):
        ready = folder / f"{name}.ready"
        return Component(
            name=name,
            command=[sys.executable, "-c", program, str(ready)],
            environment={"ICEFLOE_STACK": str(folder)},
            is_healthy=ready.exists,
            **fields,
        )

    return make
