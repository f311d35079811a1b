"""Configurations that the official library writes and reads.

One function builds a configuration from either library: whoever switches the import changes nothing
else.
"""

from dataclasses import replace

import icechunk
import icechunk._icechunk_python
import icechunk.storage
import pytest

from icefloe import config as icefloe_config
from icefloe.config import StorageSettings, decode, encode
from icefloe.errors import InvalidInputError
from icefloe.format import flexbuffers, repo_info

icechunk.set_logs_filter("error")

# The official package does not export every name from its top.
icechunk_names = {
    "RepoUpdateRetryConfig": icechunk._icechunk_python.RepoUpdateRetryConfig,
    "azure_store": icechunk.storage.azure_store,
}


class Official:
    def __getattr__(self, name):
        return icechunk_names.get(name) or getattr(icechunk, name)


BOTH = pytest.mark.parametrize("ic", [Official(), icefloe_config], ids=["official", "icefloe"])


def nothing(ic):
    return ic.RepositoryConfig.default()


def numbers(ic):
    config = ic.RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        get_partial_values_concurrency=3,
        max_concurrent_requests=65535,
        num_updates_per_repo_info_file=77,
        max_concurrent_decodes=8,
    )
    config.compression = ic.CompressionConfig(ic.CompressionAlgorithm.Zstd, level=9)
    config.caching = ic.CachingConfig(
        num_snapshot_nodes=1,
        num_chunk_refs=2,
        num_transaction_changes=3,
        num_bytes_attributes=4,
        num_bytes_chunks=2**64 - 1,
    )
    config.repo_update_retries = ic.RepoUpdateRetryConfig(
        default=ic.StorageRetriesSettings(max_tries=4, initial_backoff_ms=5, max_backoff_ms=6)
    )
    return config


def stored(ic):
    return ic.RepositoryConfig(
        storage=ic.StorageSettings(
            concurrency=ic.StorageConcurrencySettings(1, 2),
            retries=ic.StorageRetriesSettings(1, 2, 3),
            timeouts=ic.StorageTimeoutSettings(1, 2, 3, 4),
            unsafe_use_conditional_create=True,
            unsafe_use_conditional_update=False,
            unsafe_use_metadata=False,
            storage_class="A",
            metadata_storage_class="B",
            chunks_storage_class="C",
            minimum_size_for_multipart_upload=9,
        )
    )


def manifests(ic):
    preload, split = ic.ManifestPreloadCondition, ic.ManifestSplitCondition
    dimension = ic.ManifestSplitDimCondition
    either = preload.or_conditions([preload.path_matches("a"), preload.name_matches("ü|b")])
    return ic.RepositoryConfig(
        manifest=ic.ManifestConfig(
            preload=ic.ManifestPreloadConfig(
                max_total_refs=9,
                preload_if=(either | preload.true() | preload.false())
                & preload.num_refs(1, 20)
                & preload.num_refs(None, 5)
                & preload.num_refs(0, None),
                max_arrays_to_scan=4,
            ),
            splitting=ic.ManifestSplittingConfig.from_dict(
                {
                    split.path_matches("x") | split.name_matches("y"): {
                        dimension.Axis(0): 3,
                        dimension.DimensionName("t.*"): 4,
                        dimension.Any(): 5,
                    },
                    split.and_conditions([split.AnyArray()]): {},
                    split.AnyArray(): {dimension.Any(): 2**32 - 1},
                }
            ),
            virtual_chunk_location_compression=ic.ManifestVirtualChunkLocationCompressionConfig(
                1,
                dictionary_max_training_samples=2,
                dictionary_max_size_bytes=3,
                compression_level=-4,
            ),
            max_concurrent_manifest_fetches_during_commit=6,
        )
    )


def empty_sections(ic):
    return ic.RepositoryConfig(
        compression=ic.CompressionConfig(),
        caching=ic.CachingConfig(),
        manifest=ic.ManifestConfig(
            preload=ic.ManifestPreloadConfig(), splitting=ic.ManifestSplittingConfig()
        ),
        repo_update_retries=ic.RepoUpdateRetryConfig(),
        virtual_chunk_containers={},
    )


