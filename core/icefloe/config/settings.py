"""The sections of a repository's configuration; in every one, None means not set."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.config.conditions import (
        DimCondition,
        ManifestPreloadCondition,
        ManifestSplitCondition,
        Unrecognized,
    )
    from icefloe.config.stores import VirtualChunkContainer


class CompressionAlgorithm(Enum):
    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        return CompressionAlgorithm.Zstd


@dataclass(slots=True)
class CompressionConfig:
    """How metadata files are compressed."""

    algorithm: CompressionAlgorithm | Unrecognized | None = None
    level: int | None = None

    @staticmethod
    def default() -> CompressionConfig:
        return CompressionConfig()


@dataclass(slots=True)
class CachingConfig:
    """What a process keeps; `manifest_bytes` is ours, the counts are for official clients."""

    num_snapshot_nodes: int | None = None
    num_chunk_refs: int | None = None
    num_transaction_changes: int | None = None
    num_bytes_attributes: int | None = None
    num_bytes_chunks: int | None = None
    manifest_bytes: int | None = None


@dataclass(slots=True)
class PackingConfig:
    """Ours: chunks of at most `max_chunk_bytes` share objects of about `target_bytes`."""

    enabled: bool | None = None
    max_chunk_bytes: int | None = None
    target_bytes: int | None = None


@dataclass(slots=True)
class ManifestPreloadConfig:
    max_total_refs: int | None = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: int | None = None


type SplitRule = tuple[ManifestSplitCondition, tuple[tuple[DimCondition, int], ...]]


@dataclass(slots=True)
class ManifestSplittingConfig:
    """Ordered rules: for each axis of an array, the first size whose two conditions match."""

    split_sizes: tuple[SplitRule, ...] | None = None

    def __post_init__(self) -> None:
        if self.split_sizes is not None:
            self.split_sizes = _rules(self.split_sizes)

    @classmethod
    def from_dict(
        cls, split_sizes: Mapping[ManifestSplitCondition, Mapping[DimCondition, int]]
    ) -> Self:
        return cls(tuple((array, tuple(sizes.items())) for array, sizes in split_sizes.items()))

    def to_dict(self) -> dict[ManifestSplitCondition, dict[DimCondition, int]]:
        return {array: dict(sizes) for array, sizes in self.split_sizes or ()}


def _rules(given: Sequence[Any]) -> tuple[SplitRule, ...]:
    return tuple(
        (array, tuple((dimension, size) for dimension, size in sizes)) for array, sizes in given
    )


@dataclass(slots=True)
class ManifestVirtualChunkLocationCompressionConfig:
    min_num_chunks: int | None = None
    dictionary_max_training_samples: int | None = None
    dictionary_max_size_bytes: int | None = None
    compression_level: int | None = None


@dataclass(slots=True)
class ManifestConfig:
    preload: ManifestPreloadConfig | None = None
    splitting: ManifestSplittingConfig | None = None
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = None
    max_concurrent_manifest_fetches_during_commit: int | None = None


@dataclass(slots=True)
class StorageConcurrencySettings:
    max_concurrent_requests_for_object: int | None = None
    ideal_concurrent_request_size: int | None = None


@dataclass(slots=True)
class StorageRetriesSettings:
    """`max_tries` counts the first one."""

    max_tries: int | None = None
    initial_backoff_ms: int | None = None
    max_backoff_ms: int | None = None


@dataclass(slots=True)
class StorageTimeoutSettings:
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    operation_timeout_ms: int | None = None
    operation_attempt_timeout_ms: int | None = None


@dataclass(slots=True)
class StorageSettings:
    """What official clients do with the store. Ours take theirs from `open_storage`."""

    concurrency: StorageConcurrencySettings | None = None
    retries: StorageRetriesSettings | None = None
    unsafe_use_conditional_create: bool | None = None
    unsafe_use_conditional_update: bool | None = None
    unsafe_use_metadata: bool | None = None
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: int | None = None
    timeouts: StorageTimeoutSettings | None = None


@dataclass(slots=True)
class RepoUpdateRetryConfig:
    """How often a change of the repo object is tried again after a lost race."""

    default: StorageRetriesSettings | None = None


@dataclass(slots=True)
class RepositoryConfig:
    inline_chunk_threshold_bytes: int | None = None
    get_partial_values_concurrency: int | None = None
    compression: CompressionConfig | None = None
    max_concurrent_requests: int | None = None
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: dict[str, VirtualChunkContainer] | None = None
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    num_updates_per_repo_info_file: int | None = None
    max_concurrent_decodes: int | None = None
    packing: PackingConfig | None = None
    automatic_split: int | None = None
    """References in one manifest, about, of arrays that no rule of splitting matches; 0: all."""

    @staticmethod
    def default() -> RepositoryConfig:
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """The container of this prefix or, failing that, of this name."""
        containers = self.virtual_chunk_containers or {}
        named = (found for found in containers.values() if found.name == name)
        return containers.get(name) or next(named, None)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container in place of one that has the same name or the same prefix.

        Raises:
            InvalidInputError: official clients would not accept it.
        """
        cont.validate()
        kept = {
            prefix: other
            for prefix, other in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or other.name != cont.name
        }
        self.virtual_chunk_containers = kept | {cont.url_prefix: cont}

    def clear_virtual_chunk_containers(self) -> None:
        self.virtual_chunk_containers = {}

    def merge(self, other: RepositoryConfig) -> RepositoryConfig:
        """A copy with what `other` sets in place of what this sets, field by field.

        Preload conditions, splitting rules and the containers are replaced as wholes.
        """
        return deepcopy(_merged(self, other))


# What is a whole of its own: half a rule with half of another would be nobody's intention.
_WHOLES = (ManifestPreloadConfig, ManifestSplittingConfig)


def _merged[T](mine: T, theirs: T) -> T:
    if theirs is None:
        return mine
    if (
        not is_dataclass(mine)
        or isinstance(mine, type)
        or type(mine) is not type(theirs)
        or isinstance(mine, _WHOLES)
    ):
        return theirs
    merged = {
        field.name: _merged(getattr(mine, field.name), getattr(theirs, field.name))
        for field in fields(mine)
    }
    return cast("T", type(mine)(**merged))
