"""Writing arrays with Spark: tasks write chunks and manifests, the session adopts the manifests."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise, starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.adoption import Adopted
from icefloe.errors import InternalError, InvalidInputError, SessionStateError
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRefs
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.transaction_log import union_of_coordinates
from icefloe.spark.cf_packing import require_choice
from icefloe.spark.context import spark_context
from icefloe.spark.job_log import JobLog, told_plan
from icefloe.spark.planning import MAX_CHUNKS, array_node
from icefloe.spark.progress import shown
from icefloe.spark.regions import WrittenRegion
from icefloe.spark.source import Source
from icefloe.spark.task_errors import marked, task_errors_raised
from icefloe.spark.tasks import Job, Part, WrittenPart, join_parts, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.block import Compute
    from icefloe.spark.planning import ArrayPlan, Plan

BLOCK_BYTES = 32 * 2**20
_TASKS_PER_CORE = 3
"""Regions are cut into parts until there are so many tasks: cores that finish early help out."""


@dataclass(frozen=True, slots=True)
class StagedArray:
    path: str
    regions: int
    """Manifests written."""
    chunks: int
    """Chunks that changed."""
    stored_bytes: int = 0
    """Of these chunks, as they are stored."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a write put into the repository, for its session to commit or flush."""

    session: Session = field(repr=False)
    base: str
    """The snapshot that the tasks read."""
    arrays: tuple[StagedArray, ...]

    @property
    def chunks(self) -> int:
        return sum(array.chunks for array in self.arrays)

    @property
    def snapshot_id(self) -> str:
        """The snapshot that has all changes of the session, to be handed to another task.

        Asked for before the session has committed, it flushes it: the snapshot is on no branch, and
        the session is read-only from then on. `Session.flush` does the same under a write key.

        Raises:
            SessionStateError: nothing was written.
        """
        if self.session.read_only:
            return self.session.snapshot_id
        if not self.session.has_uncommitted_changes:
            raise SessionStateError(
                "nothing was written: session.flush(message) stages it all the same",
                kind="nothing-written",
            )
        return self.session.flush(f"Write {', '.join(array.path for array in self.arrays)}")

    def as_json(self) -> dict[str, Any]:
        """What a log or a report may hold."""
        return {
            "url": self.session.context.assets.storage.url,
            "base": self.base,
            "arrays": [asdict(array) for array in self.arrays],
        }


def write(
    spark: SparkSession,
    plan: Plan,
    compute: Compute,
    *,
    decode: bool | None = None,
    block_bytes: int = BLOCK_BYTES,
    tasks: int | None = None,
) -> Staged:
    """Compute the planned regions on executors, now, and let the plan's session adopt them.

    Nothing becomes visible before the session commits or flushes. Tasks that are retried, run twice
    or are lost leave unreferenced objects, which garbage collection removes.

    Args:
        spark: a session with a driver in this process (not Spark Connect).
        plan: see `plan`.
        compute: called for each block on an executor; gives its values, in its shape or as a
            scalar. Partly covered chunks keep the rest of their values, those of the session.
        decode: True: what is computed is what values mean, and is packed by `scale_factor`,
            `add_offset`, `_FillValue` and the like; NaN becomes `_FillValue`. False: it is stored
            as it is. It has to be said where an array is packed.
        block_bytes: blocks hold as many chunks as fit, but at least one.
        tasks: how many to aim for where there are fewer regions; None: by the cluster's cores.

    Raises:
        InvalidInputError: an array changed since it was planned, there are too many chunks for one
            commit, or the session is one of Spark Connect. Or an array is packed and `decode` is
            not given, or its type has no room for a value.
    """
    context, session = spark_context(spark), plan.session
    _check(plan)
    if decode is None:
        require_choice(session, [array.path for array in plan.arrays])
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    targets = tuple(replace(array, cells=(), carried=()) for array in plan.arrays)
    job = Job(source, targets, compute, block_bytes, bool(decode))
    aim = tasks or context.defaultParallelism * _TASKS_PER_CORE
    parts = list(_parts(job, plan.arrays, aim))
    names = ", ".join(array.path for array in plan.arrays)
    log = JobLog(told_plan("write", plan.arrays, len(parts)))
    told = f"icefloe: write {plan.chunks:,} chunks of {names}"
    written = run(context, partial(write_part, job), parts, told)
    regions = [item for item in written if isinstance(item, WrittenRegion)]
    waiting = [item for item in written if isinstance(item, WrittenPart)]
    if waiting:
        groups = _by_region(waiting)
        told = f"icefloe: join the manifests of {len(groups):,} regions of {names}"
        regions += run(context, partial(join_parts, job), groups, told)
    staged = tuple(adopt(session, array, regions) for array in plan.arrays)
    log.done(staged, base)
    return Staged(session, base, staged)


