"""The envelope of metadata files: what is written, what is accepted, what is refused."""

import os
import struct
import tracemalloc

import icechunk
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format import header
from icefloe.format.header import FileType, Header, pack, unpack
from icefloe.version import __version__

PAYLOAD = b"ids and coordinates " * 50
OURS = Header(implementation=f"icefloe-{__version__}", spec_version=2, file_type=FileType.SNAPSHOT)


def envelope(frame, *, magic=header.MAGIC, name=b"ic-2.3.0", spec=2, kind=1, compression=1):
    return magic + name.ljust(24) + bytes([spec, kind, compression]) + frame


def compress(payload, **options):
    return zstandard.ZstdCompressor(**options).compress(payload)


def compress_without_size(payload):
    return compress(payload, write_content_size=False)


def refusal(data, **options):
    with pytest.raises(FormatError) as error:
        unpack(data, FileType.SNAPSHOT, name="snapshots/X", **options)
    assert str(error.value).startswith("snapshots/X: ")
    return error.value


@given(st.binary(max_size=2000), st.sampled_from(FileType), st.sampled_from([1, 2]))
def test_a_payload_survives_its_envelope(payload, kind, spec):
    read, data = unpack(pack(payload, kind, spec_version=spec), kind, name="x")
    assert data == payload
    assert read == Header(implementation=OURS.implementation, spec_version=spec, file_type=kind)


def test_the_bytes_are_those_of_the_spec():
    data = pack(PAYLOAD, FileType.MANIFEST)
    assert data[:12] == bytes.fromhex("494345f09fa78a4348554e4b")
    assert data[12:36] == f"icefloe-{__version__}".encode().ljust(24)
    assert list(data[36:39]) == [2, 2, 1]
    assert zstandard.get_frame_parameters(data[39:]).content_size == len(PAYLOAD)
    assert zstandard.decompress(data[39:]) == PAYLOAD


@pytest.mark.parametrize(
    "payload", [np.arange(99), bytearray(b"abc"), memoryview(b"abc"), b"", np.empty(0, np.uint8)]
)
def test_any_contiguous_buffer_is_a_payload(payload):
    data = pack(payload, FileType.SNAPSHOT)
    assert unpack(memoryview(data), FileType.SNAPSHOT, name="x") == (OURS, bytes(payload))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"ic-2.3.0", "ic-2.3.0"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 23 + b"\xc3", "x" * 23 + "\ufffd"),
    ],
    ids=["official", "empty", "not-utf-8", "cut-in-a-letter"],
)
def test_any_implementation_name_is_accepted(name, text):
    read, _ = unpack(envelope(compress(b"a"), name=name), FileType.SNAPSHOT, name="x")
    assert read.implementation == text


@pytest.mark.parametrize("size", [0, 1, 38])
def test_a_file_shorter_than_the_header_is_refused(size):
    assert "too short" in str(refusal(pack(b"", FileType.SNAPSHOT)[:size]))


def test_a_file_with_another_magic_is_refused():
    assert "not an Icechunk" in str(refusal(envelope(compress(b"a"), magic=b"ICE.CHUNK...")))


@pytest.mark.parametrize("spec", [0, 3, 255])
def test_a_spec_version_we_do_not_know_is_refused_under_its_own_kind(spec):
    error = refusal(envelope(compress(b"a"), spec=spec))
    assert error.kind == "unsupported-spec-version"


@pytest.mark.parametrize(("kind", "told"), [(2, "MANIFEST"), (0, "unknown"), (7, "unknown")])
def test_a_file_of_another_type_is_refused(kind, told):
    assert told in str(refusal(envelope(compress(b"a"), kind=kind)))


@pytest.mark.parametrize("compression", [2, 255])
def test_compression_is_zstd_or_none(compression):
    assert "is not known" in str(refusal(envelope(b"a", compression=compression)))


@pytest.mark.parametrize("payload", [PAYLOAD, b""])
def test_a_payload_without_compression_is_read_as_it_is(payload):
    data = envelope(payload, compression=0)
    assert unpack(data, FileType.SNAPSHOT, name="x")[1] == payload
    assert unpack(memoryview(data), FileType.SNAPSHOT, name="x")[1] == payload


def test_a_payload_without_compression_has_a_size_limit_too():
    assert refusal(envelope(PAYLOAD, compression=0), max_size=10).kind == "implausible-size"


@pytest.mark.parametrize("level", [-5, 1, 3, 19, 22])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_a_frame_of_any_level_with_or_without_size_and_checksum_is_read(level, sized, checked):
    frame = compress(PAYLOAD, level=level, write_content_size=sized, write_checksum=checked)
    assert unpack(envelope(frame), FileType.SNAPSHOT, name="x")[1] == PAYLOAD


@pytest.mark.parametrize("frame", [b"", b"\x28", b"junk", b"\0" * 50, b"\x28\xb5\x2f\xfd"])
def test_bytes_that_are_no_zstd_frame_are_refused(frame):
    assert refusal(envelope(frame)).kind == "decompression"


