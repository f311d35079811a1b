"""Listing a folder of objects named by ids: page by page, many prefixes at a time."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.ids import ALPHABET, ObjectId, decode_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.format.ragged import Bytes
    from icefloe.storage import ObjectInfo, Storage

LETTERS = len(ALPHABET)
_FULL_PAGE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class IdPage:
    """Some objects and their ids."""

    id: Bytes
    objects: Sequence[ObjectInfo]


def list_ids(
    storage: Storage, folder: str, *, letters: range = range(LETTERS), concurrency: int
) -> Iterator[IdPage]:
    """All objects in `folder` (with its slash) whose name is an id that starts with these letters.

    Letters are numbered as the alphabet of the ids is, in which ids sort as their bytes do. Objects
    with other names are nobody's and left out.
    """
    for page in _pages(storage, folder, letters, concurrency):
        found = _id_page(page, len(folder))
        if len(letters) < LETTERS:
            first = found.id[:, 0] >> 3
            inside = np.flatnonzero((first >= letters.start) & (first < letters.stop))
            found = IdPage(found.id[inside], [found.objects[row] for row in inside.tolist()])
        if len(found.id):
            yield found


def _pages(
    storage: Storage, folder: str, letters: range, concurrency: int
) -> Iterator[Sequence[ObjectInfo]]:
    pages = storage.list(folder)
    if storage.url.startswith(("file:", "memory:")):
        # A folder is read as a whole there, whatever the prefix.
        yield from pages
        return
    first = next(pages, [])
    if len(first) < _FULL_PAGE:
        yield first
        yield from pages
        return
    prefixes = [f"{folder}{chr(ALPHABET[letter])}" for letter in letters]
    yield from _together([storage.list(prefix) for prefix in prefixes], concurrency)


def _together[T](iterators: Sequence[Iterator[T]], concurrency: int) -> Iterator[T]:
    """The items of all iterators as they come, one of each under way at a time."""
    with ThreadPoolExecutor(concurrency, thread_name_prefix="icefloe") as pool:
        waiting = {pool.submit(next, each, None): each for each in iterators}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                iterator = waiting.pop(future)
                item = future.result()
                if item is not None:
                    waiting[pool.submit(next, iterator, None)] = iterator
                    yield item


def _id_page(page: Sequence[ObjectInfo], skip: int) -> IdPage:
    names = [found.key[skip:] for found in page]
    try:
        return IdPage(decode_ids(names), page)
    except InvalidInputError:
        rows = [row for row, name in enumerate(names) if _is_id(name)]
        return IdPage(decode_ids([names[row] for row in rows]), [page[row] for row in rows])


def _is_id(name: str) -> bool:
    try:
        ObjectId.parse(name)
    except InvalidInputError:
        return False
    return True
