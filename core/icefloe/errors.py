"""Errors, grouped by what the caller does next.

IcefloeError
├── ConflictError          someone else wrote first: refresh or rebase, then try again
│   └── RebaseFailedError      (in `conflicts`) the changes conflict, and nobody gives way
├── NotFoundError          (also KeyError) create it, or ask for another
├── AlreadyExistsError     pick another name, or use what is there
├── ReadOnlyError          the repository, session or store takes no writes
│   └── ReadOnlyStoreError     (in `zarr_store`; also ValueError, which zarr expects)
├── InvalidInputError      (also ValueError) fix the argument
├── SessionStateError      the session cannot do this now
├── StorageError           the store failed
│   ├── ThrottledError         slow down and try again
│   ├── PermissionDeniedError  (also PermissionError) fix the credentials or the policy
│   ├── UnsafeStorageError     the store cannot keep a commit safe: use another
│   └── UnknownOutcomeError    a write may or may not have landed: look before you retry
├── FormatError            (also ValueError) the bytes are not what the spec says: do not retry
└── InternalError          a bug in icefloe: report it

Every error carries a stable `kind` (kebab-case) for programs, and survives pickling, because errors
travel from executors to drivers.
"""

from __future__ import annotations

from typing import Any, ClassVar


class IcefloeError(Exception):
    """Base of everything icefloe raises on purpose."""

    KIND: ClassVar[str] = "error"

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or self.KIND

    # KeyError would print the repr of its argument, OSError its errno.
    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


def _rebuild(cls: type[IcefloeError], message: str, state: dict[str, Any]) -> IcefloeError:
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConflictError(IcefloeError):
    """Someone else wrote first: refresh or rebase, then try again.

    Where a branch moved, the parents say from where it was expected to move, and where it is.
    """

    KIND = "conflict"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
    ) -> None:
        super().__init__(message, kind=kind)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent


class NotFoundError(IcefloeError, KeyError):
    """The thing asked for does not exist: create it, or ask for another."""

    KIND = "not-found"


class AlreadyExistsError(IcefloeError):
    """The name is taken: pick another, or use what is there."""

    KIND = "already-exists"


class ReadOnlyError(IcefloeError):
    """The repository, session or store takes no writes."""

    KIND = "read-only"


class InvalidInputError(IcefloeError, ValueError):
    """An argument is wrong: fix it."""

    KIND = "invalid-input"


class SessionStateError(IcefloeError):
    """The session cannot do this in its present state."""

    KIND = "session-state"


class StorageError(IcefloeError):
    """The store failed; the message says what it answered."""

    KIND = "storage"


class ThrottledError(StorageError):
    """The store asked us to slow down, and kept asking through every retry."""

    KIND = "throttled"


class PermissionDeniedError(StorageError, PermissionError):
    """The store refused these credentials: fix them or the policy."""

    KIND = "permission-denied"


class UnsafeStorageError(StorageError):
    """The store cannot keep a commit safe (it ignores preconditions): use another."""

    KIND = "unsafe-storage"


class UnknownOutcomeError(StorageError):
    """A write may or may not have landed: look at the store before retrying."""

    KIND = "unknown-outcome"


class FormatError(IcefloeError, ValueError):
    """The bytes are not what the spec says: do not retry."""

    KIND = "invalid-format"


class InternalError(IcefloeError):
    """A bug in icefloe: please report it."""

    KIND = "internal"
