"""Which engine serves a bucket, and what the plain requests do on their own."""

import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError, PermissionDeniedError, StorageError
from icefloe.storage import Retries, open_storage, s3_xml
from icefloe.storage.s3 import connect
from icefloe.storage.s3_direct import DirectDriver
from icefloe.storage.s3_place import Place
from icefloe.storage.settings import Settings
from servers_hostile import talking

KEYS = {"key": "AKID", "secret": "hidden/secret"}
PLAIN = [
    KEYS,
    {**KEYS, "token": "t"},
    {**KEYS, "endpoint_url": "http://127.0.0.1:9"},
    {**KEYS, "client_kwargs": {"region_name": "eu-west-1"}},
    {**KEYS, "config_kwargs": {"s3": {"addressing_style": "path"}}},
    {"anon": True},
]
MORE = [
    {},
    {"profile": "work"},
    {"key": "AKID"},
    {**KEYS, "requester_pays": True},
    {**KEYS, "client_kwargs": {"verify": False}},
    {**KEYS, "config_kwargs": {"proxies": {"http": "http://p"}}},
    {**KEYS, "config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
    {**KEYS, "endpoint_url": "http://127.0.0.1:9?x=1"},
    {**KEYS, "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}},
]


def settings(options, url="s3://bucket/x"):
    return Settings(url=url, options=options)


@pytest.fixture(autouse=True)
def _a_plain_environment(monkeypatch, tmp_path):
    for name in [*os.environ]:
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("options", PLAIN)
def test_plain_options_are_served_by_plain_requests(options):
    assert isinstance(connect(settings(options)), DirectDriver)
    assert not isinstance(connect(settings({**options, "engine": "s3fs"})), DirectDriver)


@pytest.mark.parametrize("options", MORE)
def test_what_says_more_is_served_by_s3fs(options):
    assert Place.of(settings(options)) is None
    with pytest.raises(InvalidInputError, match="engine='direct' takes") as caught:
        connect(settings({**options, "engine": "direct"}))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket--use1-az4--x-s3/x",
        "s3://arn:aws:s3:us-east-1:1:accesspoint/a/x",
        "s3://Bucket/x",
        "s3://alias-s3alias/x",
    ],
)
def test_buckets_that_mean_more_are_served_by_s3fs(url):
    assert Place.of(settings(KEYS, url)) is None


@pytest.mark.parametrize(
    ("name", "own_endpoint_decides"),
    [
        ("https_proxy", False),
        ("AWS_CA_BUNDLE", True),
        ("AWS_ENDPOINT_URL", True),
        ("AWS_ENDPOINT_URL_S3", True),
        ("AWS_PROFILE", True),
        ("AWS_USE_FIPS_ENDPOINT", True),
    ],
)
def test_what_the_environment_says_of_the_way_is_left_to_s3fs(
    monkeypatch, name, own_endpoint_decides
):
    monkeypatch.setenv(name, "http://elsewhere:1")
    assert Place.of(settings(KEYS)) is None
    own = Place.of(settings({**KEYS, "endpoint_url": "http://h:1"}))
    assert (own is not None) == own_endpoint_decides


def test_a_configuration_file_is_left_to_s3fs(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]")
    assert Place.of(settings(KEYS)) is None


def test_an_engine_that_is_none_is_refused():
    with pytest.raises(InvalidInputError, match="direct, s3fs"):
        connect(settings({**KEYS, "engine": "rust"}))


def test_the_engine_travels_in_a_pickle_and_the_keys_do_not():
    storage = open_storage("s3://bucket/x", {**KEYS, "engine": "direct"})
    data = pickle.dumps(storage)
    assert b"hidden" not in data
    assert pickle.loads(data)._settings.options == {"engine": "direct"}


@pytest.mark.parametrize(
    ("options", "url", "root"),
    [
        ({}, "s3://bucket/x", ("https", "bucket.s3.us-east-1.amazonaws.com", "")),
        ({}, "s3://a.b.c/x", ("https", "s3.us-east-1.amazonaws.com", "/a.b.c")),
        (
            {"client_kwargs": {"region_name": "cn-north-1"}},
            "s3://bucket",
            ("https", "bucket.s3.cn-north-1.amazonaws.com.cn", ""),
        ),
        ({"endpoint_url": "http://h:1/"}, "s3://bucket", ("http", "h:1", "/bucket")),
        ({"endpoint_url": "https://h/up"}, "s3://bucket", ("https", "h", "/up/bucket")),
        (
            {
                "endpoint_url": "http://h:1",
                "config_kwargs": {"s3": {"addressing_style": "virtual"}},
            },
            "s3://bucket",
            ("http", "bucket.h:1", ""),
        ),
    ],
)
def test_buckets_stand_where_botocore_asks_for_them(options, url, root):
    assert Place.of(settings({**KEYS, **options}, url)).root() == root


