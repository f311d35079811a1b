"""Signatures of requests to S3 are those that botocore makes."""

from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from icefloe.storage import signing
from icefloe.storage.signing import Keys, Request, quoted_path, signed_headers

NOW = datetime(2026, 11, 18, 23, 59, 59, tzinfo=UTC)
_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
_names = st.text("abcdefghijklmnop-", min_size=1, max_size=8).map(lambda name: f"x-amz-{name}z")
_values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(
    st.sampled_from(["GET", "PUT", "HEAD", "POST"]),
    _text,
    st.dictionaries(_text.filter(bool), _text, max_size=3),
    st.dictionaries(_names, _values, max_size=3),
    st.binary(max_size=40),
    st.sampled_from([None, "a/token+="]),
    st.sampled_from(["us-east-1", "eu-central-2"]),
)
def test_signatures_are_those_of_botocore(method, key, query, headers, body, token, region):
    keys = Keys("AKID", "s/e+cret", token)
    request = Request(method, "store:8333", quoted_path(f"/bucket/{key}"), query, headers, body)
    ours = signed_headers(request, keys, region, NOW)
    theirs = AWSRequest(
        method=method,
        url=f"http://store:8333{request.path}?{request.query_string()}",
        headers=dict(headers),
        data=body,
    )
    theirs.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
    auth = S3SigV4Auth(Credentials(keys.key, keys.secret, keys.token), "s3", region)
    theirs.headers["X-Amz-Content-SHA256"] = ours["x-amz-content-sha256"]
    theirs.headers["X-Amz-Date"] = ours["x-amz-date"]
    if token:
        theirs.headers["X-Amz-Security-Token"] = token
    canonical = auth.canonical_request(theirs)
    signature = auth.signature(auth.string_to_sign(theirs, canonical), theirs)
    assert ours["authorization"].rpartition("=")[2] == signature


def test_the_anonymous_sign_nothing():
    headers = signed_headers(Request("GET", "store", "/k"), None, "us-east-1", NOW)
    assert headers == {"host": "store"}


@pytest.mark.parametrize("shown", [repr, str])
def test_no_secret_is_shown(shown):
    keys = Keys("AKID", "hidden", "hidden, too")
    assert "hidden" not in shown(keys)
    assert "hidden" not in shown(Request("PUT", "store", "/k", body=b"hidden"))
    assert signing.Keys is Keys
