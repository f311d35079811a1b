"""Listings of local folders that have not changed for a while: names first, details on demand."""

import os
import pickle

import pytest

from icefloe.errors import NotFoundError
from icefloe.storage import ObjectInfo, open_storage


@pytest.fixture
def storage(tmp_path):
    storage = open_storage(tmp_path / "repository")
    storage.put_many([(f"chunks/{n:04}", b"x" * n) for n in range(1500)])
    storage.put_many([(f"chunks/sub/{n}", b"y") for n in range(3)])
    return storage


@pytest.fixture
def quiet(storage, tmp_path):
    """As if the folder had not been changed for years."""
    os.utime(tmp_path / "repository" / "chunks", ns=(10**18, 10**18))
    return storage


@pytest.fixture
def looks(monkeypatch):
    """Counts the files that are looked at."""
    stat, seen = os.stat, []

    def counted(path, *arguments, **named):
        if os.path.basename(os.fspath(path)).isdigit():
            seen.append(path)
        return stat(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", counted)
    return seen


def listed(storage, *arguments, **named):
    return [found for page in storage.list(*arguments, **named) for found in page]


def test_files_are_looked_at_when_somebody_asks(quiet, looks):
    found = listed(quiet, "chunks/0")
    assert len(found) == 1000
    assert looks == []
    assert [item.size for item in found[:5]] == [0, 1, 2, 3, 4]
    assert found[3].modified.tzinfo is not None
    assert len(looks) == 5


def test_a_folder_that_has_just_changed_is_looked_at_at_once(storage, looks):
    assert len(listed(storage, "chunks/0")) == 1000
    assert len(looks) == 1000


def test_both_ways_give_the_same(storage, tmp_path):
    eager = listed(storage)
    os.utime(tmp_path / "repository" / "chunks", ns=(10**18, 10**18))
    lazy = listed(storage)
    assert lazy == eager
    assert eager == lazy
    assert {*lazy} == {*eager}
    assert {type(item) for item in pickle.loads(pickle.dumps(lazy))} == {ObjectInfo}
    assert pickle.loads(pickle.dumps(lazy)) == eager
    assert "chunks/0003" in repr(lazy[3])
    for after in ("chunks/0500", "chunks/sub", "chunks/sub/1", "zzz"):
        expected = [item.key for item in eager if item.key > after]
        assert [item.key for item in listed(storage, start_after=after)] == expected


def test_a_deletion_during_the_listing_is_noticed(quiet):
    pages = quiet.list("chunks/")
    first = next(pages)
    quiet.delete(["chunks/1400"])
    rest = [item.key for page in pages for item in page]
    assert len(first) + len(rest) == 1502
    assert "chunks/1400" not in rest


def test_a_page_of_which_nothing_is_left_does_not_end_the_listing(storage):
    pages = storage.list("chunks/")
    next(pages)
    storage.delete([f"chunks/{n:04}" for n in range(1000, 1500)])
    assert [item.key for page in pages for item in page] == [f"chunks/sub/{n}" for n in range(3)]


def test_a_file_deleted_after_its_page_came_is_not_found(quiet):
    (page, *_) = quiet.list("chunks/")
    quiet.delete([page[7].key])
    with pytest.raises(NotFoundError):
        _ = page[7].size
    assert page[8].size == 8
