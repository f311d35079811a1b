"""POSIX steps that local storage is made of: temporary files, links, locks, ordered walks."""

from __future__ import annotations

import fcntl
import os
import re
import time
import uuid
from bisect import bisect_left
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# File systems stamp changes with a clock that ticks less often than time does.
_CLOCK_TICK = 2 * 10**9
_TEMPORARY = re.compile(r"\.icefloe-[0-9a-f]{32}\.tmp")


def is_temporary(key: str) -> bool:
    """Whether the last segment is the name of a temporary file."""
    return _TEMPORARY.fullmatch(key.rpartition("/")[2]) is not None


@contextmanager
def temporary_file(folder: str, data: bytes) -> Iterator[str]:
    """The path of a synced file that holds `data`; gone afterwards, unless renamed."""
    path = f"{folder}/.icefloe-{uuid.uuid4().hex}.tmp"
    try:
        with open(path, "xb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        yield path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def link(source: str, target: str) -> bool:
    """Give `source` a second name, all or nothing; False if that name is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        # A file server's lost answer can make a link that was made look taken: the inode knows.
        return os.stat(source).st_nlink > 1
    return True


@contextmanager
def locked(path: str) -> Iterator[int | None]:
    """The file now at `path`, open and locked against other writers; None if there is none.

    Raises:
        IsADirectoryError: there is a directory.
    """
    descriptor = _lock(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            # A child forked meanwhile shares the open file: closing ours alone would not unlock it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(path: str) -> int | None:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever held the lock may have replaced the file: then this one is history.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_file_range(path: str, start: int, length: int) -> bytes:
    """Up to `length` bytes from `start`: fewer only where the file ends."""
    with open(path, "rb", buffering=0) as file:
        return _read_at(file.fileno(), start, length)


def read_all(descriptor: int) -> bytes:
    return _read_at(descriptor, 0, os.fstat(descriptor).st_size)


def _read_at(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    # One call stops short at 2 GiB, or at a signal.
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(descriptor, length - done, start + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def make_folders(folder: str) -> None:
    """Make a directory and its missing parents, durably."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folders(parent)
    with suppress(FileExistsError):
        os.mkdir(folder)
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Run:
    """Files of one folder that follow one another in key order; the keys are base + name."""

    base: str
    names: Sequence[str]
    scan: Scan

    def __getitem__(self, part: slice) -> Run:
        return Run(self.base, self.names[part], self.scan)


@dataclass(frozen=True, slots=True)
class Scan:
    """When a folder was read, and when it had changed before that; nanoseconds."""

    folder: str
    started: int
    changed: int

    def is_current(self) -> bool:
        """Whether no name came to or left the folder since, for certain."""
        if self.started - self.changed < _CLOCK_TICK:
            # A later change may have got the same time.
            return False
        try:
            return os.stat(self.folder).st_mtime_ns == self.changed
        except FileNotFoundError:
            return False


def walk(root: str, prefix: str, start_after: str | None) -> Iterator[Run]:
    """The files under `root` whose keys start with `prefix`, in key order, after `start_after`.

    Holds the names of one folder per level. Temporary files are left out.
    """
    above, slash, _ = prefix.rpartition("/")
    return _walk(root, above + slash, prefix, start_after or "")


def _walk(root: str, base: str, prefix: str, start_after: str) -> Iterator[Run]:
    folder = f"{root}/{base}"
    files: list[str] = []
    folders: list[str] = []
    try:
        scan = Scan(folder, time.time_ns(), os.stat(folder).st_mtime_ns)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    # It sorts with its slash, as the keys below it do: "a-b" comes before "a/b".
                    folders.append(f"{entry.name}/")
                else:
                    files.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    files = _chosen(files, base, prefix, start_after)
    done = 0
    for name in _chosen(folders, base, prefix, start_after):
        at = bisect_left(files, name, done)
        yield Run(base, files[done:at], scan)
        yield from _walk(root, base + name, prefix, start_after)
        done = at
    yield Run(base, files[done:] if done else files, scan)


def _chosen(names: list[str], base: str, prefix: str, start_after: str) -> list[str]:
    """Sorted, without those that the prefix or the start leaves out."""
    if wanted := prefix[len(base) :]:
        names = [name for name in names if name.startswith(wanted)]
    if start_after > base:
        names = [name for name in names if _comes_after(base + name, start_after)]
    names = [name for name in names if not name.startswith(".") or not is_temporary(name)]
    names.sort()
    return names


def _comes_after(key: str, start: str) -> bool:
    """Whether a file, or something in a folder, does."""
    return key > start or (key.endswith("/") and start.startswith(key))