def containers(ic):
    config = ic.RepositoryConfig.default()
    stores = {
        "s3://plain/": ic.s3_store(),
        "s3://compatible/": ic.s3_store(s3_compatible=True, endpoint_url="http://e"),
        "s3://all/": ic.s3_store(
            region="r",
            endpoint_url="https://e",
            allow_http=True,
            anonymous=True,
            force_path_style=True,
            network_stream_timeout_seconds=3,
            requester_pays=True,
            checksum_algorithm=ic.ChecksumAlgorithm.Crc64Nvme,
        ),
        "tigris://t/": ic.ObjectStoreConfig.Tigris(ic.S3Options()),
        "gs://g/": ic.gcs_store(),
        "gcs://g/": ic.gcs_store({"a": "b"}),
        "az://a/": ic.azure_store(account="acc", config={"x": "y"}),
        "https://h/": ic.http_store({"timeout": "3s"}, {"x-header": "v"}),
        "http://h/": ic.http_store(),
        "file:///tmp/x/": ic.local_filesystem_store("/tmp/x"),
    }
    for number, (prefix, store) in enumerate(stores.items()):
        name = f"n{number}" if number % 2 else None
        config.set_virtual_chunk_container(ic.VirtualChunkContainer(prefix, store, name))
    for algorithm in ("Crc32", "Crc32c", "Sha1", "Sha256"):
        checksum = getattr(ic.ChecksumAlgorithm, algorithm)
        store = ic.s3_store(checksum_algorithm=checksum)
        config.set_virtual_chunk_container(
            ic.VirtualChunkContainer(f"s3://{algorithm}/", store, None)
        )
    return config


BUILDERS = [nothing, numbers, stored, manifests, empty_sections, containers]


@pytest.fixture
def repo_file(tmp_path):
    """The repo object of an official repository that sets nothing."""
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    return tmp_path / "repo"


def config_bytes(repo_file):
    return repo_info.decode(repo_file.read_bytes()).config


def write_config(repo_file, data):
    info = repo_info.decode(repo_file.read_bytes())
    repo_file.write_bytes(repo_info.encode(replace(info, config=data)))


@pytest.mark.parametrize("build", BUILDERS)
def test_what_the_official_library_saves_decodes_equal(build, repo_file):
    storage = icechunk.local_filesystem_storage(str(repo_file.parent))
    icechunk.Repository.open(storage, config=build(Official())).save_config()
    decoded = decode(config_bytes(repo_file))
    # It adds the settings of the storage that it happens to be on.
    expected = build(icefloe_config)
    expected.storage = decoded.storage if expected.storage is None else expected.storage
    assert decoded == expected
    assert isinstance(decoded.storage, StorageSettings)


@pytest.mark.parametrize("build", BUILDERS)
def test_the_official_library_reads_ours_equal(build, repo_file):
    config = build(icefloe_config)
    config.packing = icefloe_config.PackingConfig(enabled=True, target_bytes=2**24)
    write_config(repo_file, encode(config, config_bytes(repo_file)))
    storage = icechunk.local_filesystem_storage(str(repo_file.parent))
    assert icechunk.Repository.fetch_config(storage) == build(Official())
    assert icechunk.Repository.open(storage).writable_session("main").branch == "main"


@pytest.mark.parametrize("build", BUILDERS)
def test_we_write_every_field_that_the_official_library_writes(build, repo_file):
    storage = icechunk.local_filesystem_storage(str(repo_file.parent))
    icechunk.Repository.open(storage, config=build(Official())).save_config()
    data = config_bytes(repo_file)
    assert flexbuffers.decode(encode(decode(data), None)) == flexbuffers.decode(data)


def test_the_official_library_ignores_what_it_does_not_know(repo_file):
    tree = flexbuffers.decode(encode(numbers(icefloe_config), None))
    tree |= {"icefloe": {"packing": {"enabled": False}, "x": [1]}, "other": {"a": 1}}
    tree["compression"]["window"] = 3
    write_config(repo_file, flexbuffers.encode(tree))
    storage = icechunk.local_filesystem_storage(str(repo_file.parent))
    assert icechunk.Repository.fetch_config(storage) == numbers(Official())


