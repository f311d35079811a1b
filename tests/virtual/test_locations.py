"""How locations are spelled, which container has them, and what their objects are called."""

import datetime

import icechunk
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import InvalidInputError
from icefloe.format import manifest
from icefloe.format.chunk_refs import ChunkRefs, VirtualRef
from icefloe.format.ragged import Ragged
from icefloe.virtual import Containers, VirtualChunkSpec, normalize, normalize_all
from icefloe.virtual.locations import object_key

icechunk.set_logs_filter("error")

SPELLINGS = {
    "s3://bucket/k": "s3://bucket/k",
    "S3://bucket/k": "s3://bucket/k",
    "s3://bucket/a//b/../c": "s3://bucket/a//b/../c",
    "s3://bucket/ü b%20c?q=1#f": "s3://bucket/ü b%20c?q=1#f",
    "https://h/p/a?x=1&y=2": "https://h/p/a?x=1&y=2",
    "https://h/p/a b": "https://h/p/a b",
    "gs://g/a": "gs://g/a",
    "az://a/x": "az://a/x",
    "VCC://nm//k": "vcc://nm//k",
    "vcc://nm/../a b?x": "vcc://nm/../a b?x",
    "file:///tmp/x/a": "file:///tmp/x/a",
    "FILE:///tmp/x/a": "file:///tmp/x/a",
    "file:/tmp/x/a": "file:///tmp/x/a",
    "file://localhost/tmp/x/a": "file:///tmp/x/a",
    "file:///tmp/x/./b/../a": "file:///tmp/x/a",
    "file:///tmp/y/%2e%2E/x/a": "file:///tmp/x/a",
    "file:///tmp/x/a b/ü": "file:///tmp/x/a%20b/%C3%BC",
    "file:///tmp/x/a%20b%2Fc": "file:///tmp/x/a%20b%2Fc",
    'file:///tmp/x/a"<>`{}|\\b': "file:///tmp/x/a%22%3C%3E%60%7B%7D|/b",
    "file:///tmp/x/a?b#c": "file:///tmp/x/a?b#c",
}


@pytest.fixture(scope="module")
def official_spelling(tmp_path_factory):
    """Writes a location with the official library, and reads it from the manifest."""
    path = tmp_path_factory.mktemp("repo")
    config = icechunk.RepositoryConfig.default()
    containers = {
        "s3://bucket/": icechunk.s3_store(),
        "file:///tmp/x/": icechunk.local_filesystem_store("/tmp/x"),
        "https://h/p/": icechunk.http_store(),
        "gs://g/": icechunk.gcs_store(),
        "az://a/": icechunk.storage.azure_store(account="acc"),
    }
    for prefix, store in containers.items():
        name = "nm" if prefix.startswith("s3") else None
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, name))
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config)

    def write(location):
        before = set((path / "manifests").glob("*"))
        session = repo.writable_session("main")
        zarr.create_array(
            session.store, name="a", shape=(1,), chunks=(1,), dtype="u1", overwrite=True
        )
        session.store.set_virtual_ref("a/c/0", location, offset=0, length=1)
        session.commit("x")
        (written,) = set((path / "manifests").glob("*")) - before
        return manifest.decode(written.read_bytes()).arrays[0].refs[0].location

    return write


@pytest.mark.parametrize(("given_", "expected"), SPELLINGS.items())
def test_locations_are_spelled_as_the_official_library_does(given_, expected, official_spelling):
    assert normalize(given_) == expected
    assert official_spelling(given_) == expected


@given(st.text(max_size=12))
def test_a_normal_location_stays_as_it_is(text):
    for start in ("s3://b/", "file:///", "file:", "https://h/"):
        try:
            normal = normalize(start + text)
        except InvalidInputError:
            continue
        assert normalize(normal) == normal


@pytest.mark.parametrize(
    "location",
    [
        "", "  ", "/tmp/x", "tmp/x", "s3:bucket/k", "s3:/bucket/k", "s3://bucket", "s3:///k",
        "ftp://h/a", "memory://a/b", " s3://bucket/k", "s3://bucket/a\nb", "s3://bucket/a\0b",
        "file:///tmp/a\tb", "file://tmp/x/a", "file:tmp/x", "file://host",
    ],
)  # fmt: skip
def test_what_is_no_location_is_refused(location):
    with pytest.raises(InvalidInputError) as caught:
        normalize(location)
    assert caught.value.kind == "invalid-virtual-ref"


def test_a_column_is_normalized_by_its_distinct_values():
    column = Ragged.of_text(["S3://b/x", "s3://b/y", "S3://b/x"])
    assert normalize_all(column).texts() == ["s3://b/x", "s3://b/y", "s3://b/x"]
    normal = Ragged.of_text(["s3://b/x"] * 3)
    assert normalize_all(normal) is normal
    assert len(normalize_all(Ragged.of([]))) == 0
    with pytest.raises(InvalidInputError):
        normalize_all(Ragged.of_text(["s3://b/x", "nonsense"]))


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("s3://b/a/k", "a/k"),
        ("s3://b/a//../k", "a//../k"),
        ("s3://b/%C3%BC%20%3F%23%25?q#f", "ü ?#%"),
        ("https://h/p/a%20b?x", "p/a b"),
        ("file:///tmp/%C3%BC%20x?q", "/tmp/ü x"),
    ],
)
def test_the_key_is_the_decoded_path(location, key):
    assert object_key(location) == key


