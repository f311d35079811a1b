"""What a configuration comes to, the defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe.config.conditions import DEFAULT_PRELOAD, ManifestPreloadCondition
from icefloe.config.settings import (
    CachingConfig,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageRetriesSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Names join section and field; the defaults are the official ones where there are any."""

    inline_chunk_threshold_bytes: int
    """A chunk of at most so many bytes goes into its manifest."""
    get_partial_values_concurrency: int
    max_concurrent_requests: int
    compression_level: int
    num_updates_per_repo_info_file: int
    update_max_tries: int
    update_initial_backoff_ms: int
    update_max_backoff_ms: int
    chunk_cache_bytes: int
    manifest_cache_bytes: int
    max_concurrent_manifest_fetches_during_commit: int
    preload_max_total_refs: int
    preload_if: ManifestPreloadCondition
    preload_max_arrays_to_scan: int
    location_compression_min_num_chunks: int
    location_compression_max_training_samples: int
    location_compression_max_size_bytes: int
    location_compression_level: int
    packing_enabled: bool
    packing_max_chunk_bytes: int
    packing_target_bytes: int


def effective(config: RepositoryConfig) -> Effective:
    caching = config.caching or CachingConfig()
    compression = config.compression or CompressionConfig()
    manifest = config.manifest or ManifestConfig()
    preload = manifest.preload or ManifestPreloadConfig()
    locations = (
        manifest.virtual_chunk_location_compression
        or ManifestVirtualChunkLocationCompressionConfig()
    )
    updates = config.repo_update_retries or RepoUpdateRetryConfig()
    retries = updates.default or StorageRetriesSettings()
    packing = config.packing or PackingConfig()
    return Effective(
        inline_chunk_threshold_bytes=_or(config.inline_chunk_threshold_bytes, 512),
        get_partial_values_concurrency=_or(config.get_partial_values_concurrency, 10),
        max_concurrent_requests=_or(config.max_concurrent_requests, 256),
        compression_level=_or(compression.level, 3),
        num_updates_per_repo_info_file=_or(config.num_updates_per_repo_info_file, 1000),
        update_max_tries=_or(retries.max_tries, 1000),
        update_initial_backoff_ms=_or(retries.initial_backoff_ms, 5),
        update_max_backoff_ms=_or(retries.max_backoff_ms, 50),
        chunk_cache_bytes=_or(caching.num_bytes_chunks, 0),
        manifest_cache_bytes=_or(caching.manifest_bytes, 256 * 2**20),
        max_concurrent_manifest_fetches_during_commit=_or(
            manifest.max_concurrent_manifest_fetches_during_commit, 1
        ),
        preload_max_total_refs=_or(preload.max_total_refs, 10_000),
        preload_if=_or(preload.preload_if, DEFAULT_PRELOAD),
        preload_max_arrays_to_scan=_or(preload.max_arrays_to_scan, 50),
        location_compression_min_num_chunks=_or(locations.min_num_chunks, 1000),
        location_compression_max_training_samples=_or(
            locations.dictionary_max_training_samples, 100
        ),
        location_compression_max_size_bytes=_or(locations.dictionary_max_size_bytes, 2048),
        location_compression_level=_or(locations.compression_level, 3),
        packing_enabled=_or(packing.enabled, True),
        packing_max_chunk_bytes=_or(packing.max_chunk_bytes, 2**20),
        packing_target_bytes=_or(packing.target_bytes, 16 * 2**20),
    )


def _or[T](value: T | None, default: T) -> T:
    return default if value is None else value
