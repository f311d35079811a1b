"""Print how many MiB encoding a million references takes above the columns given to it."""

from __future__ import annotations

import sys
import tracemalloc

from benchmarks.metadata_files import native_refs, virtual_refs
from icefloe.format import manifest
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ArrayManifest, Manifest

if __name__ == "__main__":
    refs = {"native": native_refs, "virtual": virtual_refs}[sys.argv[1]]()
    value = Manifest(ManifestId.random(), (ArrayManifest(NodeId.random(), refs),))
    # numpy and zstandard's results are traced; making the columns is over by now and left out.
    tracemalloc.start()
    manifest.encode(value)
    print(tracemalloc.get_traced_memory()[1] / 2**20)
