"""A variable of an HDF5 file, described as zarr describes arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

STRING = "string"
"""The type of texts of any length."""


@dataclass(frozen=True, slots=True)
class Variable:
    """What one file says of one variable; all of it small and hashable.

    Attributes:
        name: its path in the group that is read, such as `t2m` or `surface/t2m`.
        shape: in elements.
        dimensions: their names, None where the file gives none.
        dtype: numpy's name of the type with its byte order, or `string`.
        chunks: their shape; of what is not chunked, the shape.
        codecs: those after the serializer, as JSON.
        fill: the bytes of one element: what was never written reads so.
        attributes: as JSON, such as xarray reads them from zarr.
        obstacle: why its chunks cannot be referred to; empty if they can.
    """

    name: str
    shape: tuple[int, ...]
    dimensions: tuple[str | None, ...]
    dtype: str
    chunks: tuple[int, ...]
    codecs: str
    fill: bytes
    attributes: str
    obstacle: str = ""

    @property
    def is_coordinate(self) -> bool:
        """Whether it has the values of a dimension."""
        return self.dimensions == (self.name.rpartition("/")[2],)

    @property
    def nbytes(self) -> int:
        """How much memory its values take; for texts, a guess."""
        return int(np.prod(self.shape)) * (32 if self.dtype == STRING else len(self.fill))


_SELF_DESCRIBING = frozenset(f"numcodecs.{name}" for name in ("zlib", "bz2", "zstd", "blosc"))


def decoding(codecs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What of the codecs matters to a reader: what was compressed says how by itself."""
    return [codec["name"] if codec["name"] in _SELF_DESCRIBING else dict(codec) for codec in codecs]


def values_of(variable: Variable, data: bytes) -> NDArray[Any]:
    """What `read_values` gave, as an array again."""
    if variable.dtype == STRING:
        texts: NDArray[Any] = np.array(json.loads(data or b"[]"), np.dtypes.StringDType())
        return texts.reshape(variable.shape)
    return np.frombuffer(data, np.dtype(variable.dtype)).reshape(variable.shape)