@BOTH
def test_merging_agrees(ic):
    mine, theirs = manifests(ic), numbers(ic)
    mine.set_virtual_chunk_container(ic.VirtualChunkContainer("s3://a/", ic.s3_store(), "n"))
    mine.caching = ic.CachingConfig(num_chunk_refs=100, num_snapshot_nodes=50)
    theirs.caching = ic.CachingConfig(num_chunk_refs=1)
    theirs.set_virtual_chunk_container(ic.VirtualChunkContainer("s3://b/", ic.s3_store()))
    theirs.manifest = ic.ManifestConfig(preload=ic.ManifestPreloadConfig(max_arrays_to_scan=1))
    merged = mine.merge(theirs)
    assert list(merged.virtual_chunk_containers) == ["s3://b/"]
    assert merged.caching.num_snapshot_nodes == 50
    assert merged.caching.num_chunk_refs == 1
    assert merged.manifest.splitting == mine.manifest.splitting
    assert merged.manifest.preload.max_total_refs is None
    assert merged.inline_chunk_threshold_bytes == 0


@pytest.mark.parametrize(
    ("prefix", "store", "name"),
    [
        ("s3://a", "s3", None),
        ("a/b/", "s3", None),
        ("s3:///", "s3", None),
        ("file:///", "file", None),
        ("gs://a/", "s3", None),
        ("s3://a/", "http", None),
        ("s3://a/", "s3", "a/b"),
        ("s3://a/", "s3", ""),
    ],
)
@BOTH
def test_both_refuse_the_same_containers(ic, prefix, store, name):
    stores = {
        "s3": ic.s3_store(),
        "http": ic.http_store(),
        "file": ic.local_filesystem_store("/x"),
    }
    config = ic.RepositoryConfig.default()
    with pytest.raises(ValueError):  # noqa: PT011 the official one has no message to rely on
        config.set_virtual_chunk_container(ic.VirtualChunkContainer(prefix, stores[store], name))


@pytest.mark.parametrize(
    ("section", "field", "low", "high"),
    [
        ("RepositoryConfig", "inline_chunk_threshold_bytes", 0, 2**16 - 1),
        ("RepositoryConfig", "max_concurrent_decodes", 0, 2**16 - 1),
        ("CompressionConfig", "level", 0, 2**8 - 1),
        ("CachingConfig", "num_chunk_refs", 0, 2**64 - 1),
        ("StorageRetriesSettings", "max_tries", 1, 2**16 - 1),
        ("StorageRetriesSettings", "max_backoff_ms", 0, 2**32 - 1),
        ("StorageConcurrencySettings", "ideal_concurrent_request_size", 1, 2**64 - 1),
        ("ManifestPreloadConfig", "max_arrays_to_scan", 0, 2**32 - 1),
        ("ManifestVirtualChunkLocationCompressionConfig", "min_num_chunks", 0, 2**16 - 1),
    ],
)
def test_limits_are_the_official_ones(section, field, low, high):
    for number in (low, high):
        assert getattr(getattr(icechunk, section)(**{field: number}), field) == number
        encode(_holding(section, field, number), None)
    for number in (low - 1, high + 1):
        with pytest.raises((OverflowError, ValueError)):
            getattr(icechunk, section)(**{field: number})
        with pytest.raises(InvalidInputError):
            encode(_holding(section, field, number), None)


def _holding(section, field, number):
    ic = icefloe_config
    value = getattr(ic, section)(**{field: number})
    match section:
        case "RepositoryConfig":
            return value
        case "CompressionConfig":
            return ic.RepositoryConfig(compression=value)
        case "CachingConfig":
            return ic.RepositoryConfig(caching=value)
        case "StorageRetriesSettings":
            return ic.RepositoryConfig(storage=StorageSettings(retries=value))
        case "StorageConcurrencySettings":
            return ic.RepositoryConfig(storage=StorageSettings(concurrency=value))
        case "ManifestPreloadConfig":
            return ic.RepositoryConfig(manifest=ic.ManifestConfig(preload=value))
    return ic.RepositoryConfig(manifest=ic.ManifestConfig(virtual_chunk_location_compression=value))
