"""Fill each empty place of `.env.example`: `python docker/make_env.py > .env`."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / ".env.example"


def fill(example: str) -> str:
    return "\n".join(_fill_line(line) for line in example.splitlines()) + "\n"


def _fill_line(line: str) -> str:
    name, equals, value = line.partition("=")
    if line.startswith("#") or not equals or value:
        return line
    if name == "FERNET_KEY":
        return f"{name}={base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}"
    return f"{name}={secrets.token_hex(20)}"


if __name__ == "__main__":
    print(fill(EXAMPLE.read_text()), end="")
