"""The schemas are the single source of the wire layout, and the official files agree with them."""

import struct
import subprocess
import sys

import numpy as np
import pytest

from flatbuffers_oracle import OFFICIAL, Oracle
from fuzz_format import CORPUS
from icefloe.format import header, manifest, repo_info, snapshot, transaction_log, wire
from icefloe.format.chunk_refs import InlineRef, NativeRef
from icefloe.format.header import FileType
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.updates import UpdateKind
from schemas import generate

oracle = Oracle(OFFICIAL)


def files(kind):
    return sorted(CORPUS.glob(f"{kind.name.lower()}-*"))


def payload(path, kind):
    return header.unpack(path.read_bytes(), kind, name=path.name)[1]


def test_the_generated_module_is_what_the_schemas_say():
    script = generate.HERE / "generate.py"
    subprocess.run([sys.executable, script, "--check"], check=True, capture_output=True)


def test_a_changed_schema_is_noticed(monkeypatch, tmp_path):
    for name in generate.FILES:
        text = (generate.HERE / f"{name}.fbs").read_text()
        (tmp_path / f"{name}.fbs").write_text(text.replace("offset: uint64", "offset: uint32"))
    monkeypatch.setattr(generate, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1


def test_the_values_of_update_kind_are_the_tags_of_the_union():
    names = [name.removesuffix("Update").lower() for name in wire.UPDATE_TYPE]
    assert names == [kind.name.replace("_", "").lower() for kind in UpdateKind]
    assert [kind.value for kind in UpdateKind] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("path", files(FileType.MANIFEST), ids=lambda path: path.name)
def test_official_manifests_hold_what_we_decode(path):
    truth = oracle.read(payload(path, FileType.MANIFEST), "Manifest")
    value = manifest.decode(path.read_bytes())
    assert value.id.raw == truth["id"]
    assert [item.node_id.raw for item in value.arrays] == [a["node_id"] for a in truth["arrays"]]
    for item, array in zip(value.arrays, truth["arrays"], strict=True):
        assert len(item.refs) == len(array["refs"])
        for row, ref in enumerate(array["refs"]):
            assert item.refs.index[row].tobytes() == ref["index"]
            match item.refs[row]:
                case InlineRef(data=data):
                    assert data == ref["inline"]
                case NativeRef(chunk_id=chunk_id, offset=offset, length=length):
                    assert (chunk_id.raw, offset, length) == (
                        ref["chunk_id"],
                        ref["offset"],
                        ref["length"],
                    )
                case found:
                    assert (found.offset, found.length) == (ref["offset"], ref["length"])
                    assert found.checksum_etag == ref["checksum_etag"]
                    assert (found.checksum_last_modified or 0) == ref["checksum_last_modified"]
                    assert found.location == ref["location"] or ref["compressed_location"]


@pytest.mark.parametrize("path", files(FileType.SNAPSHOT), ids=lambda path: path.name)
def test_official_snapshots_hold_what_we_decode(path):
    truth = oracle.read(payload(path, FileType.SNAPSHOT), "Snapshot")
    value = snapshot.decode(path.read_bytes())
    assert (value.id.raw, value.flushed_at, value.message, value.extra) == tuple(
        truth[name] for name in ("id", "flushed_at", "message", "extra")
    )
    assert truth["parent_id"] is value.parent_id is None
    assert list(value.metadata) == [item["name"] for item in truth["metadata"]]
    assert truth["manifest_files"] == b""
    listed = value.manifest_files
    assert [
        (row.tobytes(), size, count)
        for row, size, count in zip(
            listed.id, listed.size_bytes.tolist(), listed.num_chunk_refs.tolist(), strict=True
        )
    ] == [
        (item["id"], item["size_bytes"], item["num_chunk_refs"])
        for item in truth["manifest_files_v2"]
    ]
    assert len(value.nodes) == len(truth["nodes"])
    for row, node in enumerate(truth["nodes"]):
        mine = value.nodes[row]
        assert (mine.id.raw, mine.path, mine.user_data, mine.extra) == (
            node["id"],
            node["path"],
            node["user_data"],
            node["extra"],
        )
        assert_node_data(mine.array, *node["node_data"])


def assert_node_data(array, tag, data):
    assert wire.NODE_DATA[tag - 1] == ("Group" if array is None else "Array")
    if array is None:
        return
    assert data["shape"] == b""
    assert [(d.array_length, d.num_chunks) for d in array.shape] == [
        (d["array_length"], d["num_chunks"]) for d in data["shape_v2"]
    ]
    names = data["dimension_names"]
    assert array.dimension_names == (names and tuple(name["name"] for name in names))
    assert [item.raw for item in array.manifests.ids()] == [
        item["object_id"] for item in data["manifests"]
    ]
    assert [box.tobytes() for box in array.manifests.extents] == [
        item["extents"] for item in data["manifests"]
    ]


@pytest.mark.parametrize("path", files(FileType.TRANSACTION_LOG), ids=lambda path: path.name)
def test_official_transaction_logs_hold_what_we_decode(path):
    truth = oracle.read(payload(path, FileType.TRANSACTION_LOG), "TransactionLog")
    value = transaction_log.decode(path.read_bytes())
    assert value.id.raw == truth["id"]
    for name in transaction_log.ID_LISTS:
        raw = truth[name]
        ids = [NodeId(raw[at : at + 8]) for at in range(0, len(raw), 8)]
        assert getattr(value, name) == set(ids)
        assert len(getattr(value, name)) == len(ids)
    assert {
        node_id.raw: [row.tobytes() for row in coords]
        for node_id, coords in value.updated_chunks.items()
    } == {
        item["node_id"]: [chunk["coords"] for chunk in item["chunks"]]
        for item in truth["updated_chunks"]
    }
    assert truth["moved_nodes"] == list(value.moves) == []


@pytest.mark.parametrize("path", files(FileType.REPO_INFO), ids=lambda path: path.name)
def test_official_repo_objects_hold_what_we_decode(path):
    truth = oracle.read(payload(path, FileType.REPO_INFO), "Repo")
    value = repo_info.decode(path.read_bytes())
    assert value.spec_version == truth["spec_version"] == 2
    for name in ("tags", "branches"):
        assert list(getattr(value, name).todict().items()) == [
            (ref["name"], ref["snapshot_index"]) for ref in truth[name]
        ]
    assert value.deleted_tags.texts() == truth["deleted_tags"]
    assert (value.status.availability, value.status.set_at, value.status.reason) == tuple(
        truth["status"].values()
    )
    assert (value.config, value.repo_before_updates, value.extra) == tuple(
        truth[name] for name in ("config", "repo_before_updates", "extra")
    )
    assert value.enabled_feature_flags == truth["enabled_feature_flags"]
    assert len(value.snapshots) == len(truth["snapshots"])
    for row, info in enumerate(truth["snapshots"]):
        mine = value.snapshots[row]
        assert (mine.id.raw, mine.flushed_at, mine.message) == (
            info["id"],
            info["flushed_at"],
            info["message"],
        )
        assert value.snapshots.parent[row] == info["parent_offset"]
        assert list(mine.metadata) == [item["name"] for item in info["metadata"] or ()]
    assert len(value.updates) == len(truth["latest_updates"])
    for row, update in enumerate(truth["latest_updates"]):
        assert_update(value.updates[row], update)


def assert_update(mine, update):
    tag, fields = update["update_type"]
    assert (mine.kind, mine.updated_at, mine.backup_path) == (
        tag,
        update["updated_at"],
        update["backup_path"],
    )
    assert mine.name == fields.get("name", fields.get("branch"))
    for name in ("previous_snap_id", "new_snap_id"):
        assert getattr(mine, name) == (SnapshotId(fields[name]) if name in fields else None)


def test_struct_layouts_follow_the_rules_of_c():
    packed = struct.pack("@12sQI", b"i" * 12, 7, 9)
    row = np.frombuffer(packed.ljust(32, b"\0"), wire.MANIFEST_FILE_INFO)[0]
    assert (row["id"].tobytes(), row["size_bytes"], row["num_chunk_refs"]) == (b"i" * 12, 7, 9)
