"""The configuration of location dictionaries reaches the manifests that a commit writes."""

import numpy as np
import pytest
import zarr

from icefloe import (
    ManifestConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    MemoryStorage,
    Repository,
    RepositoryConfig,
)
from icefloe.format import header, wire
from icefloe.format.reading import Buffer

COUNT = 1200


def dictionary_of(config):
    """The dictionary in the manifest of an array of virtual chunks; None if it has none."""
    locations = ManifestConfig(virtual_chunk_location_compression=config)
    repo = Repository.create(MemoryStorage(), config=RepositoryConfig(manifest=locations))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(COUNT,), chunks=(1,), dtype="u1")
    urls = [f"s3://some-bucket/with/a/long/prefix/file-{row:06}.nc" for row in range(COUNT)]
    ones = np.ones(COUNT, np.uint64)
    session.store.set_virtual_refs_arr("a", (COUNT,), urls, ones, ones, validate_containers=False)
    (manifest,) = repo.list_manifest_files(session.commit("virtual"))
    data = repo.storage.get(f"manifests/{manifest.id}").data
    _, payload = header.unpack(data, header.FileType.MANIFEST, name="manifest")
    return Buffer(payload, "manifest").root(wire.MANIFEST).vector("location_dictionary")[0]


def test_a_thousand_virtual_chunks_get_a_dictionary_of_two_kibibytes():
    assert 256 < len(dictionary_of(None)) <= 2048


@pytest.mark.parametrize("limit", [512, 1024])
def test_the_dictionary_is_as_small_as_the_configuration_says(limit):
    config = ManifestVirtualChunkLocationCompressionConfig(dictionary_max_size_bytes=limit)
    assert 0 < len(dictionary_of(config)) <= limit


def test_few_chunks_get_none():
    config = ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=COUNT + 1)
    assert dictionary_of(config) is None
