"""Repositories of versions before 2: recognised, named, and never written over."""

import contextlib
import shutil
import threading
from pathlib import Path

import icechunk
import pytest

from icefloe import MemoryStorage, Repository
from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    NotFoundError,
    PermissionDeniedError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.maintenance.verify import verify
from icefloe.storage import open_storage
from maintenance.watching import Watched, once

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
FIRST = f"snapshots/{INITIAL_SNAPSHOT_ID}"


def v1(path):
    storage = icechunk.local_filesystem_storage(str(path))
    icechunk.Repository.create(storage, spec_version=1)


def files(path):
    return {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}


def assert_untouched(path, version):
    before = files(path)
    for create in (Repository.create, Repository.open_or_create):
        for check_clean_root in (True, False):
            with pytest.raises(AlreadyExistsError) as caught:
                create(path, check_clean_root=check_clean_root)
            assert caught.value.kind == "older-repository-exists"
            assert "check_clean_root" not in str(caught.value)
    for open_it in (Repository.open, Repository.fetch_config):
        with pytest.raises(FormatError) as refused:
            open_it(path)
        assert refused.value.kind == "unsupported-spec-version"
    assert Repository.exists(path)
    assert Repository.fetch_spec_version(path) == version
    assert files(path) == before


def test_a_v1_repository_is_recognised_and_stays_as_it_is(tmp_path):
    v1(tmp_path / "repo")
    assert_untouched(tmp_path / "repo", 1)


@pytest.mark.parametrize(
    ("keys", "version"),
    [
        (["r/branch:main/ZZZZZZZZZZZZY.json", "s/000G40R40M30E209185GR38E1W.msgpack"], 0),
        (["refs/branch:main/ZZZZZZZZZZZZY.json"], 0),
        (["refs/branch.main/ZZZZZZZZ.json", "config.yaml"], 0),
        (["refs/branch.main/ref.json"], 1),
        (["refs/branch.a b%C3%A9/ref.json", "refs/tag.x/ref.json.deleted"], 1),
        (["refs/tag.x/ref.json"], 0),
        (["config.yaml", "snapshots/000G40R40M30E209185G"], 1),
    ],
)
def test_every_layout_is_recognised(tmp_path, keys, version):
    for key in keys:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"{}")
    assert_untouched(tmp_path, version)


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in FIXTURES.glob("*/refs")) or [None]
)
def test_real_ones_are_recognised(name, tmp_path):
    if name is None:
        pytest.skip("no fixtures beside the repository")
    shutil.copytree(FIXTURES / name, tmp_path / "repo")
    if (tmp_path / "repo" / "repo").exists():
        assert Repository.fetch_spec_version(tmp_path / "repo") == 2
    else:
        assert_untouched(tmp_path / "repo", 0 if name.startswith("alpha") else 1)


def test_who_may_not_list_is_told_that_there_is_no_repository():
    class Unlistable(MemoryStorage):
        def list(self, prefix="", *, start_after=None):
            raise PermissionDeniedError("not allowed")

    with pytest.raises(NotFoundError):
        Repository.open(Unlistable())


class Slow:
    """Lets somebody else act ahead of the first write of a key."""

    def __init__(self, storage, key, action):
        self._storage, self._key, self._action = storage, key, action

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if(self, key, data, **named):
        if key == self._key and self._action is not None:
            action, self._action = self._action, None
            action()
        return self._storage.put_if(key, data, **named)

    def put(self, key, data, **named):
        raise AssertionError(f"{key} is written without a condition")

    put_many = put


@pytest.mark.parametrize("key", [FIRST, f"transactions/{INITIAL_SNAPSHOT_ID}", "repo"])
def test_the_loser_of_two_creators_replaces_nothing(tmp_path, key):
    store = open_storage(tmp_path / "repo")
    with pytest.raises(AlreadyExistsError):
        Repository.create(Slow(store, key, lambda: Repository.create(store)))
    repo = Repository.open(store)
    told = repo.lookup_snapshot(str(INITIAL_SNAPSHOT_ID)).written_at
    file = Assets(store).snapshot(INITIAL_SNAPSHOT_ID).flushed_at
    assert told.timestamp() * 1e6 == pytest.approx(file, abs=1)
    assert [*verify(Assets(store), "objects")] == []


@pytest.mark.parametrize("library", ["ours", "official"])
def test_opening_or_creating_opens_what_somebody_creates_at_any_moment(tmp_path, library):
    quiet = Watched(open_storage(tmp_path / "quiet"))
    Repository.open_or_create(quiet)
    for number in range(len(quiet.calls)):
        path = tmp_path / f"repo-{number}"

        def create(path=path):
            if library == "ours":
                Repository.create(path)
            else:
                icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))

        try:
            repo = Repository.open_or_create(Watched(open_storage(path), once(number, create)))
        except icechunk.IcechunkError:
            # The official library does not take over what we have begun.
            continue
        assert repo.lookup_branch("main") == str(INITIAL_SNAPSHOT_ID)
        assert [*verify(Assets(open_storage(path)), "objects")] == []


def test_what_a_creator_that_died_left_is_taken_over(tmp_path):
    store = open_storage(tmp_path / "repo")

    def die():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Repository.create(Slow(store, "repo", die))
    left = (tmp_path / "repo" / FIRST).read_bytes()
    repo = Repository.create(store)
    assert (tmp_path / "repo" / FIRST).read_bytes() == left
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert official.lookup_branch("main") == repo.lookup_branch("main")


def test_many_creators_at_once_agree_on_one_first_snapshot(tmp_path):
    barrier = threading.Barrier(8)
    made = []

    def create():
        barrier.wait()
        with contextlib.suppress(AlreadyExistsError):
            made.append(Repository.create(tmp_path / "repo"))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [*verify(Assets(open_storage(tmp_path / "repo")), "objects")] == []
