"""Boxes of an array, read without a call of zarr for each chunk: the values are numpy's."""

import asyncio

import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)

from icefloe import (
    MemoryStorage,
    PackingConfig,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_store,
)
from icefloe.chunk_reading import MAX_GAP, MAX_SPAN
from icefloe.spark import box_reading
from icefloe.spark.box_reading import BoxReader
from icefloe.splitting import with_rule
from icefloe.storage.memory import MemoryDriver

DTYPES = ["bool", "i1", "<i4", ">i4", "u8", "f2", "f8", "c8", "M8[s]", "S3", "U2", "V3"]
COMPRESSORS = {
    "none": [],
    "zstd": [ZstdCodec(level=3)],
    "zstd with a checksum": [ZstdCodec(checksum=True)],
    "gzip": [GzipCodec()],
    "blosc": [BloscCodec(typesize=1)],
    "crc": [Crc32cCodec()],
    "zstd, crc": [ZstdCodec(), Crc32cCodec()],
}


@st.composite
def arrays(draw):
    """An array to create, its values, and a box of it to read."""
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    filters = [TransposeCodec(order=tuple(reversed(range(rank))))] if draw(st.booleans()) else []
    options = {
        "shape": shape,
        "chunks": tuple(draw(st.integers(1, 5)) for _ in range(rank)),
        "dtype": np.dtype(draw(st.sampled_from(DTYPES))),
        "compressors": COMPRESSORS[draw(st.sampled_from(sorted(COMPRESSORS)))],
        "filters": filters,
        "serializer": BytesCodec(endian=draw(st.sampled_from(["little", "big"]))),
    }
    if options["dtype"].kind in "iufc" and draw(st.booleans()):
        options["fill_value"] = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**16))
    box = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    missing = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return options, seed, tuple(map(tuple, box)), missing


@st.composite
def layouts(draw):
    """Where chunks go: manifests, packs, objects of their own."""
    packing = PackingConfig(
        enabled=draw(st.booleans()), target_bytes=draw(st.sampled_from([40, 4000]))
    )
    return RepositoryConfig(
        inline_chunk_threshold_bytes=draw(st.sampled_from([0, 30, 500])), packing=packing
    )


def refuse(array, selection):
    raise AssertionError(f"zarr was asked for {selection}")


def values_of(seed, shape, dtype):
    raw = np.random.default_rng(seed).integers(1, 100, shape)
    if dtype.kind in "SUV":
        return raw.astype("S2").astype(dtype)
    return raw.astype(dtype)


# Fixed-width text has no specification yet.
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@given(arrays(), layouts(), st.integers(1, 4), st.sampled_from([0, 16, MAX_GAP]))
def test_a_box_has_the_values_that_were_written(given_array, config, split, gap):
    options, seed, box, missing = given_array
    rank = len(options["shape"])
    repo = Repository.create(MemoryStorage(), config=with_rule(config, "/a", (split,) * rank))
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", **options)
    wanted = np.full(array.shape, array.fill_value, array.dtype)
    values = values_of(seed, array.shape, array.dtype)
    for at in np.ndindex(array.cdata_shape):
        if np.random.default_rng([seed, *at]).random() >= missing:
            part = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, array.chunks, strict=True))
            array[part] = wanted[part] = values[part]
    session.commit("a")
    reader = BoxReader(repo.readonly_session("main"), "/a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_reading, "MAX_GAP", gap)
        patch.setattr(box_reading, "MAX_SPAN", 4 * gap or MAX_SPAN)
        if all(start < stop for start, stop in box):
            patch.setattr(zarr.Array, "__getitem__", refuse)
        found = reader.read(box)
    assert found.dtype == reader.array.dtype
    np.testing.assert_array_equal(found, wanted[tuple(slice(*span) for span in box)])


@pytest.fixture
def repo():
    return Repository.create(MemoryStorage())


def written(repo, values, **options):
    """A reader of an array with these values."""
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=values, **options)
    session.commit("a")
    return BoxReader(repo.readonly_session("main"), "/a")


