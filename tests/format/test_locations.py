"""Compressed locations: the frames of the reference, its limits, and frames that lie."""

import struct

import icechunk
import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError, InternalError
from icefloe.format.header import FileType, unpack
from icefloe.format.locations import MAX_LENGTH, MAX_SAMPLES, compress, decompress, train
from icefloe.format.ragged import Ragged

URLS = [b"s3://bucket/era5/%d/file-%06d.nc" % (1950 + i // 100, i) for i in range(2000)]
DICTIONARY = train(URLS)


def frame(text, **options):
    dictionary = zstandard.ZstdCompressionDict(DICTIONARY)
    return zstandard.ZstdCompressor(level=3, dict_data=dictionary, **options).compress(text)


def frame_stating(size):
    """A frame of one empty block that claims `size` bytes, in eight."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x01\0\0"


def test_a_dictionary_is_small_standard_and_reproducible():
    assert len(DICTIONARY) <= 2048
    assert DICTIONARY[:4] == bytes.fromhex("37a430ec")
    assert train(list(URLS)) == DICTIONARY


def test_a_dictionary_pays():
    assert len(compress(Ragged.of(URLS), DICTIONARY).data) < 0.8 * len(b"".join(URLS))


def test_training_looks_at_no_more_than_its_samples():
    class Watched(list):
        def __getitem__(self, item):
            taken = super().__getitem__(item)
            assert len(taken) <= MAX_SAMPLES
            return taken

    assert train(Watched(URLS)) == DICTIONARY


@pytest.mark.parametrize(
    "urls",
    [
        pytest.param([], id="none"),
        pytest.param([b""], id="empty"),
        pytest.param([b"a", b"b", b"c"], id="short"),
        pytest.param([b"short", b"s3://bucket/long/enough"] * 50, id="half-short"),
        pytest.param([np.random.default_rng(i).bytes(30) for i in range(100)], id="random"),
    ],
)
def test_there_is_no_dictionary_where_it_would_not_pay(urls):
    assert train(urls) is None


@pytest.mark.parametrize("count", [1, 5, 50])
def test_few_locations_are_repeated_until_they_suffice(count):
    dictionary = train(URLS[:count])
    if dictionary is not None:
        column = Ragged.of(URLS[:count])
        assert decompress(compress(column, dictionary), dictionary).tolist() == URLS[:count]


def test_five_locations_give_a_dictionary():
    assert train(URLS[:5]) is not None


@given(st.lists(st.binary(max_size=40), max_size=120))
def test_training_never_fails(urls):
    dictionary = train(urls)
    assert dictionary is None or len(dictionary) <= 2048


@pytest.mark.parametrize("threads", [0, 2])
@given(texts=st.lists(st.binary(min_size=1, max_size=MAX_LENGTH), max_size=30))
def test_locations_survive_in_order(texts, threads):
    frames = compress(Ragged.of(texts), DICTIONARY, threads=threads)
    assert decompress(frames, DICTIONARY, threads=threads).tolist() == texts


def test_rows_may_lie_anywhere_in_their_data():
    column = Ragged.of(URLS).take(np.array([7, 3, 3, 1999]))
    assert compress(column, DICTIONARY).tolist() == [frame(URLS[i]) for i in (7, 3, 3, 1999)]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1023, MAX_LENGTH])
def test_every_size_up_to_the_limit_survives(size):
    column = compress(Ragged.of([b"u" * size]), DICTIONARY)
    assert decompress(column, DICTIONARY).tolist() == [b"u" * size]


@pytest.mark.parametrize("text", [b"", b"u" * (MAX_LENGTH + 1), None])
def test_what_must_stay_plain_is_not_compressed(text):
    with pytest.raises(InternalError):
        compress(Ragged.of([URLS[0], text]), DICTIONARY)


@pytest.mark.parametrize(
    "options",
    [{"write_content_size": False}, {"write_dict_id": False}, {"write_checksum": True}],
    ids=str,
)
@pytest.mark.parametrize("mixed", [False, True])
def test_frames_of_other_writers_are_read(options, mixed):
    frames = [frame(URLS[0], **options)] + [frame(URLS[1])] * mixed
    assert decompress(Ragged.of(frames), DICTIONARY).tolist() == URLS[: len(frames)]


def test_a_frame_made_without_the_dictionary_is_read():
    plain = zstandard.compress(URLS[0])
    assert decompress(Ragged.of([plain]), DICTIONARY).tolist() == [URLS[0]]


GOOD = frame(URLS[0])


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"", id="empty"),
        pytest.param(None, id="absent"),
        pytest.param(GOOD[:8], id="short"),
        pytest.param(GOOD[:-1], id="cut"),
        pytest.param(GOOD[:10], id="cut-in-header"),
        pytest.param(b"s3://bucket/plain-text-not-a-frame", id="plain"),
        pytest.param(b"\0" * 30, id="zeros"),
        pytest.param(GOOD[:4] + b"\xff" + GOOD[5:], id="reserved-bits"),
        pytest.param(frame(b"u" * (MAX_LENGTH + 1)), id="over-limit"),
        pytest.param(frame(b"u" * (MAX_LENGTH + 1), write_content_size=False), id="over-unsized"),
        pytest.param(frame(b"u" * 100_000), id="far-over-limit"),
        pytest.param(frame_stating(2**60), id="claims-an-exabyte"),
        pytest.param(frame_stating(100), id="claims-too-much"),
        pytest.param(GOOD[:9] + b"\x05" + GOOD[10:], id="claims-too-little"),
    ],
)
@pytest.mark.parametrize("unsized", [False, True])
def test_a_bad_frame_is_refused(bad, unsized):
    beside = frame(URLS[1], write_content_size=not unsized)
    with pytest.raises(FormatError, match=r"^manifests/X: bad compressed location"):
        decompress(Ragged.of([beside, bad]), DICTIONARY, name="manifests/X")


@pytest.mark.parametrize(
    "dictionary", [train([url[::-1] for url in URLS]), b"", b"x" * 100, DICTIONARY[:9]]
)
def test_another_dictionary_is_refused(dictionary):
    with pytest.raises(FormatError):
        decompress(Ragged.of([GOOD]), dictionary)


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 20), (0, 10_000), (2**63 - 1, 20), (10, 2**63 - 1), (-(2**63), 20)]
)
@pytest.mark.parametrize("turn", [compress, decompress])
def test_rows_outside_their_data_are_refused_and_do_not_crash(turn, start, length):
    data = np.frombuffer(GOOD * 2, dtype=np.uint8)
    column = Ragged(data, np.array([start]), np.array([length]))
    with pytest.raises(InternalError):
        turn(column, DICTIONARY)


@given(st.binary(min_size=9, max_size=60), st.booleans())
def test_noise_raises_nothing_but_format_errors(noise, magic):
    try:
        decompress(Ragged.of([GOOD[:4] + noise if magic else noise]), DICTIONARY)
    except FormatError:
        return


@given(st.integers(4, len(GOOD) - 1), st.integers(0, 255))
def test_a_damaged_frame_raises_nothing_but_format_errors(position, value):
    damaged = GOOD[:position] + bytes([value]) + GOOD[position + 1 :]
    try:
        decompress(Ragged.of([damaged, GOOD]), DICTIONARY)
    except FormatError:
        return


def test_frames_and_dictionary_of_the_official_library(tmp_path):
    dictionary, frames = written_by_reference(tmp_path, [url.decode() for url in URLS])
    column = Ragged.of(frames)
    assert decompress(column, dictionary).tolist() == URLS
    assert compress(Ragged.of(URLS), dictionary).tolist() == frames


def written_by_reference(path, urls):
    """The dictionary and the frames of a manifest that the official library wrote for `urls`."""
    store = icechunk.s3_store(region="us-east-1")
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://bucket/", store))
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(len(urls),), chunks=(1,), dtype="i1")
    specs = [
        icechunk.VirtualChunkSpec(index=[i], location=url, offset=0, length=1)
        for i, url in enumerate(urls)
    ]
    session.store.set_virtual_refs("a", specs, validate_containers=False)
    session.commit("virtual")
    (file,) = (path / "manifests").iterdir()
    _, payload = unpack(file.read_bytes(), FileType.MANIFEST, name="manifest")

    def uint(position):
        return struct.unpack_from("<I", payload, position)[0]

    def field(table, number):
        vtable = table - struct.unpack_from("<i", payload, table)[0]
        return table + struct.unpack_from("<H", payload, vtable + 4 + 2 * number)[0]

    def content(position):
        start = position + uint(position)
        return payload[start + 4 : start + 4 + uint(start)]

    def tables(position):
        start = position + uint(position)
        places = range(start + 4, start + 4 + 4 * uint(start), 4)
        return [place + uint(place) for place in places]

    (array,) = tables(field(uint(0), 1))
    frames = [content(field(ref, 8)) for ref in tables(field(array, 1))]
    return content(field(uint(0), 2)), frames
