"""Configurations as bytes: round trips, what newer writers add, what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    CachingConfig,
    ChecksumAlgorithm,
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
    StorageTimeoutSettings,
    Unrecognized,
    VirtualChunkContainer,
    azure_store,
    decode,
    encode,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import flexbuffers


def tree_of(data):
    return flexbuffers.decode(data)


def maybe(strategy):
    return st.none() | strategy


def uint(bits, low=0):
    return maybe(st.integers(low, 2**bits - 1))


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
flag = st.booleans()
retries = st.builds(StorageRetriesSettings, uint(16, 1), uint(32), uint(32))
storage = st.builds(
    StorageSettings,
    concurrency=maybe(st.builds(StorageConcurrencySettings, uint(16, 1), uint(64, 1))),
    retries=maybe(retries),
    unsafe_use_conditional_create=maybe(flag),
    unsafe_use_conditional_update=maybe(flag),
    unsafe_use_metadata=maybe(flag),
    storage_class=maybe(text),
    metadata_storage_class=maybe(text),
    chunks_storage_class=maybe(text),
    minimum_size_for_multipart_upload=uint(64),
    timeouts=maybe(st.builds(StorageTimeoutSettings, uint(32), uint(32), uint(32), uint(32))),
)


def tree(leaves, cls):
    return st.recursive(
        leaves | st.builds(cls.path_matches, text) | st.builds(cls.name_matches, text),
        lambda inner: (
            st.builds(cls.or_conditions, st.lists(inner, max_size=3))
            | st.builds(cls.and_conditions, st.lists(inner, max_size=3))
        ),
        max_leaves=6,
    )


preload_if = tree(
    st.builds(ManifestPreloadCondition.num_refs, uint(32), uint(32))
    | st.just(ManifestPreloadCondition.true())
    | st.just(ManifestPreloadCondition.false()),
    ManifestPreloadCondition,
)
split_if = tree(st.just(ManifestSplitCondition.AnyArray()), ManifestSplitCondition)
dimension = (
    st.builds(ManifestSplitDimCondition.Axis, st.integers(0, 9))
    | st.builds(ManifestSplitDimCondition.DimensionName, text)
    | st.just(ManifestSplitDimCondition.Any())
)
rules = st.lists(
    st.tuples(split_if, st.lists(st.tuples(dimension, st.integers(1, 2**32 - 1)), max_size=3)),
    max_size=3,
)
s3_options = st.builds(
    S3Options, maybe(text), maybe(text), flag, flag, flag, uint(32), flag,
    maybe(st.sampled_from(ChecksumAlgorithm)),
)  # fmt: skip
texts = st.dictionaries(text, text, max_size=2)
containers = st.one_of(
    st.tuples(
        st.just("s3://"),
        st.builds(ObjectStoreConfig.S3, s3_options)
        | st.builds(ObjectStoreConfig.S3Compatible, s3_options)
        | st.builds(ObjectStoreConfig.Tigris, s3_options),
    ),
    st.tuples(st.just("gs://"), st.builds(gcs_store, texts)),
    st.tuples(st.just("az://"), st.builds(azure_store, account=text, config=texts)),
    st.tuples(st.just("https://"), st.builds(http_store, texts, texts)),
    st.tuples(st.just("file:///"), st.builds(local_filesystem_store, text)),
)


@st.composite
def container_maps(draw):
    found = draw(st.lists(containers, max_size=3))
    made = [
        VirtualChunkContainer(f"{start}c{number}/", store, draw(maybe(st.just(f"n{number}"))))
        for number, (start, store) in enumerate(found)
    ]
    return {container.url_prefix: container for container in made}


def configs():
    return st.builds(
        RepositoryConfig,
        inline_chunk_threshold_bytes=uint(16),
        get_partial_values_concurrency=uint(16),
        compression=maybe(
            st.builds(CompressionConfig, maybe(st.just(CompressionAlgorithm.Zstd)), uint(8))
        ),
        max_concurrent_requests=uint(16),
        caching=maybe(st.builds(CachingConfig, *[uint(64)] * 6)),
        storage=maybe(storage),
        virtual_chunk_containers=maybe(container_maps()),
        manifest=maybe(
            st.builds(
                ManifestConfig,
                preload=maybe(
                    st.builds(ManifestPreloadConfig, uint(32), maybe(preload_if), uint(32))
                ),
                splitting=maybe(st.builds(ManifestSplittingConfig, maybe(rules))),
                virtual_chunk_location_compression=maybe(
                    st.builds(
                        ManifestVirtualChunkLocationCompressionConfig,
                        uint(16), uint(16), uint(32), maybe(st.integers(-(2**31), 2**31 - 1)),
                    )
                ),
                max_concurrent_manifest_fetches_during_commit=uint(16),
            )
        ),
        repo_update_retries=maybe(st.builds(RepoUpdateRetryConfig, maybe(retries))),
        num_updates_per_repo_info_file=uint(16),
        max_concurrent_decodes=uint(16),
        packing=maybe(st.builds(PackingConfig, maybe(flag), uint(64), uint(64))),
        automatic_split=uint(64),
    )  # fmt: skip


@given(configs())
def test_what_is_encoded_decodes_equal(config):
    data = encode(config, None)
    assert decode(data) == config
    assert encode(decode(data), data) == data


def test_no_bytes_set_nothing():
    assert decode(None) == RepositoryConfig()
    assert decode(flexbuffers.encode({})) == RepositoryConfig()


def test_nothing_set_is_written_as_official_clients_write_it():
    assert tree_of(encode(RepositoryConfig(), None)) == {
        "caching": None,
        "compression": None,
        "get_partial_values_concurrency": None,
        "inline_chunk_threshold_bytes": None,
        "manifest": None,
        "max_concurrent_decodes": None,
        "max_concurrent_requests": None,
        "num_updates_per_repo_info_file": None,
        "previous_file": None,
        "repo_update_retries": None,
        "storage": None,
        "virtual_chunk_containers": None,
    }


def test_what_is_ours_has_a_key_of_its_own():
    config = RepositoryConfig(
        packing=PackingConfig(enabled=False), caching=CachingConfig(1, manifest_bytes=2)
    )
    tree = tree_of(encode(config, None))
    assert tree["icefloe"] == {
        "packing": {"enabled": False, "max_chunk_bytes": None, "target_bytes": None},
        "caching": {"manifest_bytes": 2},
        "automatic_split": None,
    }
    assert "manifest_bytes" not in tree["caching"]
    assert "packing" not in tree


NEWER = {
    "from_the_future": [1, 2.5, None],
    "previous_file": "old",
    "compression": {"level": 4, "window": 9},
    "manifest": {"preload": {"max_total_refs": 3, "how": {"deep": True}}, "also": 1},
    "storage": {"retries": {"max_tries": 2, "jitter": "full"}},
    "virtual_chunk_containers": {
        "s3://a/": {
            "url_prefix": "s3://a/",
            "name": None,
            "store": {"s3": {"region": "r", "quantum": True}},
            "colour": "blue",
        }
    },
    "icefloe": {"packing": {"enabled": True, "shape": "round"}, "next": 1},
}


def test_unknown_keys_survive_at_every_level():
    before = flexbuffers.encode(NEWER)
    config = decode(before)
    config.inline_chunk_threshold_bytes = 7
    config.compression.level = 5
    after = tree_of(encode(config, before))
    assert after["from_the_future"] == NEWER["from_the_future"]
    assert after["previous_file"] == "old"
    assert after["compression"] == {"algorithm": None, "level": 5, "window": 9}
    assert after["manifest"]["preload"]["how"] == {"deep": True}
    assert after["manifest"]["also"] == 1
    assert after["storage"]["retries"]["jitter"] == "full"
    container = after["virtual_chunk_containers"]["s3://a/"]
    assert container["colour"] == "blue"
    assert container["store"]["s3"]["quantum"] is True
    assert after["icefloe"]["next"] == 1
    assert after["icefloe"]["packing"]["shape"] == "round"
    assert after["inline_chunk_threshold_bytes"] == 7


def test_what_is_unset_is_written_as_null():
    before = flexbuffers.encode(NEWER)
    config = decode(before)
    config.compression = None
    config.packing = None
    config.virtual_chunk_containers = {}
    after = tree_of(encode(config, before))
    assert after["compression"] is None
    assert after["icefloe"]["packing"] is None
    assert after["virtual_chunk_containers"] == {}
    assert decode(encode(config, before)) == config


FOREIGN = {
    "compression": {"algorithm": "brotli", "level": 1},
    "manifest": {
        "preload": {"preload_if": {"or": ["true", {"phase_of_moon": {"full": True}}]}},
        "splitting": {
            "split_sizes": [
                ["no_array", [{"condition": {"Longest": 1}, "num_chunks": 3}]],
                ["any_array", [{"condition": "Any", "num_chunks": 2}]],
            ]
        },
    },
    "virtual_chunk_containers": {
        "ftp://h/": {"url_prefix": "ftp://h/", "name": None, "store": {"ftp": {"passive": True}}}
    },
}


def test_unknown_variants_are_kept_and_match_nothing():
    before = flexbuffers.encode(FOREIGN)
    config = decode(before)
    assert config.compression.algorithm == Unrecognized(json.dumps("brotli"))
    assert config.manifest.preload.preload_if.matches("/a", 0)
    (unknown, _), (any_array, _) = config.manifest.splitting.split_sizes
    assert not unknown.matches("/a")
    assert any_array.matches("/a")
    assert isinstance(config.virtual_chunk_containers["ftp://h/"].store, Unrecognized)
    after = tree_of(encode(config, before))
    assert after["compression"] == FOREIGN["compression"]
    assert after["manifest"]["splitting"] == FOREIGN["manifest"]["splitting"]
    preload = after["manifest"]["preload"]
    assert preload["preload_if"] == FOREIGN["manifest"]["preload"]["preload_if"]
    assert after["virtual_chunk_containers"] == FOREIGN["virtual_chunk_containers"]


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ([1], "repository configuration"),
        ({"inline_chunk_threshold_bytes": "many"}, "inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": True}, "inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": 1.5}, "inline_chunk_threshold_bytes"),
        ({"compression": 3}, "compression"),
        ({"storage": {"storage_class": 3}}, "storage.storage_class"),
        ({"storage": {"unsafe_use_metadata": 1}}, "storage.unsafe_use_metadata"),
        ({"manifest": {"splitting": {"split_sizes": {}}}}, "manifest.splitting.split_sizes"),
        ({"manifest": {"splitting": {"split_sizes": [["any_array"]]}}}, "split_sizes[0]"),
        ({"manifest": {"splitting": {"split_sizes": [["any_array", [1]]]}}}, "split_sizes[0]"),
        ({"virtual_chunk_containers": [1]}, "virtual_chunk_containers"),
        ({"virtual_chunk_containers": {"a": {"store": "in_memory"}}}, "no url_prefix"),
        ({"icefloe": 1}, "icefloe"),
        ({"icefloe": {"packing": {"enabled": 1}}}, "icefloe.packing.enabled"),
    ],
)
def test_a_wrong_type_is_named(tree, place):
    with pytest.raises(FormatError) as caught:
        decode(flexbuffers.encode(tree))
    assert place in str(caught.value)
    assert caught.value.kind == "config-deserialization"


def test_garbage_is_a_format_error():
    with pytest.raises(FormatError):
        decode(b"\xff\xfe\xfd\x00garbage")


RULE = ((ManifestSplitCondition.AnyArray(), ((ManifestSplitDimCondition.Any(), 0),)),)


@pytest.mark.parametrize(
    "config",
    [
        RepositoryConfig(inline_chunk_threshold_bytes=65536),
        RepositoryConfig(inline_chunk_threshold_bytes=-1),
        RepositoryConfig(num_updates_per_repo_info_file=True),
        RepositoryConfig(compression=CompressionConfig(level=256)),
        RepositoryConfig(compression=CompressionConfig(algorithm="zstd")),
        RepositoryConfig(repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(0))),
        RepositoryConfig(storage=StorageSettings(storage_class=3)),
        RepositoryConfig(manifest=ManifestConfig(splitting=ManifestSplittingConfig(RULE))),
        RepositoryConfig(manifest=ManifestConfig(preload=ManifestPreloadConfig(2**32))),
        RepositoryConfig(
            virtual_chunk_containers={"s3://a": VirtualChunkContainer("s3://a", s3_store())}
        ),
    ],
)
def test_what_official_clients_cannot_read_is_not_written(config):
    with pytest.raises(InvalidInputError):
        encode(config, None)
