"""How a FlatBuffers table is laid out: the vocabulary of the generated `wire` module."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

_BYTE = np.dtype("u1")


class Kind(Enum):
    """What a field of a table holds."""

    SCALAR = auto()
    STRUCT = auto()
    STRING = auto()
    VECTOR = auto()
    """A vector of scalars or structs."""
    STRINGS = auto()
    """A vector of strings."""
    TABLE = auto()
    TABLES = auto()
    """A vector of tables."""
    UNION = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field. `dtype` is that of the scalar, the struct or the vector's element.

    A union takes two slots: its tag lives in `slot - 1`, its table in `slot`.
    """

    name: str
    slot: int
    kind: Kind
    dtype: np.dtype[np.void] | np.dtype[np.generic] = _BYTE
    alignment: int = 1
    default: int = 0
    required: bool = False
    tables: tuple[Table, ...] = ()
    """The table of a TABLE or TABLES field; the members of a UNION in tag order (tag 1 first)."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table's fields by name."""

    name: str
    fields: dict[str, Field]

    @property
    def slots(self) -> int:
        """How many slots this version of the schema knows."""
        return max((field.slot for field in self.fields.values()), default=-1) + 1
