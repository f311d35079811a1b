"""xarray: write objects to a session, and open repositories as an xarray engine."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import batched, count
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendEntrypoint, ZarrBackendEntrypoint, ZarrStore
from xarray.backends.common import ArrayWriter
from xarray.backends.writers import _validate_dataset_names, dump_to_store
from zarr.storage import StorePath

from icefloe.errors import InvalidInputError, NotFoundError, ReadOnlyError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.zarr_store import IcechunkStore

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from zarr.core.metadata import ArrayV3Metadata

    from icefloe.clock import Moment
    from icefloe.config import RepositoryConfig
    from icefloe.repository import Place
    from icefloe.session import ForkSession

    type Mode = Literal["w", "w-", "a", "a-", "r+"]
    type Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
    type Encoding = Mapping[Any, Any]

# What xarray itself calls a data array whose name cannot be a variable's, and where it notes it.
_UNNAMED = "__xarray_dataarray_variable__"
_REAL_NAME = "__xarray_dataarray_name__"
_SPLIT_EVERY = 16
_STORE_OPTIONS = frozenset(
    {
        "branch",
        "tag",
        "snapshot_id",
        "as_of",
        "storage_options",
        "config",
        "authorize_virtual_chunk_access",
    }
)


def to_icechunk(
    obj: xr.DataArray | xr.Dataset | xr.DataTree,
    session: Session,
    *,
    group: str | None = None,
    mode: Mode | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region | None = None,
    encoding: Encoding | None = None,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write an xarray object to a session. Nothing is committed.

    What is in memory is written at once. Dask arrays are written by forks of the session, one for
    each block, in whatever threads or processes dask has; then the forks are merged.

    Args:
        obj: what to write. The groups of a tree are written below `group`.
        session: a writable one, or a fork.
        group: path of the group to write to; the root if None.
        mode: `w` replaces the group, `w-` wants none to be there, `a` replaces variables, `a-`
            replaces only those with `append_dim`, and `r+` changes values of what is there. If
            None: `a` with `append_dim`, `r+` with `region`, else `w-`.
        safe_chunks: refuse dask blocks that would share a chunk of the store.
        align_chunks: cut dask arrays anew so that none do.
        append_dim: grow the arrays along this dimension.
        region: the part of existing arrays to write to, as slices by dimension; "auto" finds it by
            the indexes.
        encoding: of the variables, by name; for a tree, that by path of the group in the tree.
        chunkmanager_store_kwargs: options for `dask.compute`, such as `scheduler`.
        split_every: how many forks are merged in one task.

    Raises:
        ConflictError: two dask blocks wrote one chunk, which `safe_chunks` would have told before.
        ReadOnlyError: the session takes no writes.
    """
    _check_target(session)
    _require_group(group)
    if not isinstance(obj, xr.DataArray | xr.Dataset | xr.DataTree):
        raise InvalidInputError(
            f"to_icechunk writes a DataArray, a Dataset or a DataTree, not a {type(obj).__name__}"
        )
    if split_every is not None and split_every < 2:
        raise InvalidInputError(f"split_every={split_every}: merging takes two")
    writer = ArrayWriter()  # type: ignore[no-untyped-call]
    for target, dataset, own_encoding in _groups(obj, encoding):
        store = ZarrStore.open_group(
            session.store,
            group="/".join(part for part in ((group or "").strip("/"), target) if part) or None,
            mode=mode or _default_mode(append_dim, region),
            zarr_format=3,
            consolidated=False,
            append_dim=append_dim,
            write_region=region,
            safe_chunks=safe_chunks,
            align_chunks=align_chunks,
        )
        _validate_dataset_names(dataset)
        for variable in dataset.variables.values():
            # A dask array without elements has blocks that no chunk fits.
            if variable.size == 0:
                variable.load()
        dataset = store._validate_and_autodetect_region(dataset)
        store._validate_encoding(own_encoding)
        dump_to_store(dataset, store, writer, encoding=own_encoding)  # type: ignore[no-untyped-call]
    if writer.sources:
        options = dict(chunkmanager_store_kwargs or {})
        _write_blocks(session, writer, split_every or _SPLIT_EVERY, options)


def _check_target(session: object) -> None:
    match session:
        case Session():
            if session.read_only:
                raise ReadOnlyError(
                    f"{session!r} is read-only: open one with repo.writable_session(branch)",
                    kind="read-only-session",
                )
        case Repository():
            raise InvalidInputError(
                "to_icechunk writes to a session, not to a Repository: pass "
                "repo.writable_session(branch) and commit it, or the store.session of "
                "`with repo.transaction(branch, message=...) as store`"
            )
        case IcechunkStore():
            raise InvalidInputError("to_icechunk writes to a session: pass store.session")
        case _:
            raise InvalidInputError(
                f"to_icechunk writes to a session, not to a {type(session).__name__}: pass "
                "repo.writable_session(branch)"
            )


