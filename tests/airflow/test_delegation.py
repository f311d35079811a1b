"""Connections of other providers give the credentials: their real hooks, at real servers."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import zarr
from airflow.sdk import DAG

from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.repositories import IcechunkCreateRepositoryOperator


@pytest.fixture
def write_and_read(run):
    """Create the repository of the default connection, commit to it, and read it back."""

    def use():
        # An operator without a Dag would look for one in the context.
        with DAG("d"):
            first = run(IcechunkCreateRepositoryOperator(task_id="create"))
        with IcechunkHook().get_conn().transaction("main", message="Rows") as store:
            zarr.create_array(store, name="rows", shape=(3,), chunks=(1,), dtype="i4")[:] = [
                1,
                2,
                3,
            ]
        repo = IcechunkHook().get_conn()
        assert repo.lookup_branch("main") != first
        store = repo.readonly_session("main").store
        assert zarr.open_array(store, path="rows", mode="r")[...].tolist() == [1, 2, 3]
        ok, message = IcechunkHook().test_connection()
        assert ok, message

    return use


# The providers import what is deprecated elsewhere.
foreign_warnings = pytest.mark.filterwarnings("default")


@pytest.mark.s3
@foreign_warnings
def test_the_credentials_of_an_aws_connection_open_a_repository(connect, s3_server, write_and_read):
    pytest.importorskip("airflow.providers.amazon.aws.hooks.base_aws")
    connect("aws_prod", "aws", login=s3_server.key, password=s3_server.secret)
    extra = {"endpoint_url": s3_server.endpoint, "region": "us-east-1", "path_style": True}
    connect(host=s3_server.root(), extra={**extra, "aws_conn_id": "aws_prod"})
    write_and_read()
    connect("aws_prod", "aws", login=s3_server.key, password="this-is-wrong")
    ok, message = IcechunkHook().test_connection()
    assert not ok
    assert "this-is-wrong" not in message


@pytest.fixture
def token_server():
    """Gives tokens as Google does; the addresses that were asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"access_token": "t", "expires_in": 3600, "token_type": "Bearer"})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    thread.join()
    server.server_close()


@foreign_warnings
def test_the_credentials_of_a_google_connection_open_a_repository(
    connect, gcs_endpoint, token_server, write_and_read
):
    pytest.importorskip("airflow.providers.google.common.hooks.base_google")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    url, asked = token_server
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "writer@p.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": url,
    }
    connect("gcp_prod", "google_cloud_platform", extra={"keyfile_dict": json.dumps(account)})
    extra = {"endpoint_url": gcs_endpoint, "gcp_conn_id": "gcp_prod"}
    connect(host=f"gs://tests/{id(connect)}", extra=extra)
    write_and_read()
    assert asked, "the credentials of the service account were used"


@foreign_warnings
def test_the_credentials_of_a_wasb_connection_open_a_repository(
    connect, azure_connection, write_and_read
):
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(azure_connection) as client:
        client.create_container("delegated")
    connect("wasb_prod", "wasb", extra={"connection_string": azure_connection})
    connect(host="az://delegated/repo", extra={"azure_conn_id": "wasb_prod"})
    write_and_read()
