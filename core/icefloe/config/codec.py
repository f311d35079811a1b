"""Configurations in the FlexBuffers map of the repo object; what we do not know is kept."""

from __future__ import annotations

from icefloe.config.condition_wire import PRELOAD_IF, RULES
from icefloe.config.settings import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.config.store_wire import CONTAINERS
from icefloe.config.wire import (
    BOOL,
    COUNT16,
    COUNT64,
    I32,
    TEXT,
    U8,
    U16,
    U32,
    U64,
    Choice,
    Record,
    malformed,
    named,
)
from icefloe.format import flexbuffers

NAME = "repository configuration"
OWN_KEY = "icefloe"
"""What official clients lack lives under this key, which they ignore."""

_RETRIES = Record(
    StorageRetriesSettings,
    {"max_tries": COUNT16, **named(U32, "initial_backoff_ms", "max_backoff_ms")},
)
_STORAGE = Record(
    StorageSettings,
    {
        "concurrency": Record(
            StorageConcurrencySettings,
            {
                "max_concurrent_requests_for_object": COUNT16,
                "ideal_concurrent_request_size": COUNT64,
            },
        ),
        "retries": _RETRIES,
        "timeouts": Record(
            StorageTimeoutSettings,
            named(
                U32,
                "connect_timeout_ms",
                "read_timeout_ms",
                "operation_timeout_ms",
                "operation_attempt_timeout_ms",
            ),
        ),
        "minimum_size_for_multipart_upload": U64,
        **named(
            BOOL,
            "unsafe_use_conditional_create",
            "unsafe_use_conditional_update",
            "unsafe_use_metadata",
        ),
        **named(TEXT, "storage_class", "metadata_storage_class", "chunks_storage_class"),
    },
)
_MANIFEST = Record(
    ManifestConfig,
    {
        "preload": Record(
            ManifestPreloadConfig,
            named(U32, "max_total_refs", "max_arrays_to_scan") | {"preload_if": PRELOAD_IF},
        ),
        "splitting": Record(ManifestSplittingConfig, {"split_sizes": RULES}),
        "virtual_chunk_location_compression": Record(
            ManifestVirtualChunkLocationCompressionConfig,
            named(U16, "min_num_chunks", "dictionary_max_training_samples")
            | {"dictionary_max_size_bytes": U32, "compression_level": I32},
        ),
        "max_concurrent_manifest_fetches_during_commit": U16,
    },
)
_REPOSITORY = Record(
    RepositoryConfig,
    {
        **named(
            U16,
            "inline_chunk_threshold_bytes",
            "get_partial_values_concurrency",
            "max_concurrent_requests",
            "max_concurrent_decodes",
            "num_updates_per_repo_info_file",
        ),
        "compression": Record(
            CompressionConfig,
            {"algorithm": Choice({"zstd": CompressionAlgorithm.Zstd}), "level": U8},
        ),
        "caching": Record(
            CachingConfig,
            named(
                U64,
                "num_snapshot_nodes",
                "num_chunk_refs",
                "num_transaction_changes",
                "num_bytes_attributes",
                "num_bytes_chunks",
            ),
        ),
        "storage": _STORAGE,
        "virtual_chunk_containers": CONTAINERS,
        "manifest": _MANIFEST,
        "repo_update_retries": Record(RepoUpdateRetryConfig, {"default": _RETRIES}),
    },
)

_OWN = Record(
    RepositoryConfig,
    {
        "packing": Record(
            PackingConfig, {"enabled": BOOL} | named(U64, "max_chunk_bytes", "target_bytes")
        ),
        "caching": Record(CachingConfig, {"manifest_bytes": U64}),
        "automatic_split": U64,
    },
)


def decode(data: bytes | None) -> RepositoryConfig:
    """The configuration in a repo object; None, as in most repositories, sets nothing.

    Raises:
        FormatError: the bytes are no FlexBuffers map, or a field has the wrong type.
    """
    tree = {} if data is None else _tree(data)
    config: RepositoryConfig = _REPOSITORY.decode(tree, NAME)
    own = tree.get(OWN_KEY)
    return config if own is None else config.merge(_OWN.decode(own, f"{NAME}.{OWN_KEY}"))


def encode(config: RepositoryConfig, previous: bytes | None) -> bytes:
    """Bytes for the repo object, with all that `previous` has and we do not know.

    A field that is not set is written as null; below a section that is not set, nothing is kept.

    Raises:
        InvalidInputError: official clients could not read a value.
        FormatError: `previous` is no configuration.
    """
    before = {} if previous is None else _tree(previous)
    # The official library writes previous_file, and nothing reads it.
    tree = _REPOSITORY.encode(config, NAME, {"previous_file": None, **before})
    if OWN_KEY in before or _sets_own(config):
        tree[OWN_KEY] = _OWN.encode(config, f"{NAME}.{OWN_KEY}", before.get(OWN_KEY))
    return flexbuffers.encode(tree, name=NAME)


def splitting_rules(config: RepositoryConfig) -> flexbuffers.JSON:
    """The rules of splitting as a repo object has them."""
    splitting = config.manifest and config.manifest.splitting
    return RULES.encode((splitting and splitting.split_sizes) or (), NAME, None)


def _sets_own(config: RepositoryConfig) -> bool:
    caching = config.caching or CachingConfig()
    own = (config.packing, config.automatic_split, caching.manifest_bytes)
    return any(value is not None for value in own)


def _tree(data: bytes) -> dict[str, flexbuffers.JSON]:
    tree = flexbuffers.decode(data, name=NAME)
    if not isinstance(tree, dict):
        raise malformed(NAME, tree, "a map")
    return tree
