"""Values in the type of an array, if it has room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMBERS = frozenset("biufc")
_TIMES = frozenset("Mm")


def exactly(
    values: NDArray[Any], dtype: np.dtype[Any], path: str, told: NDArray[Any]
) -> NDArray[Any]:
    """Values in a type that has room for them; floats may lose digits, but nothing else does.

    Raises:
        InvalidInputError: naming the first one, out of `told`, that has none.
    """
    if values.dtype == dtype:
        return values
    if values.dtype.kind == "O" and dtype.kind in "biufc":
        # Cast one by one, Python's numbers would be cut off without a word.
        values = np.array(values.tolist())
    kinds = values.dtype.kind + dtype.kind
    if kinds in ("UU", "SS"):
        found = values.astype(dtype)
        lost = found != values
    elif kinds[0] in _TIMES and kinds[1] in _NUMBERS:
        raise InvalidInputError(
            f"{path} holds {dtype}, and the values are {values.dtype}: give times as the counts "
            "that its units tell",
            kind="value-out-of-type",
        )
    elif not (_NUMBERS.issuperset(kinds) or (kinds[1] in _TIMES and kinds[0] in "Mmiu")):
        return values
    else:
        found, lost = _cast(values, dtype)
    if bool(lost.any()):
        raise InvalidInputError(
            f"{path} has no room for {told[lost][0]}: its type is {dtype}", kind="value-out-of-type"
        )
    return found


def _cast(
    values: NDArray[Any], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_] | np.bool_]:
    """Numbers or times in another type, and where it has no room for them."""
    is_complex = values.dtype.kind == "c"
    with np.errstate(invalid="ignore", over="ignore"):
        if is_complex and dtype.kind != "c":
            found, lost = _cast(values.real, dtype)
            return found, lost | (values.imag != 0)
        found = values.astype(dtype)
        if dtype.kind in "fc":
            return found, np.isinf(found) & np.isfinite(values)
        lost = found.astype(values.dtype) != values
    if dtype.kind in _TIMES:
        return found, lost & ~np.isnat(found)
    if dtype.kind in "iu" and values.dtype.kind in "iu":
        # Numbers of 64 bits come back from the other sign as they were.
        lost |= (found < 0) != (values < 0)
    elif dtype.kind in "iu" and values.dtype.kind == "f":
        limit = np.iinfo(dtype)
        lost |= ~((values >= float(limit.min)) & (values < float(limit.max) + 1))
    return found, lost