@pytest.mark.parametrize(
    "location",
    [
        "https://h/p/../q", "https://h/p/%2e%2e/q", "https://h/p/..%2fq", "https://h/p//q",
        "file:///x/../y", "file:///x/..%2Fy", "file:///x//y", "gs://b/./x", "az://b/a/..",
        "s3://b/", "s3://b/%00", "s3://b/%ff",
    ],
)  # fmt: skip
def test_a_key_never_leads_out_of_its_container(location):
    with pytest.raises(InvalidInputError) as caught:
        object_key(location)
    assert caught.value.kind == "invalid-virtual-ref"


def containers(*items):
    config = RepositoryConfig()
    for prefix, store, name in items:
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store, name))
    return Containers(config.virtual_chunk_containers)


KNOWN = [
    ("s3://bucket/", s3_store(), "all"),
    ("s3://bucket/deep/", s3_store(), None),
    ("file:///data/a b/", local_filesystem_store("/data/a b"), "files"),
    ("https://h/p/", http_store(), "web"),
    ("gs://g/", gcs_store(), None),
    ("az://a/", azure_store(account="x"), None),
]


@pytest.mark.parametrize(
    ("location", "prefix", "resolved"),
    [
        ("s3://bucket/x", "s3://bucket/", "s3://bucket/x"),
        ("s3://bucket/deep/x", "s3://bucket/deep/", "s3://bucket/deep/x"),
        ("s3://bucket/deepx", "s3://bucket/", "s3://bucket/deepx"),
        ("vcc://all/deep/x", "s3://bucket/", "s3://bucket/deep/x"),
        ("vcc://files/k", "file:///data/a b/", "file:///data/a%20b/k"),
        ("file:///data/a%20b/k", "file:///data/a b/", "file:///data/a%20b/k"),
        ("https://h/p/x", "https://h/p/", "https://h/p/x"),
    ],
)
def test_the_longest_prefix_wins_and_names_are_resolved(location, prefix, resolved):
    container, absolute = containers(*KNOWN).find(location)
    assert (container.url_prefix, absolute) == (prefix, resolved)


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucke/x",
        "s3://bucket.evil/x",
        "http://h/p/x",
        "gcs://g/x",
        "vcc://none/x",
        "vcc://all",
    ],
)
def test_a_location_without_a_container_is_refused(location):
    with pytest.raises(InvalidInputError) as caught:
        containers(*KNOWN).find(location)
    assert caught.value.kind == "no-container-for-virtual-chunk"
    assert location in str(caught.value)


def test_a_column_is_validated_by_its_distinct_values():
    known = containers(*KNOWN)
    known.validate(Ragged.of_text(["s3://bucket/a"] * 5 + [None, "vcc://web/b"]))
    known.validate([])
    with pytest.raises(InvalidInputError, match="nowhere") as caught:
        known.validate(Ragged.of_text(["s3://bucket/a", "s3://nowhere/b"]))
    assert caught.value.kind == "no-container-for-virtual-chunk"
    with pytest.raises(InvalidInputError, match="segment") as caught:
        known.validate(["vcc://web/../secret"])
    assert caught.value.kind == "invalid-virtual-ref"


def test_a_million_locations_in_few_objects_are_checked_at_once():
    values = Ragged.of_text([f"s3://bucket/{number}" for number in range(10)])
    known = containers(*KNOWN)
    rows = [number % 10 for number in range(10**6)]
    column = values.take(rows)
    known.validate(column)
    assert normalize_all(column) is column


def test_a_spec_becomes_a_reference():
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, 600_000, tzinfo=datetime.UTC)
    spec = VirtualChunkSpec([0, 1], "S3://b/k", 5, 7, last_updated_at_checksum=when)
    assert spec.ref() == VirtualRef("s3://b/k", 5, 7, None, int(when.timestamp()))
    spec = VirtualChunkSpec([0, 1], "s3://b/k", 5, 7, '"tag"', when)
    assert spec.ref() == VirtualRef("s3://b/k", 5, 7, "tag", None)
    refs = ChunkRefs.of([(spec.index, spec.ref())], 2)
    assert refs[0] == spec.ref()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("s3://b/k", -1, 1), "invalid-virtual-ref"),
        (("s3://b/k", 0, 0), "zero-length-chunk"),
        (("nonsense", 0, 1), "invalid-virtual-ref"),
        (("s3://b/k", 0, 1, None, datetime.datetime(2020, 1, 1)), "invalid-virtual-ref"),
        (
            ("s3://b/k", 0, 1, None, datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC)),
            "invalid-virtual-ref",
        ),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(arguments, kind):
    with pytest.raises(InvalidInputError) as caught:
        VirtualChunkSpec([0], *arguments).ref()
    assert caught.value.kind == kind
