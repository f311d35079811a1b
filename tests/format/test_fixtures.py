"""Repositories that official releases wrote decode fully, to what the official library reads."""

import json
from pathlib import Path

import pytest

from icefloe.format import manifest, repo_info, snapshot, transaction_log
from icefloe.format.ids import ManifestId

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
MODULES = {"snapshots": snapshot, "manifests": manifest, "transactions": transaction_log}

if not FIXTURES.is_dir():
    pytest.skip("no fixtures beside the repository", allow_module_level=True)

EXPECTED = json.loads((FIXTURES / "EXPECTED.json").read_text())
VERSION_2 = sorted(name for name, value in EXPECTED.items() if value["spec_version"] == 2)


def decoded(module, path):
    """What a file holds, once it has survived a rewrite."""
    value = module.decode(path.read_bytes(), name=path.name)
    assert module.decode(module.encode(value)).equals(value)
    return value


def decode_folder(root, folder):
    return {path.name: decoded(MODULES[folder], path) for path in (root / folder).iterdir()}


@pytest.mark.parametrize("name", VERSION_2)
def test_every_metadata_file_decodes_and_survives_a_rewrite(name):
    root = FIXTURES / name
    for folder in MODULES:
        for file, value in decode_folder(root, folder).items():
            assert str(value.id) == file
    for path in (root / "repo", *root.glob("overwritten/*")):
        assert not decoded(repo_info, path).unknown


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - VERSION_2))
def test_files_of_version_1_decode_too(name):
    snapshots = decode_folder(FIXTURES / name, "snapshots")
    assert {value.spec_version for value in snapshots.values()} == {1}
    assert decode_folder(FIXTURES / name, "manifests")
    assert decode_folder(FIXTURES / name, "transactions")


@pytest.mark.parametrize("name", VERSION_2)
def test_refs_history_and_nodes_are_those_that_the_official_library_reads(name):
    root, expected = FIXTURES / name, EXPECTED[name]
    repo = repo_info.decode((root / "repo").read_bytes())
    snapshots = decode_folder(root, "snapshots")
    for kind in ("branches", "tags"):
        refs = getattr(repo, kind).todict()
        assert refs.keys() == expected[kind].keys()
        for ref, wanted in expected[kind].items():
            tip = str(repo.snapshots.id_at(refs[ref]))
            assert tip == wanted["snapshot"]
            assert_nodes(snapshots[tip], wanted["nodes"])
            if kind == "branches":
                assert history(repo, refs[ref]) == wanted["ancestry"]


def history(repo, row):
    found = []
    while row >= 0:
        info = repo.snapshots[row]
        found.append([str(info.id), info.parent_id and str(info.parent_id), info.message])
        row = int(repo.snapshots.parent[row])
    return found


def assert_nodes(value, expected):
    nodes = [value.nodes[row] for row in range(len(value.nodes))]
    assert {node.path for node in nodes} == expected.keys()
    for node in nodes:
        wanted = expected[node.path]
        assert json.loads(node.user_data)["attributes"] == wanted["attrs"]
        assert (node.array is None) == wanted.get("group", False)
        if node.array is not None:
            lengths = [dimension.array_length for dimension in node.array.shape]
            assert lengths == wanted["shape"]
            assert [dimension.num_chunks for dimension in node.array.shape] == [
                -(-length // chunk) for length, chunk in zip(lengths, wanted["chunks"], strict=True)
            ]


@pytest.mark.parametrize("name", VERSION_2)
def test_the_ops_log_goes_back_to_the_first_update(name):
    root = FIXTURES / name
    repo = repo_info.decode((root / "repo").read_bytes())
    kinds = [repo.updates[row].kind.name for row in range(len(repo.updates))]
    while repo.repo_before_updates is not None:
        repo = repo_info.decode((root / "overwritten" / repo.repo_before_updates).read_bytes())
        kinds += [repo.updates[row].kind.name for row in range(len(repo.updates))]
    wanted = EXPECTED[name]["ops_log"]
    assert [kind.replace("_", "").lower() for kind in kinds] == [kind.lower() for kind in wanted]


@pytest.mark.parametrize("name", VERSION_2)
def test_snapshots_list_their_manifests_with_size_and_number_of_references(name):
    root = FIXTURES / name
    manifests = decode_folder(root, "manifests")
    for value in decode_folder(root, "snapshots").values():
        listed = value.manifest_files
        for row in range(len(listed)):
            file = str(ManifestId(listed.id[row].tobytes()))
            assert listed.num_chunk_refs[row] == manifests[file].count
            assert listed.size_bytes[row] == (root / "manifests" / file).stat().st_size
