"""AWS Signature Version 4 for S3: who asks, and for what, proven without sending the secret."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials of AWS; the token belongs to temporary ones."""

    key: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """What is signed: nothing of it may change on the way.

    Attributes:
        method: such as GET.
        host: with the port, where it is not the scheme's own.
        path: quoted, as it is sent.
        query: names and values, unquoted.
        headers: names in lower case; those that others may add are not signed.
        body: what is sent.
    """

    method: str
    host: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    def query_string(self) -> str:
        """Sorted by the quoted names, as the signature wants it; it is sent so, too."""
        pairs = sorted((_quoted(name), _quoted(value)) for name, value in self.query.items())
        return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    request: Request, keys: Keys | None, region: str, now: datetime
) -> dict[str, str]:
    """The headers to send, the signature among them; none for None, who is anonymous."""
    if keys is None:
        return {"host": request.host, **request.headers}
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(request.body).hexdigest()
    headers = {
        **request.headers,
        "host": request.host,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
    }
    if keys.token is not None:
        headers["x-amz-security-token"] = keys.token
    names = sorted(headers)
    lines = [f"{name}:{' '.join(headers[name].split())}" for name in names]
    listed = ";".join(names)
    canonical = "\n".join(
        [request.method, request.path, request.query_string(), *lines, "", listed, digest]
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([_ALGORITHM, stamp, scope, hashed])
    signature = hmac.digest(_signing_key(keys.secret, stamp[:8], region), text.encode(), "sha256")
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={keys.key}/{scope}, SignedHeaders={listed}, "
        f"Signature={signature.hex()}"
    )
    return headers


def quoted_path(path: str) -> str:
    """A path as S3 has it signed: each segment quoted once, slashes kept."""
    return quote(path, safe="/-_.~")


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    found = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        found = hmac.digest(found, part.encode(), "sha256")
    return found
