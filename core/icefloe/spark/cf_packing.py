"""What stored numbers mean: the attributes of the CF conventions that pack them, and back."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark.exact_casting import exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.session import Session

FILLS = ("_FillValue", "missing_value")
_RAW = "take values as they are stored, with the option decode=false"


@dataclass(frozen=True, slots=True)
class CfPacking:
    """How the values of one array are packed.

    Attributes:
        path: of the array.
        stored: its type, in native byte order.
        seen: that type, after `_Unsigned`.
        scale: and offset are 1 and 0 where there is none.
        fills: stored values that stand for no value; the first is written.
        attributes: those that make a difference.
    """

    path: str
    stored: np.dtype[Any]
    seen: np.dtype[Any]
    scale: float
    offset: float
    fills: tuple[Any, ...]
    attributes: tuple[str, ...]

    @classmethod
    def of(cls, array: zarr.Array[Any], *, decode: bool = True) -> CfPacking:
        """What the attributes of an array say; nothing, if they are not to count.

        Raises:
            InvalidInputError: one of them makes no sense.
        """
        path = "/" + array.path.strip("/")
        stored = array.dtype
        # Texts of numpy have no byte order, and do not say so.
        stored = stored if stored.kind == "T" else stored.newbyteorder("=")
        plain = cls(path, stored, stored, 1.0, 0.0, (), ())
        given = dict(array.attrs)
        if not decode or stored.kind not in "iuf":
            return plain
        seen = _seen(stored, given.get("_Unsigned"))
        scale, offset = (
            _number(path, given, "scale_factor", 1.0),
            _number(path, given, "add_offset", 0.0),
        )
        if scale == 0:
            raise _senseless(path, "scale_factor", scale)
        fills = {
            name: _fills(path, name, given[name], stored, seen) for name in FILLS if name in given
        }
        counts: dict[str, bool] = {
            "_Unsigned": seen != stored,
            "scale_factor": scale != 1,
            "add_offset": offset != 0,
        }
        counts |= {name: bool(values) for name, values in fills.items()}
        distinct = tuple(dict.fromkeys(value for values in fills.values() for value in values))
        attributes = tuple(name for name, does in counts.items() if does)
        return cls(path, stored, seen, scale, offset, distinct, attributes)

    @property
    def is_scaled(self) -> bool:
        return self.scale != 1 or self.offset != 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what values mean."""
        return np.dtype("f8") if self.is_scaled else self.seen

    @property
    def float_dtype(self) -> np.dtype[Any]:
        """What `decode_to_nan` gives."""
        return self.dtype if not self.attributes or self.dtype.kind == "f" else np.dtype("f8")

    def decode(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """What stored values mean, and where there is none; None: there is one everywhere."""
        if not self.attributes:
            return values, None
        native = values.astype(self.stored, copy=False)
        missing = np.isin(native, np.array(self.fills, self.stored)) if self.fills else None
        if self.seen != self.stored:
            native = native.view(self.seen)
        if self.is_scaled:
            native = native.astype("f8") * self.scale + self.offset
        return native, missing

    def decode_to_nan(self, values: NDArray[Any]) -> NDArray[Any]:
        """The same as floats, with NaN where there is no value; plain values as they are."""
        found, missing = self.decode(values)
        if not self.attributes:
            return found
        floats = found.astype(self.float_dtype, copy=False)
        return floats if missing is None else np.where(missing, floats.dtype.type("nan"), floats)

    def encode(
        self, values: NDArray[Any], missing: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """How values are stored.

        Raises:
            InvalidInputError: the type has no room for one of them, or nothing stands for none.
        """
        missing = self._missing(values, missing)
        wanted = values
        if self.is_scaled:
            wanted = (values.astype("f8") - self.offset) / self.scale
            wanted = np.rint(wanted) if self.seen.kind in "iu" else wanted
        if missing is not None:
            # Any number will do where there is none.
            wanted = np.where(missing, wanted.dtype.type(0), wanted)
        stored = exactly(wanted, self.seen, self.path, values)
        if self.seen != self.stored:
            stored = stored.view(self.stored)
        if not self.fills:
            return stored
        taken = np.isin(stored, np.array(self.fills, self.stored))
        taken = taken if missing is None else taken & ~missing
        if bool(taken.any()):
            raise InvalidInputError(
                f"{values[taken][0]} would be stored in {self.path} as {stored[taken][0]}, which "
                "stands for no value there: write null, or another value",
                kind="value-is-fill",
            )
        if missing is None:
            return stored
        return np.where(missing, self.stored.type(self.fills[0]), stored)

    def encode_any(self, values: Any) -> NDArray[Any]:
        """The same for whatever numpy makes an array of; what is masked is no value."""
        given = np.asarray(values)
        mask = np.ma.getmask(values)
        if not np.any(mask):
            return self.encode(np.atleast_1d(given)).reshape(given.shape)
        if self.stored.kind == "f" and not self.fills:
            return self.encode(np.where(mask, np.nan, given))
        return self.encode(given, np.broadcast_to(mask, given.shape))

    def _missing(
        self, values: NDArray[Any], missing: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_] | None:
        """Where nothing is to be written; NaN is nothing where there is a value for it."""
        if self.fills and values.dtype.kind == "f":
            nan = np.isnan(values)
            missing = nan if missing is None else missing | nan
        if missing is None or not bool(missing.any()):
            return None
        if not self.fills:
            raise InvalidInputError(
                f"{self.path} has no _FillValue: there is nothing to write for null, or for what "
                "is masked",
                kind="null-in-row",
            )
        return missing


def fill_values(path: str, attributes: Mapping[str, Any], stored: np.dtype[Any]) -> list[Any]:
    """The stored numbers that stand for no value, as attributes tell."""
    return [
        value
        for name in FILLS
        if name in attributes
        for value in _fills(path, name, attributes[name], stored, stored)
    ]


def require_choice(session: Session, paths: Iterable[str]) -> None:
    """Raises InvalidInputError if an array is packed, and nobody said what values for it are."""
    for path in paths:
        array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        require_plain(
            CfPacking.of(array),
            "Say decode=True if values are what they mean, to be packed, or decode=False if they "
            "are what is stored",
        )


def require_plain(packing: CfPacking, what: str) -> None:
    """Raises InvalidInputError if stored values are not what they mean."""
    if packing.attributes:
        raise InvalidInputError(
            f"{packing.path} has {', '.join(packing.attributes)}: stored values are not what they "
            f"mean. {what}",
            kind="packed-values",
        )


def _seen(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    wanted = {"true": "u", "false": "i"}.get(str(unsigned).lower())
    if wanted is None or stored.kind not in "iu":
        return stored
    return np.dtype(f"{wanted}{stored.itemsize}")


def _number(path: str, given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _senseless(path, name, value)
    return number


def _fills(
    path: str, name: str, value: Any, stored: np.dtype[Any], seen: np.dtype[Any]
) -> list[Any]:
    """The stored values that an attribute means; NaN is a plain value."""
    found = []
    for each in value if isinstance(value, list) else [value]:
        number = _fill(path, name, each)
        if stored.kind == "f":
            if not math.isnan(number):
                found.append(stored.type(number))
            continue
        if not math.isfinite(number) or number != int(number):
            # No whole number equals it.
            continue
        whole = int(number)
        if any(np.iinfo(kind).min <= whole <= np.iinfo(kind).max for kind in (stored, seen)):
            unsigned = np.array([whole % 2 ** (8 * stored.itemsize)], f"u{stored.itemsize}")
            found.append(unsigned.view(stored)[0])
    return found


def _fill(path: str, name: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            # xarray writes floats so.
            (number,) = struct.unpack("<d", base64.standard_b64decode(value))
        except (binascii.Error, struct.error):
            raise _senseless(path, name, value) from None
        return number
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _senseless(path, name, value)
    return value


def _senseless(path: str, name: str, value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"the attribute {name} of {path} is {value!r}: {_RAW}", kind="invalid-attribute"
    )