def run[I, O](
    context: SparkContext, function: Callable[[I], O], items: Sequence[I], description: str
) -> list[O]:
    """One task for each item, at once; their answers."""
    if not items:
        return []

    def marking(item: I) -> O:
        with marked():
            return function(item)

    with described(context, description), task_errors_raised():
        return context.parallelize(items, len(items)).map(marking).collect()


@contextmanager
def described(context: SparkContext, description: str) -> Iterator[None]:
    """Jobs in here have a description in Spark's user interface, and a bar where people look."""
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(description)
    try:
        with shown(context, description):
            yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


def adopt(session: Session, array: ArrayPlan, regions: Sequence[WrittenRegion]) -> StagedArray:
    """Let a session take over the regions of one array, each of which must be there once."""
    mine = [region for region in regions if region.path == array.path]
    wanted = sorted([*array.cells, *array.carried])
    if sorted(region.cell for region in mine) != wanted:
        raise InternalError(
            f"{len(mine)} regions of {array.path} were written, not the {len(wanted)} planned"
        )
    if not mine:
        return StagedArray(array.path, 0, 0)
    rank = len(array.sizes)
    manifests = [
        (ManifestId(region.manifest.id), region.manifest) for region in mine if region.manifest
    ]
    index = union_of_coordinates([region.changed_index() for region in mine])
    adopted = Adopted(
        array.sizes,
        np.array(wanted, np.int64).reshape(len(wanted), rank),
        ManifestRefs.of([(manifest_id, item.box) for manifest_id, item in manifests], rank),
        ManifestFiles.of((manifest_id, item.size, item.count) for manifest_id, item in manifests),
        index,
    )
    session.adopt_manifests(array.path, adopted)
    written = sum(region.stored_bytes for region in mine)
    return StagedArray(array.path, len(manifests), len(index), written)


def _check(plan: Plan) -> None:
    for array in plan.arrays:
        if array_node(plan.session, array.path).user_data != array.document:
            raise InvalidInputError(
                f"{array.path} changed since it was planned: plan again", kind="stale-plan"
            )
    if plan.needs_slices:
        raise InvalidInputError(
            f"{plan.chunks:,} chunks do not fit one commit, which takes {MAX_CHUNKS:,}: use "
            "write_sliced",
            kind="too-many-chunks",
        )


def _parts(job: Job, arrays: Sequence[ArrayPlan], aim: int) -> Iterator[Part]:
    """The work of each task: whole regions, or parts of them if there are few."""
    regions = sum(len(array.cells) for array in arrays)
    share = aim // max(regions, 1)
    for number, array in enumerate(arrays):
        for cell in array.cells:
            count = len(job.blocks(number, cell)) if share > 1 else 1
            cuts = np.linspace(0, count, min(share, count) + 1).astype(int).tolist()
            if len(cuts) <= 2:
                yield Part(number, cell)
            else:
                yield from starmap(partial(Part, number, cell), pairwise(cuts))
        for cell in array.carried:
            yield Part(number, cell)


def _by_region(parts: Sequence[WrittenPart]) -> list[list[WrittenPart]]:
    def region(item: WrittenPart) -> tuple[int, tuple[int, ...]]:
        return item.part.array, item.part.cell

    return [list(group) for _, group in groupby(sorted(parts, key=region), key=region)]
