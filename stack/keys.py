"""The secrets of one stack: generated once, kept in a file that only its owner can read."""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    s3_access_key: str = field(repr=False)
    s3_secret_key: str = field(repr=False)
    postgres_password: str = field(repr=False)
    admin_password: str = field(repr=False)
    fernet_key: str = field(repr=False)
    jwt_secret: str = field(repr=False)
    api_secret_key: str = field(repr=False)


def generate() -> Keys:
    """New secrets. All but the Fernet key are hexadecimal, so they fit into any URL."""
    return Keys(
        s3_access_key=secrets.token_hex(10),
        s3_secret_key=secrets.token_hex(20),
        postgres_password=secrets.token_hex(16),
        admin_password=secrets.token_hex(8),
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        jwt_secret=secrets.token_hex(32),
        api_secret_key=secrets.token_hex(32),
    )


def load_or_generate(path: Path) -> Keys:
    """The secrets in a file, which is written if there is none."""
    try:
        return Keys(**json.loads(path.read_text()))
    except FileNotFoundError:
        keys = generate()
        write_private(path, json.dumps(asdict(keys), indent=2))
        return keys


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; nobody else may read it, not even for a moment."""
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)
