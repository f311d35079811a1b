"""A storage that tells what it was asked for, and fails when told to."""

import asyncio
from collections import Counter

import pytest

from icefloe import MemoryStorage, StorageError


class WatchedStorage(MemoryStorage):
    def __init__(self):
        super().__init__()
        self.reads = Counter()
        """Requests by the first part of the key."""
        self.fails_on = None
        """Writes below this prefix fail."""
        self.delay = 0.0
        self.under_way = 0
        self.most_under_way = 0
        """Reads of ranges at once."""

    def chunk_objects(self):
        return [item.key for page in self.list("chunks/") for item in page]

    async def get_range_async(self, key, start, length):
        self.reads[key.split("/")[0]] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.delay)
            return await super().get_range_async(key, start, length)
        finally:
            self.under_way -= 1

    async def get_many_async(self, keys):
        self.reads.update(key.split("/")[0] for key in keys)
        return await super().get_many_async(keys)

    async def put_async(self, key, data, **options):
        self._check(key)
        await asyncio.sleep(self.delay)
        return await super().put_async(key, data, **options)

    def put_many(self, items, **options):
        for key, _ in items:
            self._check(key)
        return super().put_many(items, **options)

    def _check(self, key):
        if self.fails_on is not None and key.startswith(self.fails_on):
            raise StorageError(f"no writes to {key} now")


@pytest.fixture(scope="session")
def watched():
    return WatchedStorage


@pytest.fixture
def storage():
    return WatchedStorage()