def whole(values):
    return tuple((0, n) for n in values.shape)


def test_a_packed_region_takes_few_requests_and_no_zarr(repo, monkeypatch):
    values = np.random.default_rng(0).integers(0, 2**60, (20, 6400))
    reader = written(repo, values, chunks=(1, 64))
    asked = []
    read_range = MemoryDriver.read_range

    def counted(driver, key, start, length):
        asked.append(key)
        return read_range(driver, key, start, length)

    monkeypatch.setattr(MemoryDriver, "read_range", counted)
    monkeypatch.setattr(zarr.Array, "__getitem__", refuse)
    np.testing.assert_array_equal(reader.read(whole(values)), values)
    assert len(asked) == 1, "2,000 chunks lie in one pack"
    np.testing.assert_array_equal(reader.read(((3, 4), (0, 6400))), values[3:4])
    assert len(asked) == 2


def test_a_manifest_is_decoded_once(repo, monkeypatch):
    values = np.arange(100)
    reader = written(repo, values, chunks=(1,))
    reader.read(((0, 10),))
    monkeypatch.setattr(MemoryDriver, "read_bytes", None)
    np.testing.assert_array_equal(reader.read(whole(values)), values)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (2, 3), "shards": (4, 6)},
        {"chunks": [[3, 7], [4, 4, 1]]},
        {"chunks": (2, 3), "dtype": "str"},
    ],
    ids=["shards", "chunks of several shapes", "text"],
)
def test_zarr_reads_what_only_it_can(repo, options):
    values = np.arange(90).reshape(10, 9)
    if "dtype" in options:
        values = values.astype(np.dtypes.StringDType())
    with zarr.config.set({"array.rectilinear_chunks": True}):
        session = repo.writable_session("main")
        array = zarr.create_array(
            session.store, name="a", shape=values.shape, **{"dtype": values.dtype} | options
        )
        array[...] = values
        session.commit("a")
        found = BoxReader(repo.readonly_session("main"), "/a").read(((1, 8), (2, 9)))
    np.testing.assert_array_equal(found, values[1:8, 2:9])


def test_virtual_chunks_are_read_among_others(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(bytes(range(10, 20)))
    prefix = f"file://{tmp_path}/data/"
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path / "data")))
    )
    repo = Repository.create(
        tmp_path / "repo", config=config, authorize_virtual_chunk_access={prefix: None}
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(20,), chunks=(10,), dtype="u1", compressors=None
    )
    array[:10] = np.arange(10)
    session.store.set_virtual_ref("a/c/1", f"{prefix}file", offset=0, length=10)
    session.commit("a")
    found = BoxReader(repo.readonly_session("main"), "/a").read(((5, 15),))
    assert found.tolist() == list(range(5, 15))


def test_frames_that_do_not_tell_their_size_are_read(repo, monkeypatch):
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="u1")
    compressor = zstandard.ZstdCompressor().compressobj()
    frame = compressor.compress(bytes([1, 2])) + compressor.flush()
    asyncio.run(session.set_chunk("/a", (1,), frame))
    session.commit("a")
    reader = BoxReader(repo.readonly_session("main"), "/a")
    monkeypatch.setattr(zarr.Array, "__getitem__", refuse)
    assert reader.read(((0, 4),)).tolist() == [0, 0, 1, 2]


def test_a_damaged_chunk_is_an_error(repo):
    values = np.arange(2000)
    reader = written(repo, values, chunks=(1000,))
    (page,) = repo.storage.list("chunks/")
    (pack,) = page
    data = bytearray(repo.storage.get(pack.key).data)
    data[-300:] = bytes(300)
    repo.storage.put(pack.key, bytes(data))
    np.testing.assert_array_equal(reader.read(((0, 1000),)), values[:1000])
    with pytest.raises(Exception, match=r"(?i)zstd"):
        reader.read(whole(values))
