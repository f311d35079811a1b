"""Checks of manifest files: what they hold is what snapshots expect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError
from icefloe.format import manifest
from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ManifestId
from icefloe.maintenance.verification.findings import (
    RESTORE,
    REWRITE_MANIFESTS,
    Finding,
    unreadable,
    wrong_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.format.manifest import Manifest
    from icefloe.maintenance.verification.catalogue import Expectation, Place


def read_manifest(key: str, data: bytes) -> Manifest | Finding:
    """The file, or why there is none."""
    try:
        value = manifest.decode(data, name=key)
    except FormatError as error:
        return unreadable(key, error)
    if value.id != ManifestId.parse(key.rpartition("/")[2]):
        return wrong_id(key, value.id)
    return value


def check_manifest(
    key: str, size: int, value: Manifest, expected: Expectation
) -> Iterator[Finding]:
    yield from _check_sizes(key, size, value.count, expected)
    for place, use in sorted(expected.uses.items(), key=lambda item: item[0]):
        refs = value.array(place.node_id)
        if refs is None:
            message = f"it has nothing for node {place.node_id}, which looks for chunks in it"
            yield _finding("missing-refs", key, place.path, message, RESTORE)
        else:
            yield from _check_refs(key, refs, place, use.num_chunks)


def _check_sizes(key: str, size: int, count: int, expected: Expectation) -> Iterator[Finding]:
    for stated, refs in sorted(expected.sizes):
        # Readers ask for as many bytes as are stated; 0 means that nobody knew.
        if stated and stated != size:
            message = f"it has {size} bytes, and {expected.needed_by} expects {stated}"
            found = _finding("size-mismatch", key, None, message, REWRITE_MANIFESTS)
            yield found if stated < size else replace(found, severity="warning")
        if refs != count:
            message = f"it has {count} references, and {expected.needed_by} expects {refs}"
            found = _finding("count-mismatch", key, None, message, REWRITE_MANIFESTS)
            yield replace(found, severity="warning")


def _check_refs(
    key: str, refs: ChunkRefs, place: Place, num_chunks: tuple[int, ...]
) -> Iterator[Finding]:
    if len(refs) and refs.dimensions != place.rank:
        message = f"its references have {refs.dimensions} dimensions, the array {place.rank}"
        yield _finding("ref-outside-grid", key, place.path, message, RESTORE)
        return
    if place.extents:
        low, high = np.array(place.extents, np.int64).T
        outside = ((refs.index < low) | (refs.index >= high)).any(axis=1)
        message = "no snapshot looks here for this chunk"
        found = _finding("ref-outside-extents", key, place.path, message, REWRITE_MANIFESTS)
        yield from _at(refs, outside, found)
    outside = (refs.index >= np.array(num_chunks, np.int64)).any(axis=1)
    message = f"the grid of the array has {num_chunks} chunks"
    found = _finding("ref-outside-grid", key, place.path, message, REWRITE_MANIFESTS)
    yield from _at(refs, outside, replace(found, severity="warning"))
    empty = (refs.kind != RefKind.INLINE) & (refs.length == 0)
    message = "a reference of no bytes fails other readers"
    found = _finding("zero-length", key, place.path, message, "write the chunk again")
    yield from _at(refs, empty, found)


def _at(refs: ChunkRefs, rows: NDArray[np.bool_], finding: Finding) -> Iterator[Finding]:
    for row in np.flatnonzero(rows).tolist():
        yield replace(finding, chunk=tuple(refs.index[row].tolist()))


def _finding(kind: str, file: str, array: str | None, message: str, what_to_do: str) -> Finding:
    return Finding(
        severity="error", kind=kind, file=file, array=array, message=message, what_to_do=what_to_do
    )
