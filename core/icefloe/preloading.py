"""Fetching the manifests of small arrays, such as coordinates, before anybody asks for them."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.config import Effective
    from icefloe.format.ids import ManifestId
    from icefloe.format.snapshot import Snapshot


def preloadable(snapshot: Snapshot, settings: Effective) -> list[ManifestId]:
    """The manifests that the configuration wants fetched, within its limits."""
    chosen: list[ManifestId] = []
    left = settings.preload_max_total_refs
    arrays = np.flatnonzero(snapshot.nodes.manifest_count > 0)
    for row in arrays[: settings.preload_max_arrays_to_scan].tolist():
        path = (snapshot.nodes.path[row] or b"").decode()
        for manifest_id in snapshot.nodes.manifests(row).ids():
            at = snapshot.manifest_files.row(manifest_id)
            refs = 0 if at is None else int(snapshot.manifest_files.num_chunk_refs[at])
            if refs > left or not settings.preload_if.matches(path, refs):
                # The next manifest of one array will hardly fit better.
                break
            chosen.append(manifest_id)
            left -= refs
    return chosen


def preload(assets: Assets, snapshot: Snapshot, settings: Effective) -> threading.Thread | None:
    """Begin to fetch what is `preloadable`; the thread that does so, None if there is nothing.

    It is a courtesy: a failure is left to whoever needs the manifest.
    """
    wanted = preloadable(snapshot, settings)
    if not wanted:
        return None

    def fetch() -> None:
        with suppress(IcefloeError):
            assets.fetch_payloads(wanted)

    thread = threading.Thread(target=fetch, name="icefloe-preload", daemon=True)
    thread.start()
    return thread
