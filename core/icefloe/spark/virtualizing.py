"""Arrays of chunks that stay in HDF5 and NetCDF 4 files: executors find them, and refer to them.

A first job opens each file once and stages its references, and values of coordinates. The driver
checks that the files fit together, by what they say of their variables. A second job gives every
region its manifest. No reference is ever on the driver.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.spark.appending import require_new
from icefloe.spark.cf_times import TimeUnits
from icefloe.spark.context import spark_context
from icefloe.spark.job_log import JobLog
from icefloe.spark.options import public_options
from icefloe.spark.planning import MAX_CHUNKS, Plan, plan_array
from icefloe.spark.source import Source
from icefloe.spark.virtualizing_arrays import find_targets, make
from icefloe.spark.virtualizing_layout import Files
from icefloe.spark.virtualizing_regions import Loaded, parts_of, write_virtual_region
from icefloe.spark.virtualizing_staging import Reading, root_of
from icefloe.spark.writing import Staged, adopt, run, write
from icefloe.storage import open_storage
from icefloe.virtual import normalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.virtualizing_arrays import Target
    from icefloe.spark.virtualizing_staging import StagedFile
    from icefloe.spark.writing import StagedArray
    from icefloe.storage.settings import Credentials

    type Ints = NDArray[np.int64]

_FILES_PER_TASK = 64


def virtualize(
    spark: SparkSession,
    session: Session,
    files: Sequence[str | os.PathLike[str]],
    *,
    concat_dim: str | int | None = None,
    group: str = "/",
    into: str = "/",
    loadable: Sequence[str] = (),
    drop: Sequence[str] = (),
    sort_by: str | None = None,
    new_dim: bool = False,
    checksum: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
) -> Staged:
    """Make arrays of the chunks of HDF5 and NetCDF 4 files, which stay where they are.

    Arrays that are not there are created with the type, chunks, codecs, dimensions and attributes
    of the files. Arrays that are there grow: the files follow what they hold. The session adopts
    it all, and one commit publishes it.

    Args:
        spark: see `write`.
        session: a writable one. If this fails, drop it.
        files: paths or URLs, in order. A virtual chunk container must have each of them.
        concat_dim: the dimension along which files follow each other, by name, or by number where
            files name none. None: there is one file. A new first dimension, with one file for each
            of its elements, may have the name of a lone value of the files, or say `new_dim`.
        group: the group of the files to read, with all groups below it.
        into: the group of the repository to write to.
        loadable: variables whose values are copied, as those of coordinates, lone values and texts
            always are, and small variables whose chunks do not fit together.
        drop: variables to leave out. Those of groups below are called `surface/t2m`.
        sort_by: order the files by the first value that they have of this variable.
        new_dim: `concat_dim` is a new dimension, though no variable of the files has the name.
        checksum: note when each file was changed last, so that reading a changed one fails.
        storage_options: to read the files with; none of them secret.
        credentials: gives secret options, on executors; an importable function.

    Raises:
        InvalidInputError: a file is no HDF5, or says something that zarr cannot (kind
            `unsupported-variable`), files do not agree (`inconsistent-files`), chunks do not fit
            together (`unaligned-files`), or no container has a file. The session is as it was.
        NotFoundError: there is no such file.
    """
    context = spark_context(spark)
    locations = _locations(session, files)
    if concat_dim is None and len(locations) > 1:
        raise InvalidInputError(f"{len(locations)} files: say along which concat_dim they follow")
    if isinstance(concat_dim, int) and concat_dim < 0:
        raise InvalidInputError(f"concat_dim={concat_dim}: dimensions are counted from 0")
    options = public_options(storage_options or {})
    key = None if sort_by is None else _name(sort_by)
    roots = {root_of(location) for location in locations} - {"file://"}
    reading = Reading(
        source=Source.of(session.context, session.snapshot_id),
        storages={
            root: open_storage(root, options, credentials=credentials, read_only=True)
            for root in roots
        },
        group=group,
        loadable=frozenset([*map(_name, loadable), *filter(None, [key])]),
        drop=frozenset(map(_name, drop)),
        sort_by=key,
        checksum=checksum,
    )
    log = JobLog(f"refer to the chunks of {len(locations):,} files, from {locations[0]} on")
    staged = _stage(context, reading, locations)
    together = Files(staged, _order(staged, key), concat_dim, new_dim=new_dim)
    together.require_known("drop", reading.drop)
    together.require_known("loadable", frozenset(map(_name, loadable)))
    found = find_targets(session, into, together.join(reading.loadable))
    _require_same(session, [each for each in found if each.is_settled], staged)
    targets = [each for each in found if not each.is_settled]
    _require_new_labels(session, targets, staged)
    make(session, into, together.group_attributes(), targets)
    base = session.fork().snapshot_id
    source = Source.of(session.context, base)
    virtual = [target for target in targets if not target.joined.load]
    arrays = _write_virtual(context, session, source, virtual, staged)
    loaded = [target for target in targets if target.joined.load]
    if loaded:
        plans = tuple(plan_array(session, target.path, target.region) for target in loaded)
        compute = Loaded(source, {each.path: parts_of(each, staged, "values") for each in loaded})
        arrays += write(spark, Plan(session, plans), compute, decode=False).arrays
    log.done(arrays, base)
    return Staged(session, base, tuple(arrays))


def _locations(session: Session, files: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(files, str | os.PathLike):
        raise InvalidInputError(f"files is a list: [{os.fspath(files)!r}]")
    if not len(files):
        raise InvalidInputError("no files")
    locations = [_location(os.fspath(file)) for file in files]
    try:
        session.context.containers.validate(locations)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}. Add one to the repository: config = repo.config; "
            "config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store)); "
            "repo.reopen(config).save_config()",
            kind=error.kind,
        ) from error
    return locations


def _location(text: str) -> str:
    if "://" in text:
        return normalize(text)
    # What a path may have as it is, and a URL may not.
    path = os.path.abspath(text).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return normalize(f"file://{path}")


def _stage(context: SparkContext, reading: Reading, locations: Sequence[str]) -> list[StagedFile]:
    try:
        stage_files = import_module("icefloe.spark.virtualizing_files").stage_files
    except ImportError as error:
        raise InvalidInputError(
            f"virtualize needs the package {error.name}: pip install 'icefloe[hdf5]'",
            kind="missing-dependency",
        ) from error
    size = min(_FILES_PER_TASK, -(-len(locations) // (3 * context.defaultParallelism)))
    items = [(at, locations[at : at + size]) for at in range(0, len(locations), size)]
    told = f"icefloe: find the chunks of {len(locations):,} files"
    answers = run(context, partial(stage_files, reading), items, told)
    staged = list(chain.from_iterable(answers))
    for each in staged:
        if isinstance(each, IcefloeError):
            raise each
    return staged


def _require_same(
    session: Session, targets: Sequence[Target], staged: Sequence[StagedFile]
) -> None:
    """That coordinates of the other dimensions are what the arrays have already."""
    source = Source.of(session.context, session.snapshot_id)
    for target in targets:
        if target.joined.load:
            parts = {target.path: parts_of(target, staged, "values")}
            (new,) = Loaded(source, parts).values(target.path, slice(0, 1))
            array = zarr.open_array(session.store, path=target.path.strip("/"), mode="r")
            has_gaps = new.dtype.kind in "fc"
            if not np.array_equal(np.asarray(array[...]), new, equal_nan=has_gaps):
                location = staged[int(target.joined.numbers[0])].location
                raise InvalidInputError(
                    f"{target.path} has other values than {location}: leave it out, with "
                    f"drop=[{target.joined.name!r}], if it is the one that is there all the same",
                    kind="inconsistent-files",
                )


def _require_new_labels(
    session: Session, targets: Sequence[Target], staged: Sequence[StagedFile]
) -> None:
    """That no coordinate gets a label twice: a file would be there twice."""
    source = Source.of(session.context, session.snapshot_id)
    for target in targets:
        joined = target.joined
        if joined.load and joined.axis == 0 and joined.variable.is_coordinate:
            parts = {target.path: parts_of(target, staged, "values")}
            new = Loaded(source, parts).values(target.path, slice(0, len(joined.numbers)))
            old = []
            if target.exists:
                array = zarr.open_array(session.store, path=target.path.strip("/"), mode="r")
                old = [np.asarray(array[:])]
            require_new(target.path, np.concatenate([*old, *new]), target.start)


def _order(staged: Sequence[StagedFile], sort_by: str | None) -> Ints:
    if sort_by is None:
        return np.arange(len(staged))
    for file in staged:
        if not file.key:
            raise InvalidInputError(
                f"{file.location} has no values of {sort_by!r} to sort by",
                kind="inconsistent-files",
            )
    moments = [_moment(file, sort_by) for file in staged]
    return np.array(sorted(range(len(staged)), key=moments.__getitem__), np.int64)


def _moment(file: StagedFile, sort_by: str) -> Any:
    """What a file is sorted by; times as such, for files may count them from different days."""
    (key,) = file.key
    told = next(json.loads(each.attributes) for each in file.variables if each.name == sort_by)
    units = TimeUnits.of(told.get("units"), told.get("calendar"))
    return key if units is None else units.reference + key * units.step


def _write_virtual(
    context: SparkContext,
    session: Session,
    source: Source,
    targets: Sequence[Target],
    staged: Sequence[StagedFile],
) -> list[StagedArray]:
    """Give the regions of arrays their manifests, and let the session adopt them."""
    plans = [plan_array(session, target.path, target.region) for target in targets]
    if Plan(session, tuple(plans)).needs_slices:
        raise InvalidInputError(
            f"the files have more than {MAX_CHUNKS:,} chunks, which do not fit one commit: take "
            "fewer files at a time",
            kind="too-many-chunks",
        )
    parts = {target.path: parts_of(target, staged, "refs") for target in targets}
    bare = {each.path: replace(each, cells=(), carried=()) for each in plans}
    items = [(each.path, cell) for each in plans for cell in (*each.cells, *each.carried)]
    told = f"icefloe: write the manifests of {len(items):,} regions"
    regions = run(context, partial(write_virtual_region, source, bare, parts), items, told)
    return [adopt(session, each, regions) for each in plans]


def _name(path: str) -> str:
    return path.strip("/")
