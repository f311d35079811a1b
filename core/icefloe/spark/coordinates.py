"""The coordinate of a dimension: the one-dimensional array of its name, in the same group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.format import paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.session import Session


def coordinate_path(session: Session, path: str, axis: int) -> str | None:
    """Where the coordinate of a dimension is; None if it has none."""
    node = session.node(path)
    if node is None or node.array is None or node.array.dimension_names is None:
        return None
    name = node.array.dimension_names[axis]
    if name is None:
        return None
    beside = f"{paths.parent(path).rstrip('/')}/{name}"
    found = session.node(beside)
    if found is None or found.array is None or (beside == path and len(node.array.shape) != 1):
        return None
    length = node.array.shape[axis].array_length
    fits = [side.array_length for side in found.array.shape] == [length]
    return beside if fits else None


def coordinate_values(session: Session, path: str, axis: int) -> NDArray[Any] | None:
    """The values of a dimension's coordinate; None if it has none."""
    beside = coordinate_path(session, path, axis)
    if beside is None:
        return None
    return np.asarray(zarr.open_array(session.store, path=beside.strip("/"), mode="r")[...])
