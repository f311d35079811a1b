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

    from numpy.typing import NDArray

    from icefloe.format.ragged import Bytes
    from icefloe.storage import ObjectInfo, Storage

PER_LETTER = len(ALPHABET)
WHOLE = range(PER_LETTER**2)
"""All pairs of letters that an id may begin with. They are numbered as the alphabet is, in which
ids sort as their bytes do: a part of the ids is a range of these numbers."""
_FULL_PAGE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class IdPage:
    """Some objects and their ids."""

    id: Bytes
    objects: Sequence[ObjectInfo]


def list_ids(
    storage: Storage, folder: str, *, span: range = WHOLE, concurrency: int
) -> Iterator[IdPage]:
    """All objects in `folder` (with its slash) whose name is an id, or an id in a part of them.

    Objects with other names are nobody's and left out.
    """
    for page in _pages(storage, folder, span, concurrency):
        found = _id_page(page, len(folder))
        if span != WHOLE:
            inside = np.flatnonzero(within(found.id, span))
            found = IdPage(found.id[inside], [found.objects[row] for row in inside.tolist()])
        if len(found.id):
            yield found


def prefixes(ids: Bytes) -> NDArray[np.uint16]:
    """The number of the first two letters of each id."""
    both = np.ascontiguousarray(ids[:, :2]).view(">u2").ravel()
    return (both >> 6).astype(np.uint16)


def within(ids: Bytes, span: range) -> NDArray[np.bool_]:
    """Which ids begin with these pairs of letters."""
    first = prefixes(ids)
    return (first >= span.start) & (first < span.stop)


def _pages(
    storage: Storage, folder: str, span: range, concurrency: int
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
    listings = [storage.list(f"{folder}{text}") for text in _texts(span)]
    yield from _together(listings, concurrency)


def _texts(span: range) -> Iterator[str]:
    """The fewest beginnings of names that cover a span."""
    at = span.start
    while at < span.stop:
        first, second = divmod(at, PER_LETTER)
        if second == 0 and at + PER_LETTER <= span.stop:
            yield chr(ALPHABET[first])
            at += PER_LETTER
        else:
            yield chr(ALPHABET[first]) + chr(ALPHABET[second])
            at += 1


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
