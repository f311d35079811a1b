"""Manifests that are fetched before anybody asks: which, how many, and that it does no harm."""

import threading

import pytest
import zarr

from icefloe import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    MemoryStorage,
    Repository,
    RepositoryConfig,
)
from icefloe.assets import Assets
from icefloe.config import effective
from icefloe.format.ids import SnapshotId
from icefloe.preloading import preload, preloadable


@pytest.fixture
def repo():
    repo = Repository.create(MemoryStorage())
    with repo.transaction("main", message="init") as store:
        for name, count in {"time": 20, "lat": 10, "t2m": 30}.items():
            array = zarr.create_array(store, name=name, shape=(count,), chunks=(1,), dtype="i4")
            array[:] = 1
    return repo


def snapshot(repo):
    return Assets(repo.storage).snapshot(SnapshotId.parse(repo.lookup_branch("main")))


def paths_of(repo, ids):
    nodes = snapshot(repo).nodes
    found = {
        manifest: nodes[row].path
        for row in range(len(nodes))
        for manifest in nodes.manifests(row).ids()
    }
    return [found[item] for item in ids]


def config(**preload):
    return RepositoryConfig(manifest=ManifestConfig(preload=ManifestPreloadConfig(**preload)))


def test_small_coordinates_are_preloaded_by_default(repo):
    chosen = preloadable(snapshot(repo), effective(RepositoryConfig()))
    assert paths_of(repo, chosen) == ["/lat", "/time"]


def test_the_configuration_says_what_and_how_much(repo):
    everything = ManifestPreloadCondition.true()
    chosen = preloadable(snapshot(repo), effective(config(preload_if=everything)))
    assert paths_of(repo, chosen) == ["/lat", "/t2m", "/time"]
    few = effective(config(preload_if=everything, max_total_refs=35))
    assert paths_of(repo, preloadable(snapshot(repo), few)) == ["/lat", "/time"]
    one = effective(config(preload_if=everything, max_arrays_to_scan=1))
    assert paths_of(repo, preloadable(snapshot(repo), one)) == ["/lat"]
    none = effective(config(preload_if=ManifestPreloadCondition.false()))
    assert preloadable(snapshot(repo), none) == []


def test_what_is_preloaded_needs_no_second_request(repo):
    assets = Assets(repo.storage)
    thread = preload(assets, snapshot(repo), effective(RepositoryConfig()))
    thread.join(timeout=10)
    repo.storage.delete([item.key for page in repo.storage.list("manifests/") for item in page])
    nodes = snapshot(repo).nodes
    (manifest_id,) = nodes.manifests(nodes.row("/time")).ids()
    assert assets.manifest_payload_sync(manifest_id)


def test_a_failed_preload_is_nobodys_problem(repo):
    repo.storage.delete([item.key for page in repo.storage.list("manifests/") for item in page])
    session = repo.readonly_session("main")
    for thread in threading.enumerate():
        if thread.name == "icefloe-preload":
            thread.join(timeout=10)
    assert session.paths() == ["/lat", "/t2m", "/time"]
