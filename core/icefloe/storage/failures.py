"""Foreign failures become ours here: by HTTP status, with key and URL, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import (
    ConflictError,
    IcefloeError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)
from icefloe.storage.retry import SERVER_ERROR, THROTTLED, TRANSPORT, UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Collection

_THROTTLE_CODES = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
    | {"ServerBusy", "rateLimitExceeded", "userRateLimitExceeded"}
)
_TIMEOUT_CODES = frozenset({"RequestTimeout", "OperationTimedOut"})
_MISSING_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound"})
# A shorter secret would blank out innocent text.
_SHORTEST_SECRET = 4


class Failures:
    """Makes the errors of one store."""

    def __init__(self, url: str, secrets: Collection[str] = ()) -> None:
        self._url = url
        self._secrets = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]

    def from_status(
        self, status: int, code: str, detail: str, *, key: str, conditional: bool = False
    ) -> IcefloeError:
        """The error that an HTTP answer stands for.

        Args:
            status: the HTTP status.
            code: the store's own name of the failure; may be empty.
            detail: the store's text.
            key: the key asked for, or a prefix.
            conditional: whether the request had a condition: then 404 and 409 mean it tripped.
        """
        answer = f"{status} {code}".strip() + (f" ({detail})" if detail else "")
        if code in _MISSING_BUCKET_CODES:
            text = self._text(key, f"the bucket does not exist: {answer}")
            return NotFoundError(text, kind="bucket-not-found")
        if status == 412 or (conditional and status in {404, 409}):
            return self.conflict(key, answer)
        if status == 404:
            return self.not_found(key)
        if code in _THROTTLE_CODES or status in {429, 503}:
            return ThrottledError(self._text(key, answer), kind=THROTTLED)
        if status in {401, 403}:
            return PermissionDeniedError(self._text(key, f"permission denied: {answer}"))
        if status in {408, 409} or status >= 500 or code in _TIMEOUT_CODES:
            return StorageError(self._text(key, answer), kind=SERVER_ERROR)
        return StorageError(self._text(key, answer))

    def conflict(self, key: str, detail: str) -> ConflictError:
        text = self._text(key, f"the object is not in the expected state: {detail}")
        return ConflictError(text, kind="precondition-failed")

    def not_found(self, key: str) -> NotFoundError:
        return NotFoundError(self._text(key, "no such object"), kind="object-not-found")

    def short_read(self, key: str, start: int, length: int, detail: str) -> StorageError:
        text = f"bytes {start} to {start + length} were asked for: {detail}"
        return StorageError(self._text(key, text), kind="short-read")

    def transport(self, key: str, error: BaseException) -> StorageError:
        """The connection broke, or no answer came: a write may have landed."""
        return StorageError(self._text(key, self._describe(error)), kind=TRANSPORT)

    def unreachable(self, key: str, error: BaseException) -> StorageError:
        """No connection was made: nothing has landed."""
        return StorageError(self._text(key, self._describe(error)), kind=UNREACHABLE)

    def denied(self, key: str, error: BaseException) -> PermissionDeniedError:
        return PermissionDeniedError(self._text(key, self._describe(error)))

    def other(self, key: str, error: BaseException) -> StorageError:
        return StorageError(self._text(key, self._describe(error)))

    def without_secrets(self, error: BaseException) -> BaseException | None:
        """The error as a cause to show, or None where its text would give a secret away."""
        cause: BaseException | None = error
        while cause is not None:
            if any(secret in f"{cause} {cause!r}" for secret in self._secrets):
                return None
            cause = cause.__cause__ or cause.__context__
        return error

    def _describe(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    def _text(self, key: str, detail: str) -> str:
        for secret in self._secrets:
            detail = detail.replace(secret, "***")
        return f"{key!r} in {self._url}: {detail}"
