"""No secret leaves the process, by any door."""

import logging
import pickle
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest

import servers
from icefloe.errors import IcefloeError, InvalidInputError, PermissionDeniedError
from icefloe.storage import Retries, open_storage
from icefloe.storage.failures import Failures

PLANTED = "PLANTED-s3cr3t"
HERE = Path(__file__).parents[2]

OPTIONS = {
    "s3://bucket/root": {
        "key": f"{PLANTED}-key",
        "secret": f"{PLANTED}-secret",
        "token": f"{PLANTED}-token",
        "client_kwargs": {"region_name": "us-east-1", "aws_secret_access_key": f"{PLANTED}-nested"},
        "config_kwargs": {"proxies": {"http": f"http://u:{PLANTED}@127.0.0.1:9"}},
        "unheard_of": f"{PLANTED}-unknown",
        "endpoint_url": "http://127.0.0.1:9",
    },
    "gs://bucket/root": {"token": {"private_key": PLANTED}, "project": "p"},
    "az://container/root": {
        "account_name": "a",
        "account_key": PLANTED,
        "sas_token": f"sig={PLANTED}",
        "connection_string": f"AccountKey={PLANTED}",
        "client_secret": PLANTED,
    },
}


@pytest.mark.parametrize("url", OPTIONS)
def test_neither_repr_nor_pickle_shows_a_secret(url):
    storage = open_storage(url, OPTIONS[url])
    assert PLANTED not in repr(storage)
    assert PLANTED not in str(storage)
    assert PLANTED.encode() not in pickle.dumps(storage)
    assert PLANTED not in repr(storage._settings)
    assert url in repr(storage)