@pytest.mark.parametrize("make", [compress, compress_without_size])
def test_a_frame_cut_anywhere_is_refused(make):
    data = envelope(make(os.urandom(9000)))
    for cut in [header.SIZE, header.SIZE + 6, header.SIZE + 100, len(data) - 1]:
        refusal(data[:cut])


@pytest.mark.parametrize("make", [compress, compress_without_size])
@pytest.mark.parametrize("size", [1, 1024, 4096, 9000])
def test_data_after_the_frame_is_refused(make, size):
    refusal(envelope(make(PAYLOAD) + b"x" * size))
    refusal(envelope(make(PAYLOAD) + make(PAYLOAD)))
    refusal(envelope(make(os.urandom(4096)) + b"x" * size))


def test_a_damaged_frame_is_refused_when_it_has_a_checksum():
    frame = bytearray(compress(os.urandom(500), write_checksum=True))
    frame[100] ^= 1
    refusal(envelope(bytes(frame)))


def test_a_frame_that_needs_a_dictionary_is_refused():
    samples = [b"https://example.org/%d/data.nc" % i for i in range(1000)]
    dictionary = zstandard.train_dictionary(2048, samples)
    refusal(envelope(compress(PAYLOAD, dict_data=dictionary)))


@given(st.binary(max_size=60))
def test_hostile_bytes_raise_only_format_errors(noise):
    for frame in [noise, b"\x28\xb5\x2f\xfd" + noise]:
        try:
            unpack(envelope(frame), FileType.SNAPSHOT, name="x")
        except FormatError:
            continue


def rle_bomb(size, *, declared):
    """`size` zero bytes in blocks of 128 KiB, four bytes each: the most that zstd can inflate."""
    blocks = size // 2**17
    middle = struct.pack("<I", (2**17 << 3) | (1 << 1))[:3] + b"\0"
    last = struct.pack("<I", (2**17 << 3) | (1 << 1) | 1)[:3] + b"\0"
    if declared:
        start = b"\x28\xb5\x2f\xfd\xc0" + b"\x58" + struct.pack("<Q", size)
    else:
        start = b"\x28\xb5\x2f\xfd\x00" + b"\x58"
    return start + middle * (blocks - 1) + last


def test_the_bomb_of_these_tests_is_a_real_one():
    for declared in (True, False):
        data = envelope(rle_bomb(2**25, declared=declared))
        assert unpack(data, FileType.SNAPSHOT, name="x")[1] == bytes(2**25)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [2**31, 2**40])
def test_a_bomb_is_refused_before_it_takes_memory(declared, size):
    frame = rle_bomb(min(size, 2**31), declared=declared)
    if declared:
        frame = frame[:6] + struct.pack("<Q", size) + frame[14:]
    tracemalloc.start()
    try:
        assert refusal(envelope(frame)).kind == "implausible-size"
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_a_tiny_file_that_claims_a_huge_size_is_refused():
    frame = b"\x28\xb5\x2f\xfd\xc0\x58" + struct.pack("<Q", 2**31 - 1) + b"\x01\0\0"
    assert refusal(envelope(frame)).kind == "implausible-size"


@pytest.mark.parametrize("make", [compress, compress_without_size])
def test_the_limit_of_the_caller_holds(make):
    data = envelope(make(bytes(1001)))
    assert refusal(data, max_size=1000).kind == "implausible-size"
    assert len(unpack(data, FileType.SNAPSHOT, name="x", max_size=1001)[1]) == 1001


@pytest.mark.parametrize("make", [compress, compress_without_size])
def test_a_constant_payload_of_some_size_is_not_taken_for_a_bomb(make):
    payload = bytes(100_000_000)
    data = envelope(make(payload))
    assert len(payload) > 1000 * len(data)
    assert unpack(data, FileType.SNAPSHOT, name="x")[1] == payload


def test_the_files_of_the_official_library_open(tmp_path):
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    files = {
        "repo": FileType.REPO_INFO,
        "snapshots/1CECHNKREP0F1RSTCMT0": FileType.SNAPSHOT,
        "transactions/1CECHNKREP0F1RSTCMT0": FileType.TRANSACTION_LOG,
    }
    for name, kind in files.items():
        read, payload = unpack((tmp_path / name).read_bytes(), kind, name=name)
        assert read == Header(
            implementation=f"ic-{icechunk.__version__}", spec_version=2, file_type=kind
        )
        assert payload[4:8] == b"Ichk"


def test_the_official_library_opens_our_envelope(tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage)
    _, payload = unpack((tmp_path / "repo").read_bytes(), FileType.REPO_INFO, name="repo")
    (tmp_path / "repo").write_bytes(pack(payload, FileType.REPO_INFO))
    assert icechunk.Repository.open(storage).list_branches() == {"main"}
