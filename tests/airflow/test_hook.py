"""Connections: what is read of them, what is refused, and what never shows."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import Connection

import icefloe
from airflow_icechunk.connections import EXTRAS, read_connection
from airflow_icechunk.get_provider_info import get_provider_info
from airflow_icechunk.hooks.icechunk import IcechunkHook

SECRET = "do-not-show-this"


def connection(host="s3://bucket/prefix", **fields):
    extra = fields.pop("extra", None)
    made = Connection(conn_id="c", conn_type="icechunk", host=host, **fields)
    if extra is not None:
        made.extra = json.dumps(extra)
    return made


def test_a_hook_opens_the_repository_of_its_connection(repo):
    assert IcechunkHook().get_conn().storage.url == repo.storage.url


async def test_a_hook_opens_the_repository_without_blocking(repo):
    opened = await IcechunkHook().aget_conn()
    assert opened.lookup_branch("main") == repo.lookup_branch("main")


def test_a_repository_behind_a_read_only_connection_takes_no_writes(repo, connect):
    connect(host=repo.storage.url, extra={"read_only": True})
    with pytest.raises(icefloe.ReadOnlyError):
        IcechunkHook().get_conn().create_tag("v1", repo.lookup_branch("main"))


def test_a_connection_that_is_not_there_is_said_to_be_so():
    with pytest.raises(AirflowNotFoundException):
        IcechunkHook("nobody").get_conn()


def test_options_of_s3_keep_secrets_apart():
    target = read_connection(
        connection(
            login="key-id",
            password=SECRET,
            extra={
                "endpoint_url": "http://127.0.0.1:9000",
                "region": "eu-central-1",
                "path_style": "true",
                "session_token": SECRET + "2",
            },
        )
    )
    assert target.options == {
        "endpoint_url": "http://127.0.0.1:9000",
        "client_kwargs": {"region_name": "eu-central-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }
    assert target.secrets == {"key": "key-id", "secret": SECRET, "token": SECRET + "2"}
    assert SECRET not in repr(target)


def test_options_of_gcs_and_azure():
    gcs = read_connection(connection("gs://bucket/prefix", extra={"anonymous": True}))
    assert (gcs.options, gcs.secrets) == ({"token": "anon"}, {})
    azure = read_connection(connection("az://box/prefix", login="account", password=SECRET))
    assert azure.options == {"account_name": "account"}
    assert azure.secrets == {"account_key": SECRET}


def test_a_connection_written_as_a_uri_has_its_url_in_the_extra(monkeypatch, repo):
    url = repo.storage.url.replace("/", "%2F").replace(":", "%3A")
    monkeypatch.setenv("AIRFLOW_CONN_BY_URI", f"icechunk:///?url={url}")
    assert IcechunkHook("by_uri").get_conn().storage.url == repo.storage.url


def test_empty_fields_of_the_form_count_as_absent():
    target = read_connection(connection(extra={"region": "", "anonymous": None}))
    assert target.options == {}


def test_unknown_extras_are_refused_by_name_without_their_values():
    with pytest.raises(ValueError, match="unknown extras: storage_options, token") as caught:
        read_connection(connection(extra={"token": SECRET, "storage_options": {"a": SECRET}}))
    assert SECRET not in str(caught.value)


def test_a_connection_without_a_url_is_refused():
    with pytest.raises(ValueError, match="names no repository"):
        read_connection(connection(host=None))


def test_two_sources_of_credentials_are_refused():
    with pytest.raises(ValueError, match="several sources of credentials"):
        read_connection(connection(login="a", password="b", extra={"aws_conn_id": "aws"}))


def test_credentials_for_another_kind_of_store_are_refused():
    with pytest.raises(ValueError, match="another kind of store"):
        read_connection(connection("gs://bucket/prefix", extra={"aws_conn_id": "aws"}))


def test_aws_credentials_come_from_the_amazon_provider_whenever_they_are_asked(monkeypatch):
    asked = []

    class AwsGenericHook:
        region_name = "eu-central-1"

        def __init__(self, aws_conn_id, client_type):
            asked.append((aws_conn_id, client_type))

        def get_credentials(self, *, region_name):
            return SimpleNamespace(access_key="k", secret_key=SECRET, token=None)

    module = ModuleType("base_aws")
    module.AwsGenericHook = AwsGenericHook
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.base_aws", module)
    target = read_connection(connection(extra={"aws_conn_id": "aws_prod"}))
    assert asked == []
    assert target.credentials() == {"key": "k", "secret": SECRET}
    target.credentials()
    assert asked == [("aws_prod", "s3"), ("aws_prod", "s3")]
    assert SECRET not in repr(target)


def test_a_provider_that_is_missing_is_named():
    target = read_connection(connection("gs://b/p", extra={"gcp_conn_id": "gcp"}))
    with pytest.raises(ModuleNotFoundError, match="pip install apache-airflow-providers-google"):
        target.credentials()


def test_azure_credentials_come_from_a_connection_of_the_type_wasb(connect):
    connect("wasb_prod", "wasb", login="account", password=SECRET)
    target = read_connection(connection("az://box/p", extra={"azure_conn_id": "wasb_prod"}))
    assert target.credentials() == {"account_name": "account", "account_key": SECRET}
    connect(
        "wasb_app",
        "wasb",
        host="https://account.blob.core.windows.net",
        login="id",
        password=SECRET,
        extra={"tenant_id": "t"},
    )
    target = read_connection(connection("az://box/p", extra={"azure_conn_id": "wasb_app"}))
    assert target.credentials() == {
        "account_name": "account",
        "client_id": "id",
        "client_secret": SECRET,
        "tenant_id": "t",
    }


def test_secrets_are_masked_in_logs(connect, monkeypatch):
    masked = []
    monkeypatch.setattr("airflow_icechunk.hooks.icechunk.mask_secret", masked.append)
    connect(
        host="s3://bucket/p", login="key-id", password=SECRET, extra={"session_token": SECRET + "2"}
    )
    assert IcechunkHook().target.url == "s3://bucket/p"
    assert {SECRET, SECRET + "2"} <= set(masked)


def test_testing_a_connection_reads(repo):
    before = len([*repo.ops_log()])
    ok, message = IcechunkHook().test_connection()
    assert ok, message
    assert "1 branch" in message
    assert len([*repo.ops_log()]) == before


def test_testing_a_connection_never_creates(tmp_path, connect):
    connect(host=str(tmp_path / "nothing"))
    ok, message = IcechunkHook().test_connection()
    assert not ok
    assert "no repository" in message
    assert not (tmp_path / "nothing").exists()


def test_testing_a_connection_tells_what_is_wrong_with_it(connect):
    connect(host="s3://bucket/p", extra={"surprise": SECRET})
    ok, message = IcechunkHook().test_connection()
    assert not ok
    assert "surprise" in message
    assert SECRET not in message


def test_the_form_has_a_field_for_every_extra_that_is_read():
    (kind,) = get_provider_info()["connection-types"]
    assert {*kind["conn-fields"], "url"} == EXTRAS
    password = kind["conn-fields"]["session_token"]["schema"]
    assert password["format"] == "password"


def test_the_form_is_the_same_before_airflow_3_2():
    (kind,) = get_provider_info()["connection-types"]
    shown = {name.replace("-", "_"): value for name, value in kind["ui-field-behaviour"].items()}
    assert IcechunkHook.get_ui_field_behaviour() == shown