def test_options_that_are_no_secrets_travel():
    options = {
        "anon": True,
        "endpoint_url": "http://127.0.0.1:9",
        "key": PLANTED,
        "client_kwargs": {"region_name": "eu-west-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "read_timeout": 5},
    }
    copy = pickle.loads(pickle.dumps(open_storage("s3://bucket/root", options)))
    assert copy._settings.options == {
        name: value for name, value in options.items() if name != "key"
    }
    anonymous = pickle.loads(pickle.dumps(open_storage("gs://bucket", {"token": "anon"})))
    assert anonymous._settings.options == {"token": "anon"}


@pytest.mark.parametrize(
    "call",
    [
        lambda storage: storage.get("repo"),
        lambda storage: storage.put_if("repo", b"x", expected=None),
    ],
    ids=["get", "put_if"],
)
def test_an_error_shows_no_secret(s3_server, caplog, call):
    caplog.set_level(logging.DEBUG, logger="icefloe")
    wrong = {"secret": f"{PLANTED}-secret", "token": f"{PLANTED}-token"}
    for changed in (wrong, wrong | {"endpoint_url": "http://127.0.0.1:9"}):
        storage = open_storage(
            s3_server.root(), s3_server.options | changed, retries=Retries(2, 0.001)
        )
        with pytest.raises(IcefloeError) as caught:
            call(storage)
        shown = "".join(traceback.format_exception(caught.value))
        assert PLANTED not in shown
        assert PLANTED not in repr(caught.value)
        assert PLANTED.encode() not in pickle.dumps(caught.value)
    ours = [record for record in caplog.records if record.name.startswith("icefloe")]
    assert ours
    assert PLANTED not in "".join(record.getMessage() for record in ours)


def test_a_secret_that_a_server_repeats_is_blanked_out():
    failures = Failures("s3://bucket/root", {PLANTED, ""})
    error = failures.from_status(403, "Denied", f"bad signature {PLANTED}!", key="repo")
    assert PLANTED not in str(error)
    assert "bad signature ***!" in str(error)
    leaky = OSError(f"GET /?sig={PLANTED}")
    assert PLANTED not in str(failures.transport("repo", leaky))
    assert failures.without_secrets(leaky) is None
    outer = OSError("outer")
    outer.__cause__ = leaky
    assert failures.without_secrets(outer) is None
    clean = OSError("clean")
    assert failures.without_secrets(clean) is clean


@pytest.mark.parametrize(
    "url", [f"https://user:{PLANTED}@host/x", f"https://host/x?token={PLANTED}"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(InvalidInputError) as caught:
        open_storage(url)
    assert PLANTED not in str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        open_storage("s3://bucket", {"endpoint_url": url})
    assert PLANTED not in str(caught.value)
    with pytest.raises(InvalidInputError):
        open_storage("s3://bucket", {"client_kwargs": {"endpoint_url": url}})


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_credentials_before_a_bucket_are_refused_and_not_repeated(scheme):
    with pytest.raises(InvalidInputError) as caught:
        open_storage(f"{scheme}://key:{PLANTED}@bucket/prefix")
    assert PLANTED not in str(caught.value)
    open_storage("abfss://container@account.dfs.core.windows.net/a?b", {"account_name": "account"})


def public_options(server):
    options = server.options
    return {name: options[name] for name in ("endpoint_url", "client_kwargs")}


@pytest.mark.s3
def test_a_credentials_provider_is_asked_again_where_the_pickle_lands(s3_server):
    storage = open_storage(
        s3_server.root(), public_options(s3_server), credentials=servers.credentials
    )
    storage.put("a", b"1")
    pickled = pickle.dumps(storage)
    assert servers.SECRET.encode() not in pickled
    assert servers.KEY.encode() not in pickled
    program = (
        f"import sys; sys.path[:0] = [{str(HERE / 'core')!r}, {str(HERE / 'tests')!r}]\n"
        "import pickle\n"
        "storage = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(storage.get('a').data)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, timeout=60, check=False
    )
    assert done.stdout == b"1", done.stderr.decode()


@pytest.mark.s3
def test_a_pickle_without_a_provider_lands_without_credentials(s3_server, open_s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    storage = open_s3()
    storage.put("a", b"1")
    with pytest.raises(PermissionDeniedError):
        pickle.loads(pickle.dumps(storage)).get("a")
    # But it takes up what it finds there, as s3fs does.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    assert pickle.loads(pickle.dumps(storage)).get("a").data == b"1"


@pytest.mark.parametrize(
    "provider", [lambda: {"key": PLANTED}, partial(dict, key=PLANTED), {"key": PLANTED}.copy]
)
def test_a_provider_that_could_carry_secrets_is_not_pickled(provider):
    storage = open_storage("s3://bucket", credentials=provider)
    with pytest.raises(InvalidInputError) as caught:
        pickle.dumps(storage)
    assert caught.value.kind == "credentials-not-importable"
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::s3://key:{}@bucket/x",
        "filecache::s3://key:{}@bucket/x",
        "simplecache::zip://a.zip::s3://key:{}@bucket/x",
        "zip://inside/x::https://user:{}@host/a.zip",
        "zip://inside/x::ftp://user:{}@host/a.zip",
        "simplecache::https://host/x?token={}",
        "s3://key:{}@bucket/prefix",
        "gs://key:{}@bucket",
        "abfss://account:{}@container/x",
        "https://user:{}@host/x",
        "http://user:12/{}@host/x",
        "sftp://user:{}@host/x",
    ],
)
@pytest.mark.parametrize(
    "secret", [PLANTED, "PLANTED/se/cret", "/PLANTED", "12/PLANTED", "PLANTED+%2F=", "PLANTED#a"]
)
def test_no_spelling_of_credentials_in_a_url_is_taken(url, secret):
    with pytest.raises(InvalidInputError) as caught:
        open_storage(url.format(secret))
    assert "PLANTED" not in str(caught.value)
    assert caught.value.kind == "invalid-url"


@pytest.mark.parametrize(
    "url", ["blockcache::gs://{}@bucket/x", "s3a://{}@bucket/prefix", "ftp://{}@host/x"]
)
def test_a_token_before_a_host_is_not_taken(url):
    with pytest.raises(InvalidInputError) as caught:
        open_storage(url.format(PLANTED))
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "http://user:se/cret@host"},
        {"s3": {"client_kwargs": {"endpoint_url": "http://user:secret@host"}}},
    ],
)
def test_no_credentials_are_taken_in_an_endpoint(options):
    with pytest.raises(InvalidInputError) as caught:
        open_storage("simplecache::s3://bucket/x", options)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/who@example.org/a:b?c#d",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint:name/x",
        "abfss://container@account.dfs.core.windows.net/x@y",
        "https://host/a@1.2/x",
        "http://127.0.0.1:8000/x",
        "memory://who@where:1",
    ],
)
def test_what_only_looks_like_credentials_is_a_name(url):
    options = {"account_name": "a"} if url.startswith("abfss") else {}
    assert open_storage(url, options).url
