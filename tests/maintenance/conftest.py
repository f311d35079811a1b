"""Repositories with something of everything, written once by the official library, then copied."""

from itertools import count

import pytest

from maintenance.histories import copy
from maintenance.messy import Messy


@pytest.fixture(scope="session")
def messy(tmp_path_factory):
    """A history with everything that maintenance meets: see `Messy`."""
    return Messy(tmp_path_factory.mktemp("messy") / "repo")


@pytest.fixture
def copies(messy, tmp_path):
    """Makes fresh copies of the messy repository."""
    numbers = count()
    return lambda: copy(messy.path, tmp_path / f"copy-{next(numbers)}")
