"""What Airflow needs before its services start: database, login, bucket, connections.

Everything comes from the environment: Airflow's own settings, `STACK_ADMIN_PASSWORD`,
`STACK_BUCKET` and the variables of an S3 client where there is one, and one `AIRFLOW_CONN_<ID>` for
each connection, in JSON. It may run again at any time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import s3fs
from airflow.configuration import conf
from airflow.models import Connection
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import select

_PREFIX = "AIRFLOW_CONN_"


def main() -> None:
    initdb()
    write_password(os.environ["STACK_ADMIN_PASSWORD"])
    if bucket := os.environ.get("STACK_BUCKET"):
        create_bucket(bucket)
    for name, text in os.environ.items():
        if name.startswith(_PREFIX):
            store_connection(name.removeprefix(_PREFIX).lower(), text)


def write_password(password: str) -> None:
    """Set the password of every user before Airflow invents one and logs it."""
    path = Path(conf.get_mandatory_value("core", "simple_auth_manager_passwords_file"))
    users = [user.partition(":")[0] for user in conf.getlist("core", "simple_auth_manager_users")]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(dict.fromkeys(users, password)) + "\n")
    print(f"wrote the login of {', '.join(users)}")


def create_bucket(name: str) -> None:
    server = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    if not server.exists(name):
        server.mkdir(name)
    print(f"the bucket {name} is there")


def store_connection(conn_id: str, text: str) -> None:
    """Write a connection into the database, where it is seen in the user interface."""
    connection = Connection.from_json(text, conn_id=conn_id)
    with create_session() as session:
        for old in session.scalars(select(Connection).where(Connection.conn_id == conn_id)):
            session.delete(old)
        session.flush()
        session.add(connection)
    print(f"stored the connection {conn_id}")


if __name__ == "__main__":
    main()
