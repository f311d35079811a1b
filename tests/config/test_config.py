"""Configurations as values: merging, defaults, conditions, containers."""

import pickle

import pytest

from icefloe.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
    azure_store,
    effective,
    gcs_store,
    http_store,
    local_filesystem_store,
    preload_matches,
    s3_store,
)
from icefloe.errors import InvalidInputError

S = ManifestSplitCondition
P = ManifestPreloadCondition
D = ManifestSplitDimCondition


def test_the_caller_wins_field_by_field():
    persisted = RepositoryConfig(
        inline_chunk_threshold_bytes=3,
        caching=CachingConfig(num_chunk_refs=4, num_bytes_chunks=7, manifest_bytes=1),
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 1),
        storage=StorageSettings(concurrency=StorageConcurrencySettings(1, 2), storage_class="A"),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(1, 2, 3)),
        packing=PackingConfig(max_chunk_bytes=5),
    )
    caller = RepositoryConfig(
        caching=CachingConfig(num_chunk_refs=9),
        compression=CompressionConfig(level=0),
        storage=StorageSettings(
            concurrency=StorageConcurrencySettings(7), chunks_storage_class="B"
        ),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(5)),
        packing=PackingConfig(enabled=False),
    )
    assert persisted.merge(caller) == RepositoryConfig(
        inline_chunk_threshold_bytes=3,
        caching=CachingConfig(num_chunk_refs=9, num_bytes_chunks=7, manifest_bytes=1),
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 0),
        storage=StorageSettings(
            concurrency=StorageConcurrencySettings(7, 2),
            storage_class="A",
            chunks_storage_class="B",
        ),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(5, 2, 3)),
        packing=PackingConfig(enabled=False, max_chunk_bytes=5),
    )


def test_containers_rules_and_preloading_are_replaced_as_wholes():
    rules = ManifestSplittingConfig.from_dict({S.AnyArray(): {D.Any(): 9}})
    mine = RepositoryConfig(
        manifest=ManifestConfig(
            splitting=rules,
            preload=ManifestPreloadConfig(max_total_refs=5),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(1),
        )
    )
    mine.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store()))
    theirs = RepositoryConfig(
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_arrays_to_scan=6),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
                compression_level=1
            ),
        )
    )
    theirs.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store()))
    merged = mine.merge(theirs)
    assert list(merged.virtual_chunk_containers) == ["s3://b/"]
    assert merged.manifest == ManifestConfig(
        splitting=rules,
        preload=ManifestPreloadConfig(max_arrays_to_scan=6),
        virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
            1, compression_level=1
        ),
    )
    assert mine.merge(RepositoryConfig(virtual_chunk_containers={})).virtual_chunk_containers == {}
    assert mine.merge(RepositoryConfig()) == mine


def test_a_merged_configuration_shares_nothing_with_its_sources():
    mine = RepositoryConfig(caching=CachingConfig(num_chunk_refs=1))
    merged = mine.merge(RepositoryConfig())
    merged.caching.num_chunk_refs = 2
    assert mine.caching.num_chunk_refs == 1


def test_nothing_set_means_the_official_defaults_but_for_retries():
    values = effective(RepositoryConfig.default())
    assert values.inline_chunk_threshold_bytes == 512
    assert values.compression_level == 3
    assert values.num_updates_per_repo_info_file == 1000
    # But for these: who loses a race for a branch waits briefly, so that all come to their turn.
    assert (values.update_max_tries, values.update_initial_backoff_ms) == (1000, 5)
    assert values.update_max_backoff_ms == 50
    assert values.preload_max_total_refs == 10_000
    assert values.location_compression_min_num_chunks == 1000
    assert values.manifest_cache_bytes == 256 * 2**20
    assert values.packing_enabled
    assert (values.packing_max_chunk_bytes, values.packing_target_bytes) == (2**20, 2**24)


def test_zero_and_false_are_not_the_same_as_unset():
    config = RepositoryConfig(
        compression=CompressionConfig(level=0), packing=PackingConfig(enabled=False)
    )
    config.inline_chunk_threshold_bytes = 0
    values = effective(config)
    assert values.inline_chunk_threshold_bytes == 0
    assert values.compression_level == 0
    assert not values.packing_enabled


@pytest.mark.parametrize(
    ("path", "num_refs", "expected"),
    [
        ("/time", 1000, True),
        ("/time", 1001, False),
        ("/model/lat", 1, True),
        ("/lon/temperature", 1, False),
        ("/temperature", 1, False),
        ("longitude2", 0, True),
        ("/level", 0, True),
        ("/x", 0, True),
        ("/xy", 0, False),
    ],
)
def test_small_coordinates_are_preloaded_unless_told_otherwise(path, num_refs, expected):
    assert preload_matches(None, path, num_refs) is expected


