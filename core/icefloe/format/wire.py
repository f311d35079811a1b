"""Generated from schemas/*.fbs by schemas/generate.py: do not edit.

The slots, types and defaults of every table in the metadata files.
"""

import numpy as np

from icefloe.format.layout import Field, Kind, Table

FILE_IDENTIFIER = b"Ichk"

CHUNK_INDEX_RANGE: np.dtype[np.void] = np.dtype(
    {"names": ["from", "to"], "formats": ["<u4", "<u4"], "offsets": [0, 4], "itemsize": 8}
)

DIMENSION_SHAPE: np.dtype[np.void] = np.dtype(
    {
        "names": ["array_length", "chunk_length"],
        "formats": ["<u8", "<u8"],
        "offsets": [0, 8],
        "itemsize": 16,
    }
)

MANIFEST_FILE_INFO: np.dtype[np.void] = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": ["(12,)u1", "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)

NODE_TYPE = ("Group", "Array")

REPO_AVAILABILITY = ("Online", "ReadOnly", "Offline")

NODE_DATA = ("Array", "Group")

UPDATE_TYPE = (
    "RepoInitializedUpdate",
    "RepoMigratedUpdate",
    "ConfigChangedUpdate",
    "MetadataChangedUpdate",
    "TagCreatedUpdate",
    "TagDeletedUpdate",
    "BranchCreatedUpdate",
    "BranchDeletedUpdate",
    "BranchResetUpdate",
    "NewCommitUpdate",
    "CommitAmendedUpdate",
    "NewDetachedSnapshotUpdate",
    "GCRanUpdate",
    "ExpirationRanUpdate",
    "FeatureFlagChangedUpdate",
    "RepoStatusChangedUpdate",
)

METADATA_ITEM = Table(
    "MetadataItem",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
        "value": Field("value", 1, Kind.VECTOR, np.dtype("u1"), 1, required=True),
    },
)