def _default_mode(append_dim: Hashable | None, region: Region | None) -> Mode:
    if append_dim is not None:
        return "a"
    return "w-" if region is None else "r+"


def _groups(
    obj: xr.DataArray | xr.Dataset | xr.DataTree, encoding: Encoding | None
) -> Iterator[tuple[str, xr.Dataset, Encoding]]:
    """Paths below the target group, parents first; what to write there; and its encoding."""
    encoding = encoding or {}
    if isinstance(obj, xr.DataTree):
        for path, node in obj.subtree_with_keys:
            own = encoding.get(node.path, {})
            yield path.strip("./"), node.to_dataset(inherit=node is obj), own
    else:
        yield "", obj if isinstance(obj, xr.Dataset) else _as_dataset(obj), encoding


def _as_dataset(array: xr.DataArray) -> xr.Dataset:
    if array.name is None:
        return array.to_dataset(name=_UNNAMED)
    if array.name in array.coords or array.name in array.dims:
        return array.to_dataset(name=_UNNAMED).assign_attrs({_REAL_NAME: array.name})
    return array.to_dataset()


def _write_blocks(
    session: Session, writer: ArrayWriter, split_every: int, options: dict[str, Any]
) -> None:
    # Who has dask arrays has dask; it is no dependency of xarray.
    from dask.base import compute
    from dask.core import flatten
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    hub = session.fork()
    # To name the tasks after their arguments, dask would pickle the fork.
    token = uuid.uuid4().hex
    written = [
        source.map_blocks(
            _write_block,
            hub,
            _Target(target.path, target.metadata, _origin(target, region)),
            chunks=tuple((1,) * blocks for blocks in source.numblocks),
            meta=np.empty((0,) * source.ndim, object),
            token=f"{token}-{number}",
        )
        for number, (source, target, region) in enumerate(
            zip(writer.sources, writer.targets, writer.regions, strict=True)
        )
    ]
    keys = [key for array in written for key in flatten(array.__dask_keys__())]  # type: ignore[no-untyped-call]
    graph = HighLevelGraph.merge(*(array.dask for array in written))
    # Optimized together, so that what two variables share is computed once.
    tasks = dict(written[0].__dask_optimize__(graph, keys))
    last = _add_joins(tasks, keys, hub, split_every, f"join-{token}")
    (joined,) = compute(Delayed(last, tasks), **options)  # type: ignore[no-untyped-call]
    hub.merge(joined)
    session.merge(hub)


def _add_joins(
    tasks: dict[Any, Any], keys: list[Any], hub: ForkSession, split_every: int, name: str
) -> Any:
    """Add tasks that merge the forks of `keys`, as a tree; the key of the last one."""
    for level in count():
        joins = {
            (name, level, number): (_join, hub, list(batch))
            for number, batch in enumerate(batched(keys, split_every))
        }
        tasks |= joins
        keys = list(joins)
        if len(keys) == 1:
            break
    return keys[0]


@dataclass(frozen=True, slots=True)
class _Target:
    """An array to write to, without a store; the metadata is at hand, so no task has to read it."""

    path: str
    metadata: ArrayV3Metadata
    origin: tuple[int, ...]
    """Where the dask array begins in it."""

    def open(self, session: Session) -> zarr.Array[Any]:
        place = StorePath(session.store, self.path)
        return zarr.Array(zarr.AsyncArray(self.metadata, place))


def _origin(target: zarr.Array[Any], region: Sequence[slice] | None) -> tuple[int, ...]:
    parts = region or [slice(None)] * target.ndim
    return tuple(part.indices(size)[0] for part, size in zip(parts, target.shape, strict=True))


def _write_block(
    block: NDArray[Any],
    hub: ForkSession,
    target: _Target,
    block_info: Any = None,
) -> NDArray[np.object_]:
    """Write one dask block with a fork of its own, and return that in an array of its rank."""
    fork = hub.fork()
    location = block_info[0]["array-location"]
    where = tuple(
        slice(first + start, first + stop)
        for first, (start, stop) in zip(target.origin, location, strict=True)
    )
    target.open(fork)[where] = block
    result = np.empty((1,) * block.ndim, object)
    result[...] = fork
    return result


def _join(hub: ForkSession, parts: Sequence[ForkSession | NDArray[np.object_]]) -> ForkSession:
    # Into a fork without changes of its own, because only what was merged is checked for conflicts.
    joined = hub.fork()
    joined.merge(*(part.item() if isinstance(part, np.ndarray) else part for part in parts))
    return joined


