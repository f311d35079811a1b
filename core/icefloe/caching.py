"""Least-recently-used caches, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict


class ByteCache[V]:
    """Values by key, each with its cost in bytes; the least recently used go beyond the budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._size = 0
        self._items: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: str, value: V, cost: int) -> None:
        if cost > self._budget:
            return
        with self._lock:
            _, old = self._items.pop(key, (None, 0))
            self._size += cost - old
            self._items[key] = value, cost
            while self._size > self._budget:
                _, (_, dropped) = self._items.popitem(last=False)
                self._size -= dropped
