"""What snapshots need: the manifests they list, and the chunk objects those refer to.

Only the columns with ids are decoded.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format import header, wire
from icefloe.format.ids import encode_ids
from icefloe.format.reading import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.ragged import Bytes
    from icefloe.storage import Storage

_BYTES_AHEAD = 2**23
_FIRST_AHEAD = 8
_MAX_AHEAD = 256


def read_all(storage: Storage, folder: str, ids: Bytes) -> Iterator[tuple[str, bytes]]:
    """Keys and contents of these objects, in order; the next ones are read meanwhile.

    How many at a time follows from their size.

    Raises:
        NotFoundError: one is missing.
    """
    keys = iter([f"{folder}{name.decode()}" for name in encode_ids(ids).tolist()])
    with ThreadPoolExecutor(1, thread_name_prefix="icefloe") as pool:
        batch = [*islice(keys, _FIRST_AHEAD)]
        pending = pool.submit(storage.get_many, batch) if batch else None
        while pending:
            names, contents = batch, pending.result()
            largest = max(map(len, contents))
            batch = [*islice(keys, max(1, min(_MAX_AHEAD, _BYTES_AHEAD // max(largest, 1))))]
            pending = pool.submit(storage.get_many, batch) if batch else None
            yield from zip(names, contents, strict=True)


def manifest_ids(data: bytes, name: str) -> Bytes:
    """Every manifest of a snapshot file, those that only a node mentions included.

    Raises:
        FormatError: the file is damaged.
    """
    _, payload = header.unpack(data, header.FileType.SNAPSHOT, name=name)
    root = Buffer(payload, name).root(wire.SNAPSHOT)
    _, files = root.tables("manifest_files_v2")
    old = root.vector("manifest_files").values(wire.MANIFEST_FILE_INFO)["id"]
    _, nodes = root.tables("nodes")
    _, members = nodes.union("node_data")
    used = [
        tables.tables("manifests")[1].struct("object_id")
        for _, tables in members.values()
        if tables.table is wire.ARRAY_NODE_DATA
    ]
    return np.concatenate([files.struct("id"), old.reshape(-1, 12), *used])


def chunk_ids(data: bytes, name: str) -> Bytes:
    """The chunk object of every native reference of a manifest file; one may occur many times.

    Raises:
        FormatError: the file is damaged.
    """
    _, payload = header.unpack(data, header.FileType.MANIFEST, name=name)
    _, arrays = Buffer(payload, name).root(wire.MANIFEST).tables("arrays")
    _, refs = arrays.tables("refs")
    is_native = refs.has("chunk_id")
    ids = refs.struct("chunk_id")
    return ids if bool(is_native.all()) else ids[is_native]
