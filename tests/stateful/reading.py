"""What either library tells of a repository, in the same words."""

import asyncio
import json

import icechunk
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icefloe.format.updates import UpdateKind

icechunk.set_logs_filter("error")

PROTOTYPE = default_buffer_prototype()
DIFF_LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)


def put(store, key, data):
    sync(store.set(key, PROTOTYPE.buffer.from_bytes(data)))


def remove(store, key):
    sync(store.delete(key))


def content(store, *, lists_too_much=False):
    """Every key with its bytes; those without any are an error unless the store is known for it."""

    async def read():
        keys = sorted([key async for key in store.list()])
        found = await asyncio.gather(*(store.get(key, PROTOTYPE) for key in keys))
        assert len(set(keys)) == len(keys)
        pairs = zip(keys, found, strict=True)
        if lists_too_much:
            pairs = ((key, value) for key, value in pairs if value is not None)
        return {key: value.to_bytes() for key, value in pairs}

    return sync(read())


def refs(repo):
    return {
        "branches": {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())},
        "tags": {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())},
    }


def line(info):
    """One entry of a history."""
    return info.id, info.parent_id, info.message, info.written_at, dict(info.metadata)


def histories(repo):
    return {name: [*map(line, repo.ancestry(branch=name))] for name in sorted(repo.list_branches())}


def ops_log(repo):
    return [*map(_entry, repo.ops_log())]


def _entry(update):
    if isinstance(update, icechunk.ops.Update):
        said = update.kind
        kind = type(said).__name__.removeprefix("UpdateType_").lower()
        name = getattr(said, "name", getattr(said, "branch", None))
        ids = [getattr(said, field, None) for field in ("previous_snap_id", "new_snap_id")]
        at = round(update.updated_at.timestamp() * 1e6)
        return kind, at, update.backup_path, name, *ids
    kind = UpdateKind(update.kind).name.replace("_", "").lower()
    ids = [update.previous_snap_id, update.new_snap_id]
    texts = [None if item is None else str(item) for item in ids]
    return kind, update.updated_at, update.backup_path, update.name, *texts


def diff(value):
    """A diff or a session's status.

    Over several commits the official library lists a node that was created or deleted among the
    updated ones, too, and the chunks of a deleted array; ours lists it once. It also lists an array
    whose chunks were all left to the others in a rebase, without any chunk.
    """
    told = {name: set(getattr(value, name)) for name in DIFF_LISTS}
    deleted = told["deleted_groups"] | told["deleted_arrays"]
    once = deleted | told["new_groups"] | told["new_arrays"]
    told |= {name: told[name] - once for name in ("updated_groups", "updated_arrays")}
    told["updated_chunks"] = {
        path: sorted(map(tuple, chunks))
        for path, chunks in value.updated_chunks.items()
        if path not in deleted and len(chunks)
    }
    told["moved_nodes"] = sorted(tuple(move) for move in value.moved_nodes)
    return told


def conflicts(error):
    """What a failed rebase tells: the commit, and each conflict."""
    return str(error.snapshot), {
        (
            _conflict_name(item.conflict_type),
            # The official library does not say what was moved.
            "" if "Move" in _conflict_name(item.conflict_type) else item.path,
            tuple(sorted(map(tuple, item.conflicted_chunks or []))),
        )
        for item in error.conflicts
    }


def _conflict_name(kind):
    known = (name for name in dir(icechunk.ConflictType) if not name.startswith("_"))
    official = (name for name in known if getattr(icechunk.ConflictType, name) == kind)
    return next(official, None) or kind.name


def document(shape, grid, names=None, **attributes):
    """The zarr.json of an array of bytes."""
    value = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": attributes,
    }
    if names is not None:
        value["dimension_names"] = list(names)
    return json.dumps(value).encode()


def group(**attributes):
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def regular(*chunk_shape):
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def rectilinear(*chunk_shapes):
    return {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": list(chunk_shapes)},
    }


def counts(value):
    """Chunks along each dimension, as a zarr.json says."""
    grid = value["chunk_grid"]["configuration"]
    if "chunk_shape" in grid:
        pairs = zip(value["shape"], grid["chunk_shape"], strict=True)
        return [-(-length // size) for length, size in pairs]
    return [len(sizes) for sizes in grid["chunk_shapes"]]