def test_conditions_combine():
    condition = (P.path_matches("^/a/") | P.name_matches("^b$")) & P.num_refs(2, 4)
    assert condition.matches("/a/x", 2)
    assert condition.matches("/c/b", 3)
    assert not condition.matches("/c/b", 4)
    assert not condition.matches("/c/bb", 3)
    assert P.true().matches("/a", 0)
    assert not P.false().matches("/a", 0)
    assert not P.or_conditions([]).matches("/a", 0)
    assert P.and_conditions([]).matches("/a", 0)


@pytest.mark.parametrize("regex", ["(", "(?=a)a", r"(a)\1", "[[:alpha:]]", r"\p{L}"])
def test_a_regex_that_either_engine_refuses_never_matches_and_never_raises(regex):
    assert not S.path_matches(regex).matches("/aa")


def test_rules_become_a_dict_and_back():
    rules = {S.path_matches("x") & S.AnyArray(): {D.Axis(0): 3, D.DimensionName("t"): 4}}
    config = ManifestSplittingConfig.from_dict(rules)
    assert config.to_dict() == rules
    assert ManifestSplittingConfig([[S.AnyArray(), [[D.Any(), 3]]]]).split_sizes == (
        (S.AnyArray(), ((D.Any(), 3),)),
    )


def test_a_name_is_a_containers_identity_and_else_its_prefix():
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store(), "n"))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store(), "n"))
    assert list(config.virtual_chunk_containers) == ["s3://b/"]
    replacement = VirtualChunkContainer("s3://b/", s3_store(region="x"))
    config.set_virtual_chunk_container(replacement)
    assert config.virtual_chunk_containers == {"s3://b/": replacement}
    named = VirtualChunkContainer("s3://c/", s3_store(), "m")
    config.set_virtual_chunk_container(named)
    assert config.get_virtual_chunk_container("m") is named
    assert config.get_virtual_chunk_container("s3://c/") is named
    assert config.get_virtual_chunk_container("s3://d/") is None
    config.clear_virtual_chunk_containers()
    assert config.virtual_chunk_containers == {}


TIGRIS = ObjectStoreConfig.Tigris(S3Options())
AZURE = azure_store(account="x")

# Accepted by official clients, or not: test_config_interop asks them.
CONTAINERS = [
    ("s3://a/", s3_store(), None, True),
    ("S3://a/", s3_store(), None, True),
    ("s3://a/", s3_store(s3_compatible=True), None, True),
    ("s3://a/b/ü c/", s3_store(), None, True),
    ("s3://a/", TIGRIS, None, True),
    ("tigris://a/", TIGRIS, None, True),
    ("gs://a/", gcs_store(), None, True),
    ("gcs://a/", gcs_store(), None, True),
    ("az://a/", AZURE, None, True),
    ("azure://a/", AZURE, None, True),
    ("abfs://a/", AZURE, None, True),
    ("http://a/", http_store(), None, True),
    ("https://a/b/", http_store(), None, True),
    ("file:///x/", local_filesystem_store("/x"), None, True),
    ("file:///x/", local_filesystem_store("/x"), "A b", True),
    ("s3://a", s3_store(), None, False),
    ("s3://a/b", s3_store(), None, False),
    ("a/b/", s3_store(), None, False),
    ("", s3_store(), None, False),
    ("s3:///", s3_store(), None, False),
    ("file:///", local_filesystem_store("/x"), None, False),
    ("gs://a/", s3_store(), None, False),
    ("s3a://a/", s3_store(), None, False),
    ("tigris://a/", s3_store(), None, False),
    ("abfss://a/", AZURE, None, False),
    ("s3://a/", http_store(), None, False),
    ("memory://a/", ObjectStoreConfig.InMemory(), None, False),
    ("s3://a/", s3_store(), "", False),
    ("s3://a/", s3_store(), "a/b", False),
]


@pytest.mark.parametrize(("prefix", "store", "name", "accepted"), CONTAINERS)
def test_a_container_that_official_clients_refuse_is_refused(prefix, store, name, accepted):
    config = RepositoryConfig()
    container = VirtualChunkContainer(prefix, store, name)
    if accepted:
        config.set_virtual_chunk_container(container)
        assert config.virtual_chunk_containers == {prefix: container}
    else:
        with pytest.raises(InvalidInputError) as caught:
            config.set_virtual_chunk_container(container)
        assert caught.value.kind == "invalid-virtual-chunk-container"


def test_headers_do_not_show_in_a_repr():
    assert "hunter2" not in repr(http_store(headers={"authorization": "hunter2"}))


def test_configurations_survive_pickling():
    config = RepositoryConfig(
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(preload_if=P.true() | P.num_refs(1, 2)),
            splitting=ManifestSplittingConfig.from_dict({S.AnyArray(): {D.Axis(1): 3}}),
        )
    )
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store()))
    assert pickle.loads(pickle.dumps(config)) == config