def test_loading_the_plain_engine_does_not_load_botocore():
    program = """
import sys
from icefloe.storage import open_storage
storage = open_storage("s3://bucket/x", {"key": "k", "secret": "s"})
storage._driver()
print(sorted({"botocore", "aiobotocore", "s3fs", "boto3"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done


def answering(*answers):
    """A server that gives these, one for each request, the last one again and again."""
    left = list(answers)

    def talk(server, connection, head):
        status, headers, body = left.pop(0) if len(left) > 1 else left[0]
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)

    return talking(talk)


def opened(server, **options):
    given = {**KEYS, "endpoint_url": server.url, "deadline": 5, "engine": "direct", **options}
    return open_storage("s3://bucket/x", given, retries=Retries(attempts=1))


FAULT = b"<Error><Code>%s</Code><Message>m</Message><Region>eu-central-2</Region></Error>"


@pytest.mark.parametrize(
    "first",
    [
        ("400 Bad Request", [], FAULT % b"AuthorizationHeaderMalformed"),
        ("301 Moved", ["x-amz-bucket-region: eu-central-2"], b""),
    ],
)
def test_a_bucket_in_another_region_is_asked_again_there(first):
    with answering(first, ("200 OK", ['ETag: "v"'], b"data")) as server:
        storage = opened(server)
        assert storage.get("a").data == b"data"
        assert storage.get("a").data == b"data"
    assert ["us-east-1" in head for head in server.heads] == [True, False, False]
    assert "eu-central-2/s3/aws4_request" in server.heads[1]


def test_a_redirect_to_elsewhere_is_not_followed():
    with answering(("307 Temporary", ["Location: http://elsewhere:1/"], b"")) as server:
        with pytest.raises(StorageError, match="307 redirected"):
            opened(server).get("a")
        assert len(server.heads) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ("200 OK", [], b"<html>log in</html>"),
        ("200 OK", [], b"no document"),
        ("200 OK", [], b"<ListBucketResult><Contents><Key>x/a</Key></Contents></ListBucketResult>"),
        (
            "200 OK",
            [],
            b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        ),
    ],
)
def test_a_listing_that_is_none_is_an_error(answer):
    with answering(answer) as server, pytest.raises(StorageError):
        [*opened(server).list()]


def test_an_answer_without_a_version_is_an_error_and_no_success():
    with answering(("200 OK", [], b"data")) as server:
        storage = opened(server)
        for call in (lambda: storage.get("a"), lambda: storage.put("a", b"x")):
            with pytest.raises(StorageError, match="ETag"):
                call()


def test_a_copy_that_fails_after_the_answer_began_is_a_failure():
    with (
        answering(("200 OK", [], FAULT % b"InternalError")) as server,
        pytest.raises(StorageError, match="InternalError"),
    ):
        opened(server).copy("a", "b")


def test_secrets_are_in_no_error():
    body = FAULT % b"SignatureDoesNotMatch" + b"<!-- hidden/secret -->"
    with (
        answering(
            ("403 Forbidden", [], body.replace(b"<Message>m", b"<Message>hidden/secret"))
        ) as s,
        pytest.raises(PermissionDeniedError) as caught,
    ):
        opened(s).get("a")
    assert "hidden" not in f"{caught.value} {caught.value.__cause__!r}"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), max_size=5))
def test_keys_survive_the_documents(keys):
    body = s3_xml.deletion(keys)
    found = [item.text for item in s3_xml.ET.fromstring(body).iter("Key")]
    assert found == keys


def test_pages_are_read_with_and_without_a_namespace():
    for tag in ("ListBucketResult", 'ListBucketResult xmlns="http://s3.amazonaws.com/doc/"'):
        body = (
            f"<{tag}><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
            "<Contents><Key>x/a%20%2B%C3%A9</Key><Size>3</Size>"
            "<LastModified>2026-11-18T01:02:03.004Z</LastModified></Contents>"
            "<NextContinuationToken>go on</NextContinuationToken></ListBucketResult>"
        )
        page = s3_xml.listing(body.encode(), 2)
        assert page.next == "go on"
        assert (page.objects[0].key, page.objects[0].size) == ("a +é", 3)
        assert page.objects[0].modified == datetime(2026, 11, 18, 1, 2, 3, 4000, UTC)
