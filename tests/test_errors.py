"""The error tree is an API: its shape, its kinds, and that errors travel between processes."""

import pickle

import pytest

from icefloe import Conflict, ConflictType, RebaseFailedError, errors
from icefloe.errors import IcefloeError

TREE = {
    "ConflictError": ("conflict", (IcefloeError,)),
    "NotFoundError": ("not-found", (IcefloeError, KeyError)),
    "AlreadyExistsError": ("already-exists", (IcefloeError,)),
    "ReadOnlyError": ("read-only", (IcefloeError,)),
    "InvalidInputError": ("invalid-input", (IcefloeError, ValueError)),
    "SessionStateError": ("session-state", (IcefloeError,)),
    "StorageError": ("storage", (IcefloeError,)),
    "ThrottledError": ("throttled", (errors.StorageError,)),
    "PermissionDeniedError": ("permission-denied", (errors.StorageError, PermissionError)),
    "UnsafeStorageError": ("unsafe-storage", (errors.StorageError,)),
    "UnknownOutcomeError": ("unknown-outcome", (errors.StorageError,)),
    "FormatError": ("invalid-format", (IcefloeError, ValueError)),
    "InternalError": ("internal", (IcefloeError,)),
}


def descendants(cls):
    return {cls.__name__}.union(*map(descendants, cls.__subclasses__()))


def test_the_tree_has_these_errors_and_no_others():
    elsewhere = {"IcefloeError", "RebaseFailedError", "ReadOnlyStoreError"}
    assert descendants(IcefloeError) - elsewhere == TREE.keys()
    assert RebaseFailedError.__bases__ == (errors.ConflictError,)


def test_a_failed_rebase_travels_with_its_conflicts():
    conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[0, 1]])
    error = pickle.loads(pickle.dumps(RebaseFailedError("1CECHNKREP0F1RSTCMT0", [conflict])))
    assert error.conflicts == [conflict]
    assert (error.kind, error.snapshot) == ("rebase-failed", "1CECHNKREP0F1RSTCMT0")
    assert "ChunkDoubleUpdate at /a, chunks (0, 1)" in str(error)


@pytest.mark.parametrize("name", TREE)
def test_bases_and_kind_are_stable(name):
    kind, bases = TREE[name]
    cls = getattr(errors, name)
    assert cls.__bases__ == bases
    assert cls("what happened").kind == kind
    assert cls("what happened", kind="other").kind == "other"


@pytest.mark.parametrize("name", TREE)
def test_an_error_survives_pickling_with_message_kind_notes_and_attributes(name):
    error = getattr(errors, name)("it's broken", kind="special")
    error.add_note("seen by worker 3")
    error.attempts = 7
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "it's broken"
    assert copy.args == ("it's broken",)
    assert (copy.kind, copy.attempts, copy.__notes__) == ("special", 7, ["seen by worker 3"])
