"""Writes too large for one commit: slices on a private branch, published by one branch move."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from icefloe.descriptions import check_message, check_metadata
from icefloe.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icefloe.spark.cf_packing import require_choice
from icefloe.spark.chunk_grid import volume
from icefloe.spark.context import spark_context
from icefloe.spark.planning import MAX_CHUNKS, Plan, carried_cells, plan, planned_manifests
from icefloe.spark.writing import write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.format.metadata import Json
    from icefloe.repository import Repository
    from icefloe.spark.block import Compute
    from icefloe.spark.chunk_grid import Selection
    from icefloe.spark.planning import Cell

type Slice = list[list[Cell]]
"""The cells of each array of a plan."""


def write_sliced(
    spark: SparkSession,
    repo: Repository,
    branch: str,
    paths: str | Sequence[str],
    compute: Compute,
    *,
    message: str,
    write_key: str,
    region: Selection | None = None,
    decode: bool | None = None,
    metadata: Mapping[str, Json] | None = None,
    max_chunks: int = MAX_CHUNKS,
    allow_empty: bool = False,
) -> str:
    """Write arrays that exist, however many chunks they have, and publish all at once; the tip.

    Slices are committed to a private branch. When all are there, `branch` moves to the last one.
    Called again with its write key, it goes on where an earlier attempt stopped.

    Args:
        spark: see `write`.
        repo: where.
        branch: what to write on, and to move at the end.
        paths: see `plan`.
        compute: see `write`.
        message: of the last commit; those before it say which slice they are, too.
        write_key: names this write, in every attempt.
        region: see `plan`.
        decode: see `write`.
        metadata: any JSON, kept with every commit.
        max_chunks: of one commit.
        allow_empty: commit even if the region has no chunks.

    Raises:
        InvalidInputError: there is nothing to write.
        ConflictError: the branch moved meanwhile. What was written stays on the private branch,
            which the message names.
    """
    spark_context(spark)
    check_message(message)
    check_metadata(metadata)
    session = repo.writable_session(branch)
    wanted = plan(session, paths, region)
    if decode is None:
        require_choice(session, [array.path for array in wanted.arrays])
    if not (allow_empty or wanted.chunks):
        raise InvalidInputError(
            f"there is nothing to write to {paths}: the region has no chunks. Say allow_empty=True "
            "if that is well",
            kind="nothing-written",
        )
    private = f"icefloe-slices-{sha256(write_key.encode()).hexdigest()[:16]}"
    if found := repo.find_write(write_key, branch):
        _drop(repo, private)
        return found
    base = _start(repo, branch, private, write_key)
    whole = plan(repo.writable_session(private), paths, region)
    parts = slices(whole, max_chunks)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        key = write_key if is_last else _slice_key(write_key, number)
        if repo.find_write(key, private):
            continue
        session = repo.writable_session(private)
        write(spark, _restricted(plan(session, paths, region), part), compute, decode=decode)
        told = message if is_last else f"{message} (slice {number + 1} of {len(parts)})"
        session.commit(told, metadata, write_key=key, allow_empty=True)
    tip = repo.lookup_branch(private)
    try:
        repo.reset_branch(branch, tip, from_snapshot_id=base)
    except ConflictError as error:
        raise ConflictError(
            f"{error}; all slices wait on branch {private}: delete it to write them again",
            kind=error.kind,
        ) from error
    _drop(repo, private)
    return tip


def slices(whole: Plan, max_chunks: int) -> list[Slice]:
    """The cells of a plan in groups of at most so many chunks, but at least one cell."""
    found: list[Slice] = [[[] for _ in whole.arrays]]
    room = max_chunks
    for number, array in enumerate(whole.arrays):
        for cell in array.cells:
            count = volume(array.written_box(cell))
            if count > room and any(found[-1]):
                found.append([[] for _ in whole.arrays])
                room = max_chunks
            found[-1][number].append(cell)
            room -= count
    return found


def _restricted(whole: Plan, part: Slice) -> Plan:
    arrays = []
    for array, cells in zip(whole.arrays, part, strict=True):
        manifests = planned_manifests(whole.session, array.path)
        carried = carried_cells(manifests, array.sizes, cells)
        arrays.append(replace(array, cells=tuple(cells), carried=tuple(carried)))
    return replace(whole, arrays=tuple(arrays))


def _start(repo: Repository, branch: str, private: str, write_key: str) -> str:
    """Create the private branch, or find the snapshot that an earlier attempt began at."""
    tip = repo.lookup_branch(branch)
    try:
        repo.create_branch(private, tip)
    except AlreadyExistsError:
        first = repo.find_write(_slice_key(write_key, 0), private) or repo.find_write(
            write_key, private
        )
        below = None if first is None else repo.lookup_snapshot(first).parent_id
        return str(below) if below is not None else repo.lookup_branch(private)
    return tip


def _drop(repo: Repository, private: str) -> None:
    if private in repo.list_branches():
        repo.delete_branch(private)


def _slice_key(write_key: str, number: int) -> str:
    return f"{write_key} #{number}"
