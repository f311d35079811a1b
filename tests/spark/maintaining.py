"""Storages that interfere with tasks of maintenance; they travel to executors as they are."""

import os
import pickle
import time
from pathlib import Path

import psutil
import zarr

from icefloe.storage import DeleteResult, open_storage
from maintenance.histories import official


class Interfering:
    """A storage on local disk that acts ahead of one call: the first that it waits for.

    The first one of all processes: a marker beside the repository tells the others.
    """

    def __init__(self, path, verb, prefix, after=()):
        """Wait for a call.

        Args:
            path: of the repository.
            verb: the call.
            prefix: of its key, or of the first of its keys.
            after: files that must be gone first.
        """
        self._arguments = str(path), verb, prefix, after
        self._path = Path(path)
        self._storage = open_storage(path)

    def __reduce__(self):
        return type(self), self._arguments

    def __getattr__(self, name):
        found = getattr(self._storage, name)
        _, verb, prefix, _ = self._arguments
        if name != verb:
            return found

        def call(first, *arguments, **named):
            if _key(first).startswith(prefix) and self._is_first():
                return self.act(found, first, *arguments, **named)
            return found(first, *arguments, **named)

        return call

    @property
    def marker(self):
        return self._path.with_name(f"{self._path.name}.{self._arguments[1]}")

    def _is_first(self):
        if any((self._path / name).exists() for name in self._arguments[3]):
            return False
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def _key(first):
    if isinstance(first, str) or not first:
        return first or ""
    return first[0] if isinstance(first[0], str) else first[0][0]


class Waking(Interfering):
    """A session that began long ago commits: its chunk looked like garbage until then."""

    def act(self, call, *arguments, **named):
        session = official(self._path).writable_session("main")
        session.merge(pickle.loads(self._path.with_name("session").read_bytes()))
        session.commit("woken")
        return call(*arguments, **named)


class Reviving(Interfering):
    """Somebody tags a snapshot that is about to be dropped."""

    def act(self, call, *arguments, **named):
        doomed = self._path.with_name("doomed").read_text()
        official(self._path).create_tag("revived", doomed)
        return call(*arguments, **named)


class Failing(Interfering):
    """Half of the objects are deleted when the connection breaks."""

    def act(self, call, keys, **named):
        call(keys[: len(keys) // 2])
        raise ConnectionError("the connection broke")


class Broken(Failing):
    """The connection breaks every time."""

    def _is_first(self):
        return True


class Dying(Interfering):
    """Half of the objects are deleted when the executor is killed."""

    def act(self, call, keys, **named):
        call(keys[: len(keys) // 2])
        next(each for each in psutil.Process().parents() if each.name() == "java").kill()
        time.sleep(60)


class Stubborn(Interfering):
    """One object cannot be deleted."""

    def act(self, call, keys, **named):
        result = call(keys[1:])
        return DeleteResult(result.deleted, {keys[0]: "no"})


class Writing(Interfering):
    """Somebody commits to the array `small`."""

    def act(self, call, *arguments, **named):
        with official(self._path).transaction("main", message="rival") as store:
            zarr.open_array(store, path="small")[3] = -1
        return call(*arguments, **named)
