"""A storage that lets a test act before any of its calls, or die there."""

import threading

VERBS = {
    "get",
    "get_range",
    "get_ranges",
    "get_many",
    "put",
    "put_many",
    "put_if",
    "copy",
    "info",
    "exists",
    "delete",
}


class Killed(BaseException):
    """Not an Exception: nothing may catch it on the way out."""


class Watched:
    """Calls `before(number, verb, arguments)` ahead of every call; a page of a list is a call."""

    def __init__(self, storage, before=lambda number, verb, arguments: None):
        self._storage = storage
        self._before = before
        self._lock = threading.RLock()
        self.calls = []

    def __getattr__(self, name):
        found = getattr(self._storage, name)
        if name not in VERBS:
            return found

        def call(*arguments, **named):
            self._note(name, arguments)
            return found(*arguments, **named)

        return call

    def list(self, prefix="", **named):
        pages = self._storage.list(prefix, **named)
        while True:
            self._note("list", (prefix,))
            page = next(pages, None)
            if page is None:
                return
            yield page

    def _note(self, verb, arguments):
        with self._lock:
            number = len(self.calls)
            self.calls.append((verb, arguments))
            self._before(number, verb, arguments)


def once(number, action):
    """Does it ahead of one call."""

    def before(at, verb, arguments):
        if at == number:
            action()

    return before


def kill_at(number):
    def die():
        raise Killed

    return once(number, die)
