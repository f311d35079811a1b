"""Storages that let a rival act between two calls, and repositories for writers to meet in."""

import asyncio
import threading
from collections import Counter
from inspect import iscoroutinefunction
from itertools import pairwise

from icefloe import Repository
from icefloe.format.updates import UpdateKind
from stateful.layout import check_layout
from stateful.reading import document, regular

VERBS = ("get", "get_range", "get_ranges", "get_many", "put", "put_many", "put_if", "copy", "info")
VERBS += ("exists", "delete")
GROUP = b'{"zarr_format": 3, "node_type": "group"}'
PATIENCE = 30


class Hooked:
    """A storage that calls `before` with the verb and its first argument, before every call."""

    def __init__(self, storage, before):
        self._storage = storage
        self._before = before

    def __getattr__(self, name):
        found = getattr(self._storage, name)
        verb = name.removesuffix("_async")
        if verb not in VERBS:
            return found

        def call(first, *args, **options):
            self._before(verb, first)
            return found(first, *args, **options)

        async def call_async(first, *args, **options):
            self._before(verb, first)
            return await found(first, *args, **options)

        return call_async if iscoroutinefunction(found) else call


class At:
    """Lets a rival act before the call of this number, counted from `arm`."""

    def __init__(self, number, rival):
        self._number = number
        self._rival = rival
        self._armed = False
        self.fired = False

    def arm(self):
        self._armed = True

    def __call__(self, verb, first):
        if not self._armed or self.fired:
            return
        if self._number == 0:
            self.fired = True
            self._rival()
        self._number -= 1


class Turns:
    """Two writers that take turns at every storage call, in a given order."""

    def __init__(self, order):
        self._order = list(order)
        self._changed = threading.Condition()
        self._running = {0, 1}

    def hook(self, writer):
        def before(verb, first):
            with self._changed:
                may_go = self._changed.wait_for(lambda: self._is_next(writer), PATIENCE)
                assert may_go, "the other writer hangs"
                if self._order:
                    self._order.pop(0)
                self._changed.notify_all()

        return before

    def _is_next(self, writer):
        return not self._order or self._order[0] == writer or len(self._running) == 1

    def leave(self, writer):
        with self._changed:
            self._running.discard(writer)
            self._changed.notify_all()


def run_in_turns(storage, order, work):
    """`work(storage, writer)` in two threads; what each returned or raised."""
    turns, results = Turns(order), [None, None]

    def run(writer):
        try:
            results[writer] = work(Hooked(storage, turns.hook(writer)), writer)
        except Exception as error:
            results[writer] = error
        finally:
            turns.leave(writer)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    return results


def create(storage, chunks=16):
    """A repository with an array `/a` of single bytes, and a snapshot before that."""
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    session.set_node("/", GROUP)
    session.commit("root")
    session = repo.writable_session("main")
    session.set_node("/a", document([chunks], regular(1)))
    asyncio.run(session.set_chunk("/a", (chunks - 1,), b"start"))
    session.commit("array")
    return repo


def write(session, at, data=b"x"):
    asyncio.run(session.set_chunk("/a", (at,), data))


def chunks(repo, branch="main"):
    """The chunks of `/a` that a branch shows."""
    return {at[0] for at in repo.readonly_session(branch).refs("/a").index.tolist()}


def messages(repo, branch="main"):
    return [item.message for item in repo.ancestry(branch=branch)][:-3]


def logged(repo):
    """How often each kind of update happened, without those of `create`."""
    found = Counter(UpdateKind(update.kind).name for update in repo.ops_log())
    found.subtract({"REPO_INITIALIZED": 1, "NEW_COMMIT": 2})
    return {kind: count for kind, count in found.items() if count}


def check_history(repo, branch="main"):
    """Linear, times ascending, every snapshot well laid out."""
    history = [*repo.ancestry(branch=branch)]
    for child, parent in pairwise(history):
        assert child.parent_id == parent.id
        assert child.written_at > parent.written_at
    for item in history[:-1]:
        check_layout(repo.storage, item.id)
