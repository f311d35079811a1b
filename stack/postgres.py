"""A private PostgreSQL for Airflow, where the server is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stack.component import Component
from stack.keys import write_private
from stack.ports import LOOPBACK

if TYPE_CHECKING:
    from stack.layout import Layout

_DEBIAN = Path("/usr/lib/postgresql")
_SYSTEM_USER = "postgres"
_ROLE = "airflow"


class UnavailableError(Exception):
    """There can be no PostgreSQL here; the message says why."""


def create(layout: Layout) -> None:
    """Create the database cluster, unless it is there.

    Raises:
        UnavailableError: it cannot be done on this machine.
    """
    programs, user = _programs(), _user()
    if find_spec("psycopg") is None:
        raise UnavailableError("psycopg is not installed (pip install 'psycopg[binary]')")
    data = _data(layout)
    if (data / "PG_VERSION").exists():
        return
    shutil.rmtree(data.parent, ignore_errors=True)
    data.parent.mkdir(mode=0o700)
    password = data.parent / "password"
    write_private(password, layout.keys.postgres_password)
    if user:
        for path in (data.parent, password):
            shutil.chown(path, user, user)
    command = [str(programs / "initdb"), "-D", str(data), "-U", _ROLE, "-A", "scram-sha-256"]
    command += [f"--pwfile={password}", "-E", "UTF8", "--no-locale", "--no-sync"]
    done = subprocess.run(
        command,
        cwd="/",
        env=layout.environment(),
        user=user,
        group=user,
        extra_groups=[] if user else None,
        capture_output=True,
        text=True,
        check=False,
    )
    password.unlink()
    if done.returncode:
        shutil.rmtree(data.parent, ignore_errors=True)
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"initdb failed: {reason}")


def server(layout: Layout) -> Component:
    programs, port = _programs(), layout.ports["postgres"]
    command = [str(programs / "postgres"), "-D", str(_data(layout)), "-p", str(port)]
    command += ["-c", f"listen_addresses={LOOPBACK}", "-c", "unix_socket_directories="]
    ready = [str(programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(port)]
    return Component(
        name="postgres",
        command=command,
        environment=layout.environment(),
        is_healthy=lambda: subprocess.run(ready, check=False).returncode == 0,
        port=port,
        user=_user(),
        # Asks it to end its sessions and stop; SIGTERM would wait for clients to leave.
        stop_signal=signal.SIGINT,
    )


def database_url(layout: Layout) -> str:
    account = f"{_ROLE}:{layout.keys.postgres_password}"
    return f"postgresql+psycopg://{account}@{LOOPBACK}:{layout.ports['postgres']}/postgres"


def _data(layout: Layout) -> Path:
    return layout.folder / "postgres" / "data"


def _programs() -> Path:
    """The folder of the newest server."""
    debian = sorted(_DEBIAN.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which("postgres")
    # What is on the PATH may be a link to one program only.
    places = [Path(found).resolve().parent] if found else []
    for place in [*places, *debian]:
        if all((place / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return place
    raise UnavailableError("no PostgreSQL server is installed")


def _user() -> str | None:
    """Who has to run it: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_SYSTEM_USER).pw_name
    except KeyError:
        raise UnavailableError(
            f"it refuses to run as root, and there is no user {_SYSTEM_USER}"
        ) from None