CHUNK_REF = Table(
    "ChunkRef",
    {
        "index": Field("index", 0, Kind.VECTOR, np.dtype("<u4"), 4, required=True),
        "inline": Field("inline", 1, Kind.VECTOR, np.dtype("u1"), 1),
        "offset": Field("offset", 2, Kind.SCALAR, np.dtype("<u8"), 8),
        "length": Field("length", 3, Kind.SCALAR, np.dtype("<u8"), 8),
        "chunk_id": Field("chunk_id", 4, Kind.STRUCT, np.dtype("V12"), 1),
        "location": Field("location", 5, Kind.STRING),
        "checksum_etag": Field("checksum_etag", 6, Kind.STRING),
        "checksum_last_modified": Field(
            "checksum_last_modified", 7, Kind.SCALAR, np.dtype("<u4"), 4
        ),
        "compressed_location": Field("compressed_location", 8, Kind.VECTOR, np.dtype("u1"), 1),
        "extra": Field("extra", 9, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

ARRAY_MANIFEST = Table(
    "ArrayManifest",
    {
        "node_id": Field("node_id", 0, Kind.STRUCT, np.dtype("V8"), 1, required=True),
        "refs": Field("refs", 1, Kind.TABLES, tables=(CHUNK_REF,), required=True),
        "extra": Field("extra", 2, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

MANIFEST = Table(
    "Manifest",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
        "arrays": Field("arrays", 1, Kind.TABLES, tables=(ARRAY_MANIFEST,), required=True),
        "location_dictionary": Field("location_dictionary", 2, Kind.VECTOR, np.dtype("u1"), 1),
        "compression_algorithm": Field(
            "compression_algorithm", 3, Kind.SCALAR, np.dtype("u1"), 1, default=1
        ),
        "extra": Field("extra", 4, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

MANIFEST_REF = Table(
    "ManifestRef",
    {
        "object_id": Field("object_id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
        "extents": Field("extents", 1, Kind.VECTOR, CHUNK_INDEX_RANGE, 4, required=True),
    },
)

DIMENSION_NAME = Table(
    "DimensionName",
    {
        "name": Field("name", 0, Kind.STRING),
    },
)

DIMENSION_SHAPE_V2 = Table(
    "DimensionShapeV2",
    {
        "array_length": Field("array_length", 0, Kind.SCALAR, np.dtype("<u8"), 8),
        "num_chunks": Field("num_chunks", 1, Kind.SCALAR, np.dtype("<u4"), 4),
    },
)

ARRAY_NODE_DATA = Table(
    "ArrayNodeData",
    {
        "shape": Field("shape", 0, Kind.VECTOR, DIMENSION_SHAPE, 8, required=True),
        "dimension_names": Field("dimension_names", 1, Kind.TABLES, tables=(DIMENSION_NAME,)),
        "manifests": Field("manifests", 2, Kind.TABLES, tables=(MANIFEST_REF,), required=True),
        "shape_v2": Field("shape_v2", 3, Kind.TABLES, tables=(DIMENSION_SHAPE_V2,)),
    },
)

GROUP_NODE_DATA = Table(
    "GroupNodeData",
    {},
)

NODE_SNAPSHOT = Table(
    "NodeSnapshot",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V8"), 1, required=True),
        "path": Field("path", 1, Kind.STRING, required=True),
        "user_data": Field("user_data", 2, Kind.VECTOR, np.dtype("u1"), 1, required=True),
        "node_data": Field(
            "node_data",
            4,
            Kind.UNION,
            tables=(
                ARRAY_NODE_DATA,
                GROUP_NODE_DATA,
            ),
            required=True,
        ),
        "extra": Field("extra", 5, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

MANIFEST_FILE_INFO_V2 = Table(
    "ManifestFileInfoV2",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V12"), 1),
        "size_bytes": Field("size_bytes", 1, Kind.SCALAR, np.dtype("<u8"), 8),
        "num_chunk_refs": Field("num_chunk_refs", 2, Kind.SCALAR, np.dtype("<u4"), 4),
        "extra": Field("extra", 3, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

SNAPSHOT = Table(
    "Snapshot",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
        "parent_id": Field("parent_id", 1, Kind.STRUCT, np.dtype("V12"), 1),
        "nodes": Field("nodes", 2, Kind.TABLES, tables=(NODE_SNAPSHOT,), required=True),
        "flushed_at": Field("flushed_at", 3, Kind.SCALAR, np.dtype("<u8"), 8),
        "message": Field("message", 4, Kind.STRING, required=True),
        "metadata": Field("metadata", 5, Kind.TABLES, tables=(METADATA_ITEM,), required=True),
        "manifest_files": Field(
            "manifest_files", 6, Kind.VECTOR, MANIFEST_FILE_INFO, 8, required=True
        ),
        "manifest_files_v2": Field(
            "manifest_files_v2", 7, Kind.TABLES, tables=(MANIFEST_FILE_INFO_V2,)
        ),
        "extra": Field("extra", 8, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

CHUNK_INDICES = Table(
    "ChunkIndices",
    {
        "coords": Field("coords", 0, Kind.VECTOR, np.dtype("<u4"), 4, required=True),
    },
)

ARRAY_UPDATED_CHUNKS = Table(
    "ArrayUpdatedChunks",
    {
        "node_id": Field("node_id", 0, Kind.STRUCT, np.dtype("V8"), 1, required=True),
        "chunks": Field("chunks", 1, Kind.TABLES, tables=(CHUNK_INDICES,), required=True),
    },
)

MOVE_OPERATION = Table(
    "MoveOperation",
    {
        "from": Field("from", 0, Kind.STRING),
        "to": Field("to", 1, Kind.STRING),
        "node_id": Field("node_id", 2, Kind.STRUCT, np.dtype("V8"), 1),
        "node_type": Field("node_type", 3, Kind.SCALAR, np.dtype("u1"), 1),
    },
)

TRANSACTION_LOG = Table(
    "TransactionLog",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
        "new_groups": Field("new_groups", 1, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "new_arrays": Field("new_arrays", 2, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "deleted_groups": Field("deleted_groups", 3, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "deleted_arrays": Field("deleted_arrays", 4, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "updated_arrays": Field("updated_arrays", 5, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "updated_groups": Field("updated_groups", 6, Kind.VECTOR, np.dtype("V8"), 1, required=True),
        "updated_chunks": Field(
            "updated_chunks", 7, Kind.TABLES, tables=(ARRAY_UPDATED_CHUNKS,), required=True
        ),
        "moved_nodes": Field("moved_nodes", 8, Kind.TABLES, tables=(MOVE_OPERATION,)),
        "extra": Field("extra", 9, Kind.VECTOR, np.dtype("u1"), 1),
    },
)

REPO_STATUS = Table(
    "RepoStatus",
    {
        "availability": Field("availability", 0, Kind.SCALAR, np.dtype("u1"), 1),
        "set_at": Field("set_at", 1, Kind.SCALAR, np.dtype("<u8"), 8),
        "limited_availability_reason": Field("limited_availability_reason", 2, Kind.STRING),
    },
)

REPO_INITIALIZED_UPDATE = Table(
    "RepoInitializedUpdate",
    {},
)

REPO_MIGRATED_UPDATE = Table(
    "RepoMigratedUpdate",
    {
        "from_version": Field("from_version", 0, Kind.SCALAR, np.dtype("u1"), 1),
        "to_version": Field("to_version", 1, Kind.SCALAR, np.dtype("u1"), 1),
    },
)

CONFIG_CHANGED_UPDATE = Table(
    "ConfigChangedUpdate",
    {},
)

METADATA_CHANGED_UPDATE = Table(
    "MetadataChangedUpdate",
    {},
)

TAG_CREATED_UPDATE = Table(
    "TagCreatedUpdate",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
    },
)

TAG_DELETED_UPDATE = Table(
    "TagDeletedUpdate",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
        "previous_snap_id": Field(
            "previous_snap_id", 1, Kind.STRUCT, np.dtype("V12"), 1, required=True
        ),
    },
)

BRANCH_CREATED_UPDATE = Table(
    "BranchCreatedUpdate",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
    },
)

BRANCH_DELETED_UPDATE = Table(
    "BranchDeletedUpdate",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
        "previous_snap_id": Field(
            "previous_snap_id", 1, Kind.STRUCT, np.dtype("V12"), 1, required=True
        ),
    },
)

BRANCH_RESET_UPDATE = Table(
    "BranchResetUpdate",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
        "previous_snap_id": Field(
            "previous_snap_id", 1, Kind.STRUCT, np.dtype("V12"), 1, required=True
        ),
    },
)

NEW_COMMIT_UPDATE = Table(
    "NewCommitUpdate",
    {
        "branch": Field("branch", 0, Kind.STRING, required=True),
        "new_snap_id": Field("new_snap_id", 1, Kind.STRUCT, np.dtype("V12"), 1, required=True),
    },
)

COMMIT_AMENDED_UPDATE = Table(
    "CommitAmendedUpdate",
    {
        "branch": Field("branch", 0, Kind.STRING, required=True),
        "previous_snap_id": Field(
            "previous_snap_id", 1, Kind.STRUCT, np.dtype("V12"), 1, required=True
        ),
        "new_snap_id": Field("new_snap_id", 2, Kind.STRUCT, np.dtype("V12"), 1, required=True),
    },
)

NEW_DETACHED_SNAPSHOT_UPDATE = Table(
    "NewDetachedSnapshotUpdate",
    {
        "new_snap_id": Field("new_snap_id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
    },
)

GC_RAN_UPDATE = Table(
    "GCRanUpdate",
    {},
)

EXPIRATION_RAN_UPDATE = Table(
    "ExpirationRanUpdate",
    {},
)

FEATURE_FLAG_CHANGED_UPDATE = Table(
    "FeatureFlagChangedUpdate",
    {
        "id": Field("id", 0, Kind.SCALAR, np.dtype("<u2"), 2),
        "new_value": Field("new_value", 1, Kind.SCALAR, np.dtype("u1"), 1),
        "is_set": Field("is_set", 2, Kind.SCALAR, np.dtype("u1"), 1),
    },
)

REPO_STATUS_CHANGED_UPDATE = Table(
    "RepoStatusChangedUpdate",
    {
        "status": Field("status", 0, Kind.TABLE, tables=(REPO_STATUS,)),
    },
)

UPDATE = Table(
    "Update",
    {
        "update_type": Field(
            "update_type",
            1,
            Kind.UNION,
            tables=(
                REPO_INITIALIZED_UPDATE,
                REPO_MIGRATED_UPDATE,
                CONFIG_CHANGED_UPDATE,
                METADATA_CHANGED_UPDATE,
                TAG_CREATED_UPDATE,
                TAG_DELETED_UPDATE,
                BRANCH_CREATED_UPDATE,
                BRANCH_DELETED_UPDATE,
                BRANCH_RESET_UPDATE,
                NEW_COMMIT_UPDATE,
                COMMIT_AMENDED_UPDATE,
                NEW_DETACHED_SNAPSHOT_UPDATE,
                GC_RAN_UPDATE,
                EXPIRATION_RAN_UPDATE,
                FEATURE_FLAG_CHANGED_UPDATE,
                REPO_STATUS_CHANGED_UPDATE,
            ),
            required=True,
        ),
        "updated_at": Field("updated_at", 2, Kind.SCALAR, np.dtype("<u8"), 8),
        "backup_path": Field("backup_path", 3, Kind.STRING),
    },
)

REF = Table(
    "Ref",
    {
        "name": Field("name", 0, Kind.STRING, required=True),
        "snapshot_index": Field("snapshot_index", 1, Kind.SCALAR, np.dtype("<u4"), 4),
    },
)

SNAPSHOT_INFO = Table(
    "SnapshotInfo",
    {
        "id": Field("id", 0, Kind.STRUCT, np.dtype("V12"), 1, required=True),
        "parent_offset": Field("parent_offset", 1, Kind.SCALAR, np.dtype("<i4"), 4),
        "flushed_at": Field("flushed_at", 2, Kind.SCALAR, np.dtype("<u8"), 8),
        "message": Field("message", 3, Kind.STRING, required=True),
        "metadata": Field("metadata", 4, Kind.TABLES, tables=(METADATA_ITEM,)),
        "pruned_ancestor_tx_logs": Field(
            "pruned_ancestor_tx_logs", 5, Kind.VECTOR, np.dtype("V12"), 1
        ),
    },
)

REPO = Table(
    "Repo",
    {
        "spec_version": Field("spec_version", 0, Kind.SCALAR, np.dtype("u1"), 1),
        "tags": Field("tags", 1, Kind.TABLES, tables=(REF,), required=True),
        "branches": Field("branches", 2, Kind.TABLES, tables=(REF,), required=True),
        "deleted_tags": Field("deleted_tags", 3, Kind.STRINGS, required=True),
        "snapshots": Field("snapshots", 4, Kind.TABLES, tables=(SNAPSHOT_INFO,), required=True),
        "status": Field("status", 5, Kind.TABLE, tables=(REPO_STATUS,), required=True),
        "metadata": Field("metadata", 6, Kind.TABLES, tables=(METADATA_ITEM,)),
        "latest_updates": Field("latest_updates", 7, Kind.TABLES, tables=(UPDATE,), required=True),
        "repo_before_updates": Field("repo_before_updates", 8, Kind.STRING),
        "config": Field("config", 9, Kind.VECTOR, np.dtype("u1"), 1),
        "enabled_feature_flags": Field(
            "enabled_feature_flags", 10, Kind.VECTOR, np.dtype("<u2"), 2
        ),
        "disabled_feature_flags": Field(
            "disabled_feature_flags", 11, Kind.VECTOR, np.dtype("<u2"), 2
        ),
        "extra": Field("extra", 12, Kind.VECTOR, np.dtype("u1"), 1),
    },
)
