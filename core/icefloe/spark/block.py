"""The part of an array that one call computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.format import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icefloe.session import Session

    type Compute = Callable[[Block], Any]
    """Gives the values of a block, in its shape; runs on executors, maybe more than once."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box of whole chunks, cut off where the write's region ends.

    Attributes:
        path: of the array.
        slices: the elements, one slice for each dimension.
        chunk_shape: of the first chunk.
        dtype: of the array; of what its values mean, where they are to be packed.
        dimensions: their names, None where they have none.
    """

    path: str
    slices: tuple[slice, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dimensions: tuple[str | None, ...]
    _session: Session = field(repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.slices)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def axis(self, dimension: int | str) -> int:
        """The number of a dimension that is named.

        Raises:
            InvalidInputError: there is none.
        """
        if isinstance(dimension, int):
            return dimension
        if dimension not in self.dimensions:
            raise InvalidInputError(f"{self.path} has no dimension {dimension!r}")
        return self.dimensions.index(dimension)

    def indices(self, dimension: int | str) -> NDArray[np.int64]:
        """The positions of the block's elements along a dimension."""
        part = self.slices[self.axis(dimension)]
        return np.arange(part.start, part.stop)

    def mesh(self) -> tuple[NDArray[np.int64], ...]:
        """`indices` of all dimensions, shaped so that they broadcast to the block's shape."""
        return np.ix_(*(self.indices(axis) for axis in range(len(self.slices))))

    def coordinate(self, dimension: int | str) -> NDArray[Any]:
        """The block's part of a dimension's coordinate: the array of its name, beside this one."""
        axis = self.axis(dimension)
        name = self.dimensions[axis]
        if name is None:
            raise InvalidInputError(f"dimension {axis} of {self.path} has no name")
        above = paths.parent(self.path)
        return np.asarray(self.open(f"{above.rstrip('/')}/{name}")[self.slices[axis]])

    def open(self, path: str) -> zarr.Array[Any]:
        """Another array, as it was before the write; read-only, and as it is stored."""
        return zarr.open_array(self._session.store, path=path.strip("/"), mode="r")
