"""Verification on Spark finds exactly what one machine finds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import servers
from benchmarks.garbage_collection import build as build_many
from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe import spark as ice
from icefloe.errors import InvalidInputError
from icefloe.format import manifest, snapshot
from icefloe.format.ids import encode_ids
from icefloe.format.nodes import Nodes
from icefloe.splitting import with_rule
from icefloe.storage import open_storage
from maintenance.histories import assets, copy
from maintenance.messy import Messy
from maintenance.test_backends import keys, upload
from maintenance.test_verify import DAMAGES, UNCHECKED, Damaged, single, split

__all__ = ["single", "split"]
"""Fixtures."""


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return Messy(tmp_path_factory.mktemp("messy") / "repo")


def ordered(findings):
    return sorted(findings, key=repr)


def check(spark, repo, level="objects", **options):
    """What Spark finds, which is what one machine finds."""
    if not isinstance(repo, Repository):
        repo = Repository.open(repo)
    found = ice.maintain.verify(spark, repo, level, **options)
    assert ordered(found) == ordered(repo.verify(level))
    assert keys(repo.storage, "icefloe/staging/") == set()
    return found


def test_a_messy_history_is_healthy(spark, messy):
    assert check(spark, messy.path, "data") == []


# One of each kind of check; the others are for the slow test.
SOME = {
    "no snapshot file",
    "a manifest that is not listed",
    "a manifest said to hold more",
    "no log of an expired snapshot",
    "a reference longer than its object",
}
# It cannot be opened, and so not be given to Spark.
OTHERS = sorted(DAMAGES.keys() - SOME - {"a repo object of garbage"})


@pytest.mark.parametrize(
    "damage", [*sorted(SOME), *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_damage_is_found_as_on_one_machine(spark, damage, single, tmp_path, monkeypatch):
    path = copy(single, tmp_path / "repo")
    monkeypatch.setattr(snapshot, "_check_manifests", lambda value: None)
    if damage in UNCHECKED:
        monkeypatch.setattr(manifest, "_check", lambda item: None)
    act, (_, kind, *_) = DAMAGES[damage]
    act(Damaged(path))
    monkeypatch.undo()
    # The chunks of these histories are plain bytes, of which each is as good as another.
    expected = [] if kind == "undecodable-chunk" else [kind]
    assert [finding.kind for finding in check(spark, path)] == expected


def test_a_fault_of_a_node_counts_once_however_many_snapshots_have_it(spark, messy, tmp_path):
    path = copy(messy.path, tmp_path / "repo")
    store = assets(path)
    info, _ = store.repo()
    for row in range(len(info.snapshots)):
        value = store.snapshot(info.snapshots.id_at(row))
        nodes = [value.nodes[number] for number in range(len(value.nodes))]
        nodes = [replace(node, user_data=b"{") if node.path == "/" else node for node in nodes]
        changed = replace(value, nodes=Nodes.of(nodes))
        (path / "snapshots" / str(value.id)).write_bytes(snapshot.encode(changed))
    (found,) = [item for item in check(spark, path) if item.kind == "invalid-zarr-metadata"]
    assert found.array == "/"


@pytest.fixture
def shared(tmp_path):
    """Arrays of compressed chunks, most of which several manifests share."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    repo = Repository.create(tmp_path / "repo", config=with_rule(config, "/a", (4,)))
    with repo.transaction("main", message="all") as store:
        for name in ("a", "b"):
            array = zarr.create_array(store, name=name, shape=(80,), chunks=(5,), dtype="i8")
            array[:] = np.arange(80)
    for number in range(4):
        with repo.transaction("main", message=f"{number}") as store:
            zarr.open_array(store, path="a")[20 * number] = -1
            zarr.open_array(store, path="b")[20 * number] = -1
    return repo


def chunk_of(repo, path, index):
    refs = repo.readonly_session("main").refs(path)
    return f"chunks/{refs[index].chunk_id}"


def test_a_damaged_chunk_counts_once_however_many_manifests_share_it(spark, shared):
    damaged = [chunk_of(shared, "/a", 3), chunk_of(shared, "/b", 7)]
    for key in damaged:
        shared.storage.put(key, b"z" * 200)
    found = check(spark, shared, "data")
    assert {item.file for item in found} == {*damaged}
    assert [item.kind for item in found] == ["undecodable-chunk"] * 2
    # Missing ones are found by the listing, and nobody tries to read them.
    shared.storage.delete(damaged[:1])
    kinds = {item.kind for item in check(spark, shared, "data")}
    assert kinds == {"missing-chunk", "undecodable-chunk"}


def test_exactly_the_planted_damage_among_ten_thousand_objects_is_found(spark, tmp_path):
    path = tmp_path / "repo"
    ids = build_many(path, 10_000, (24, 20, 20))
    names = [name.decode() for name in encode_ids(ids).tolist()]
    gone, short = names[5:9000:100], names[7:9000:500]
    for name in gone:
        (path / "chunks" / name).unlink()
    for name in short:
        (path / "chunks" / name).write_bytes(b"")
    # An orphan is no fault.
    (path / "chunks" / names[-1]).unlink()
    repo = Repository.open(path)
    found = ice.maintain.verify(spark, repo, "objects")
    assert {item.file for item in found if item.kind == "missing-chunk"} == {
        f"chunks/{name}" for name in gone
    }
    assert {item.file for item in found if item.kind == "short-chunk"} == {
        f"chunks/{name}" for name in short
    }
    assert len(found) == len(gone) + len(short)
    assert ordered(found) == ordered(repo.verify("objects"))
    some = ice.maintain.verify(spark, repo, "data", limit=10)
    assert [item.kind for item in some[10:]] == ["more-findings"]
    assert {*some[:10]} < {*found}
    assert ice.maintain.verify(spark, repo, "objects", limit=len(found)) == found


def test_arguments_are_checked(spark, messy):
    repo = Repository.open(messy.path)
    with pytest.raises(InvalidInputError, match="colour"):
        ice.maintain.verify(spark, repo, "colour")
    with pytest.raises(InvalidInputError, match="limit"):
        ice.maintain.verify(spark, repo, limit=0)


@pytest.mark.s3
def test_on_s3_the_same_is_found(spark, s3_server, single, tmp_path):
    path = copy(single, tmp_path / "repo")
    DAMAGES["no chunk object"][0](Damaged(path))
    DAMAGES["a truncated chunk object"][0](Damaged(path))
    options = dict(s3_server.options)
    del options["key"], options["secret"]
    storage = open_storage(s3_server.root(), options, credentials=servers.credentials)
    upload(Path(path), storage)
    assert len(check(spark, Repository.open(storage))) == 2