class VersionedVariable(xr.Variable):
    """A variable whose dask array is named after the version it is read from, too.

    xarray names the arrays of `chunks=` after the arguments of `open_dataset` alone, under which a
    branch may have moved; and dask takes arrays of one name for one array.
    """

    __slots__ = ("_version",)

    def __init__(self, *args: Any, version: tuple[str, ...] = (), **named: Any) -> None:
        super().__init__(*args, **named)
        self._version = version

    def _replace(self, *args: Any, **named: Any) -> VersionedVariable:
        replaced = super()._replace(*args, **named)
        replaced._version = self._version
        return replaced

    def chunk(  # type: ignore[override]
        self, chunks: Any = None, *, from_array_kwargs: Any = None, **named: Any
    ) -> xr.Variable:
        """Of an ordinary variable, as everything is that is made of this one."""
        options = dict(from_array_kwargs or {})
        # Only a manager of dask arrays is given a name.
        if isinstance(name := options.get("name"), str):
            from dask.base import tokenize

            # What stands before the last dash is what dask shows of a name.
            options["name"] = f"{name.rpartition('-')[0]}-{tokenize(name, self._version)}"
        plain = self.to_base_variable()
        return plain.chunk({} if chunks is None else chunks, from_array_kwargs=options, **named)


def _versioned(dataset: xr.Dataset, store: IcechunkStore) -> xr.Dataset:
    version = store.__dask_tokenize__()
    variables = {
        name: VersionedVariable(
            variable._dims,
            variable._data,
            variable._attrs,
            variable._encoding,
            fastpath=True,
            version=version,
        )
        if type(variable) is xr.Variable
        else variable
        for name, variable in dataset.variables.items()
    }
    return dataset._replace(variables=variables)


class IcefloeBackendEntrypoint(BackendEntrypoint):
    """`xarray.open_dataset(url, engine="icefloe", branch=...)`, read-only."""

    description = "Open Icechunk repositories with icefloe"
    supports_groups: ClassVar[bool] = True

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: Moment | None = None,
        storage_options: Mapping[str, Any] | None = None,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
    ) -> xr.Dataset:
        """Open a group at a branch (`main` if nothing is said), tag or snapshot."""
        store = _store(
            filename_or_obj,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of=as_of,
            storage_options=storage_options,
            config=config,
            authorize_virtual_chunk_access=authorize_virtual_chunk_access,
        )
        _check_group(store, group)
        dataset = ZarrBackendEntrypoint().open_dataset(
            store,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
            group=group,
            consolidated=False,
            zarr_format=3,
        )
        return _versioned(dataset, store)

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, xr.Dataset]:
        """Open all groups; the options are those of `open_dataset`."""
        ours = {name: options.pop(name) for name in _STORE_OPTIONS & options.keys()}
        store = _store(filename_or_obj, **ours)
        _check_group(store, options.get("group"))
        groups = ZarrBackendEntrypoint().open_groups_as_dict(
            store, consolidated=False, zarr_format=3, **options
        )
        return {path: _versioned(dataset, store) for path, dataset in groups.items()}

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open all groups as a tree; the options are those of `open_dataset`."""
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _check_group(store: IcechunkStore, group: str | None) -> None:
    _require_group(group)
    path = "/" + (group or "").strip("/")
    node = store.session.node(path)
    if node is None or node.array is not None:
        there = [each for each in ["/", *store.session.paths()] if _is_group(store, each)]
        shown = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
        raise NotFoundError(
            f"there is no group {path} in {store.session!r}; groups: {shown or 'none'}",
            kind="node-not-found",
        )


def _require_group(group: object) -> None:
    if group is not None and not isinstance(group, str):
        raise InvalidInputError(
            f"group={group!a} is no path of a group: pass a str, or None for the root",
            kind="invalid-path",
        )


def _is_group(store: IcechunkStore, path: str) -> bool:
    node = store.session.node(path)
    return node is not None and node.array is None


def _store(
    place: Place | Repository | Session | IcechunkStore,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: Moment | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: RepositoryConfig | None = None,
    authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
) -> Any:
    """A read-only store. Any: xarray's types know of files only, but it opens what zarr opens."""
    if isinstance(place, Session | IcechunkStore):
        given = (branch, tag, snapshot_id, as_of, storage_options, config)
        if any(each is not None for each in (*given, authorize_virtual_chunk_access)):
            raise InvalidInputError(
                "a session or a store stands on its version already: open_dataset takes no "
                "branch, tag, snapshot_id, as_of, storage_options, config or "
                "authorize_virtual_chunk_access with it"
            )
        store = place.store if isinstance(place, Session) else place
        return store.with_read_only(True)
    if isinstance(place, Repository):
        if any(
            each is not None for each in (storage_options, config, authorize_virtual_chunk_access)
        ):
            raise InvalidInputError(
                "a Repository is open already: open_dataset takes no storage_options, config or "
                "authorize_virtual_chunk_access with it; pass them to Repository.open"
            )
    else:
        place = Repository.open(
            place,
            storage_options,
            config=config,
            authorize_virtual_chunk_access=authorize_virtual_chunk_access,
        )
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    session = place.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    return session.store
