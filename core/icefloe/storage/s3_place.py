"""Where an S3 bucket is and who asks, as far as plain options say it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from icefloe.storage.signing import Keys

if TYPE_CHECKING:
    from icefloe.storage.settings import Settings

REGION = "us-east-1"
"""Where nothing is said: the server names another one if that is wrong."""

_OPTIONS = frozenset(
    {"key", "secret", "token", "anon", "endpoint_url", "use_ssl", "client_kwargs", "config_kwargs"}
)
_CLIENT = frozenset({"region_name", "endpoint_url", "use_ssl"})
_CONFIG = frozenset(
    {"region_name", "s3", "max_pool_connections", "connect_timeout", "read_timeout"}
    | {"request_checksum_calculation", "response_checksum_validation"}
)
# A bucket of any other name means something to botocore: an access point, a directory bucket.
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61})[a-z0-9]")
_TOLD = ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_USE_")
_SPECIAL = ("--x-s3", "-s3alias", "--ol-s3", "--table-s3")


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, and how to ask there.

    Attributes:
        endpoint: scheme and host, with what comes before the bucket; None is AWS.
        bucket: its name.
        region: what requests are signed for.
        in_path: whether the bucket stands in the path, not in the name of the host.
        keys: None asks without a signature.
    """

    endpoint: str | None
    bucket: str
    region: str
    in_path: bool
    keys: Keys | None

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None where the options say more than this: then botocore has to make sense of them."""
        options = {name: value for name, value in settings.resolve().items() if value is not None}
        client, config = _nested(options, "client_kwargs"), _nested(options, "config_kwargs")
        if (
            not _OPTIONS.issuperset(options)
            or not _CLIENT.issuperset(client)
            or not _CONFIG.issuperset(config)
            or not {"addressing_style"}.issuperset(_nested(config, "s3"))
            # Keys that are not given are looked for in files, and from services.
            or not (options.get("anon") or {"key", "secret"}.issubset(options))
        ):
            return None
        bucket = settings.url.partition("://")[2].partition("/")[0]
        if not _BUCKET.fullmatch(bucket) or bucket.endswith(_SPECIAL):
            return None
        secure = options.get("use_ssl", True) and client.get("use_ssl", True)
        endpoint = options.get("endpoint_url") or client.get("endpoint_url")
        if (endpoint is not None and not _is_plain(endpoint)) or (not secure and endpoint is None):
            return None
        if _is_told_elsewhere(endpoint):
            return None
        region = client.get("region_name") or config.get("region_name") or REGION
        style = _nested(config, "s3").get("addressing_style", "auto")
        in_path = style == "path" or (style == "auto" and (endpoint is not None or "." in bucket))
        keys = None
        if not options.get("anon"):
            keys = Keys(options["key"], options["secret"], options.get("token"))
        found = endpoint.rstrip("/") if endpoint else None
        return cls(found, bucket, region, in_path, keys)

    def root(self) -> tuple[str, str, str]:
        """Scheme, host and the path of the bucket."""
        parts = urlsplit(self.endpoint or f"https://s3.{self.region}.{_domain(self.region)}")
        if self.in_path:
            return parts.scheme, parts.netloc, f"{parts.path}/{self.bucket}"
        return parts.scheme, f"{self.bucket}.{parts.netloc}", parts.path

    def in_region(self, region: str) -> Place:
        return replace(self, region=region)


def _is_told_elsewhere(endpoint: str | None) -> bool:
    """Whether the environment says more of where to ask, which botocore heeds and we do not."""
    is_secure = endpoint is None or endpoint.startswith("https://")
    if getproxies_environment() or (is_secure and "AWS_CA_BUNDLE" in os.environ):
        return True
    # An endpoint that is given leaves nothing open; regions are learnt from the server.
    return endpoint is None and (
        any(name.startswith(_TOLD) for name in os.environ)
        or os.path.exists(os.path.expanduser("~/.aws/config"))
    )


def _nested(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = options.get(name)
    return found if isinstance(found, Mapping) else {} if found is None else {"not": "a mapping"}


def _is_plain(endpoint: Any) -> bool:
    if not isinstance(endpoint, str):
        return False
    parts = urlsplit(endpoint)
    odd = parts.username or parts.query or parts.fragment
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not odd


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
