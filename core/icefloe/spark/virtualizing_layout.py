"""What arrays the files of `virtualize` make together: whether they agree, and where each goes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.spark.cf_packing import fill_values
from icefloe.spark.cf_times import TimeUnits
from icefloe.spark.hdf5_variable import STRING, decoding
from icefloe.spark.virtualizing_staging import loading

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from icefloe.spark.hdf5_variable import Variable
    from icefloe.spark.virtualizing_staging import StagedFile

    type Ints = NDArray[np.int64]

# Values mean something else where one of these differs.
MEANING = frozenset(
    {"units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """One variable of all files.

    Attributes:
        variable: as the first file has it, with the shape and dimensions of all together.
        attributes: those that all files have, with one value.
        axis: along which files follow each other; None if the first file speaks for all.
        is_new: the files do not have that axis.
        load: copy the values, do not refer to them.
        units: of time counts, for each kind of file: those of the variable, or of the one that it
            has the bounds of; empty where it counts no time.
        bounds_of: the variable that it has the bounds of, if there is one.
        recode_to: the units in which all files shall count; None: files are taken as they are.
        may_load: all files had their values staged.
        dtypes: what the values of each file are stored in.
        numbers: the files, in order.
        places: the number of the variable in each of them.
        edges: where each begins along the axis, in elements, and where the last ends.
    """

    variable: Variable
    attributes: dict[str, Any]
    axis: int | None
    is_new: bool
    load: bool
    may_load: bool
    numbers: Ints
    places: Ints
    edges: Ints
    dtypes: tuple[str, ...]
    units: tuple[TimeUnits, ...] = ()
    bounds_of: str | None = None
    recode_to: TimeUnits | None = None

    @property
    def name(self) -> str:
        return self.variable.name


class Files:
    """The files in order; what many of them share is looked at once."""

    def __init__(
        self,
        files: Sequence[StagedFile],
        numbers: Ints,
        concat: str | int | None,
        *,
        new_dim: bool = False,
    ) -> None:
        self._files = [files[number] for number in numbers.tolist()]
        self._numbers = numbers
        self._concat = concat
        self._kinds, self._kind = _distinct([file.variables for file in self._files])
        self._is_new = isinstance(concat, str) and not any(
            concat in variable.dimensions for variable in self._kinds[0]
        )
        if self._is_new and not new_dim:
            self._require_lone(str(concat))

    def require_known(self, option: str, names: frozenset[str]) -> None:
        """Raises InvalidInputError if no file has one of the variables that an option names."""
        there = {each.name for kind in self._kinds for each in kind}
        there.update(*{file.dropped for file in self._files})
        if unknown := names - there:
            raise InvalidInputError(
                f"no file has the variable {', '.join(sorted(unknown))} of {option}=; there are "
                f"{', '.join(sorted(there)) or 'none'}",
                kind="unknown-variable",
            )

    def _require_lone(self, concat: str) -> None:
        """Raises InvalidInputError if nothing says that a name is meant to be a new dimension."""
        if any(each.name == concat and not each.shape for each in self._kinds[0]):
            return
        known = {name for each in self._kinds[0] for name in each.dimensions if name}
        raise InvalidInputError(
            f"no variable has the dimension concat_dim={concat!r}; there are "
            f"{', '.join(sorted(known)) or 'none with names'}. If it shall be a new one, with a "
            "step for each file, say new_dim=True",
            kind="unknown-dimension",
        )

    def join(self, loadable: frozenset[str]) -> list[Joined]:
        """All variables.

        Raises:
            InvalidInputError: files do not agree (kind `inconsistent-files`), or their chunks do
                not fit together (kind `unaligned-files`).
        """
        names = [variable.name for variable in self._kinds[0]]
        for kind, variables in enumerate(self._kinds):
            odd = {variable.name for variable in variables} ^ set(names)
            if odd:
                told = ", ".join(sorted(odd))
                raise self._differs(
                    kind, told, f"is not in all files: leave it out, with drop={sorted(odd)}"
                )
        return [self._join(name, loadable) for name in names]

    def group_attributes(self) -> dict[str, dict[str, Any]]:
        """The groups, and the attributes that all files give them with one value."""
        kinds, _ = _distinct([file.groups for file in self._files])
        documents = [dict(groups) for groups in kinds]
        return {
            name: _common([json.loads(document.get(name, "{}")) for document in documents])
            for name in documents[0]
        }

    def _join(self, name: str, loadable: frozenset[str]) -> Joined:
        places = [[each.name for each in kind].index(name) for kind in self._kinds]
        kinds = [kind[place] for kind, place in zip(self._kinds, places, strict=True)]
        place = np.array(places)[self._kind]
        axis = self._axis(kinds[0])
        bounds_of = self._bounds_of(name)
        units = self._units(kinds, bounds_of) if axis is not None else ()
        self._check(kinds, axis, has_times=bool(units))
        load = any(loading(kind, loadable)[0] for kind in kinds)
        is_mixed = len({(each.step, each.reference) for each in units}) > 1
        is_cast = bool(units) and len({kind.dtype for kind in kinds}) > 1
        is_new = axis is not None and self._is_new
        if is_new:
            kinds = [_with_axis(kind, str(self._concat)) for kind in kinds]
        sizes = np.array([1 if axis is None else kind.shape[axis] for kind in kinds])[self._kind]
        obstacle = None if load else self._obstacle(kinds, axis, sizes)
        if is_mixed:
            obstacle = f"its times are in {units[0].text!r} in one file, and not in all"
        elif is_cast:
            obstacle = f"its times are {kinds[0].dtype} in one file, and not in all"
        lacking = self._without_values(place)
        if lacking is not None and (load or obstacle):
            raise _unfit(name, obstacle or f"{lacking} has too much of it to copy")
        if axis is None and load:
            self._require_equal(kinds[0], place)
        first = kinds[0]
        if axis is not None:
            shape = (*first.shape[:axis], int(sizes.sum()), *first.shape[axis + 1 :])
            first = replace(first, shape=shape)
        count = 1 if axis is None else len(sizes)
        attributes = _common([json.loads(kind.attributes) for kind in kinds])
        if units and bounds_of is None:
            attributes["units"] = units[0].text
        return Joined(
            variable=first,
            attributes=attributes,
            axis=axis,
            is_new=is_new,
            load=load or obstacle is not None,
            may_load=lacking is None,
            numbers=self._numbers[:count],
            places=place[:count],
            edges=np.concatenate([[0], np.cumsum(sizes[:count])]),
            units=tuple(units[kind] for kind in self._kind[:count].tolist()) if units else (),
            bounds_of=bounds_of,
            recode_to=units[0] if is_mixed or is_cast else None,
            dtypes=tuple(kinds[kind].dtype for kind in self._kind[:count].tolist()),
        )

    def _bounds_of(self, name: str) -> str | None:
        """The variable that another one has the bounds of, as the first file tells."""
        group, _, base = name.rpartition("/")
        for each in self._kinds[0]:
            told = json.loads(each.attributes)
            beside = each.name.rpartition("/")[0] == group
            if beside and base in (told.get("bounds"), told.get("climatology")):
                found: str = each.name
                return found
        return None

    def _units(self, kinds: Sequence[Variable], bounds_of: str | None) -> tuple[TimeUnits, ...]:
        """In which units each kind of file counts time; none if a variable counts no time."""
        if any(kind.dtype == STRING for kind in kinds):
            return ()
        told = [json.loads(kind.attributes) for kind in kinds]
        if bounds_of is not None and not any("units" in each for each in told):
            # Bounds have the units of what they are bounds of, mostly without saying so.
            own = [{each.name: each for each in kind}[bounds_of] for kind in self._kinds]
            told = [json.loads(each.attributes) for each in own]
        units = [TimeUnits.of(each.get("units"), each.get("calendar")) for each in told]
        packed = any({"scale_factor", "add_offset"} & each.keys() for each in told)
        known = [each for each in units if each is not None]
        return () if packed or len(known) < len(units) else tuple(known)

    def _axis(self, variable: Variable) -> int | None:
        concat = self._concat
        if isinstance(concat, int):
            return concat if len(variable.shape) > concat else None
        if self._is_new:
            # Coordinates of the other dimensions and lone values are the same in all files.
            stays = variable.is_coordinate or (not variable.shape and variable.name != concat)
            return None if stays else 0
        return variable.dimensions.index(concat) if concat in variable.dimensions else None

    def _check(self, kinds: Sequence[Variable], axis: int | None, *, has_times: bool) -> None:
        """What all files must agree on, whether values are copied or not."""
        first = kinds[0]
        skip = None if self._is_new else axis
        for number, kind in enumerate(kinds):
            sides = [_without(each.shape, skip) for each in (first, kind)]
            pairs = {
                "dimensions": (first.dimensions, kind.dimensions),
                "shape": (*sides,),
                "type": (first.dtype, kind.dtype),
                **_meanings(first, kind),
            }
            if has_times:
                # They are counted anew where they differ.
                pairs.pop("attribute units")
                if {np.dtype(each.dtype).kind for each in (first, kind)} <= {*"iuf"}:
                    pairs.pop("type")
                    if not any(map(_time_fills, (first, kind))):
                        pairs.pop("attribute _FillValue")
                        pairs.pop("attribute missing_value")
            for what, (one, other) in pairs.items():
                if one != other:
                    told = f"has the {what} {other}, and {one} in the first file"
                    raise self._differs(number, first.name, told)

    def _obstacle(self, kinds: Sequence[Variable], axis: int | None, sizes: Ints) -> str | None:
        """Why references to the chunks of all files do not make one array; None if they do."""
        first = kinds[0]
        for number, kind in enumerate(kinds):
            for what in ("chunks", "codecs", "fill"):
                one, other = getattr(first, what), getattr(kind, what)
                if what == "codecs":
                    one, other = decoding(json.loads(one)), decoding(json.loads(other))
                if one != other:
                    at = self._first_of(number)
                    return f"in {at} its {what} are {other}, and {one} in the first file"
        if axis is None:
            return None
        size = first.chunks[axis]
        odd = np.flatnonzero(sizes[:-1] % max(size, 1))
        if not len(odd):
            return None
        at = self._files[int(odd[0])].location
        return (
            f"{at} has {int(sizes[odd[0]])} elements of it, which do not fill chunks of {size}, "
            "and only the last file may end within a chunk"
        )

    def _without_values(self, place: Ints) -> str | None:
        """The first file that had no values of a variable staged."""
        pairs = zip(self._files, place.tolist(), strict=True)
        return next((file.location for file, at in pairs if file.loaded[at] is None), None)

    def _require_equal(self, variable: Variable, place: Ints) -> None:
        """That files agree on what the first one speaks for."""
        first = self._files[0].loaded[int(place[0])]
        for file, at in zip(self._files, place.tolist(), strict=True):
            if file.loaded[at] != first:
                raise InvalidInputError(
                    f"variable {variable.name!r} has other values in {file.location} than in the "
                    f"first file: leave it out, with drop=[{variable.name!r}]",
                    kind="inconsistent-files",
                )

    def _differs(self, kind: int, name: str, told: str) -> InvalidInputError:
        return InvalidInputError(
            f"variable {name!r} of {self._first_of(kind)} {told}", kind="inconsistent-files"
        )

    def _first_of(self, kind: int) -> str:
        row = int(np.flatnonzero(self._kind == kind)[0])
        location: str = self._files[row].location
        return location


def _distinct[T: Hashable](items: Sequence[T]) -> tuple[list[T], Ints]:
    """Each value once, in order, and for each item the number of its value."""
    known: dict[T, int] = {}
    by_id: dict[int, int] = {}
    for item in items:
        # Hashing is slow, and items of one task are mostly one object.
        if id(item) not in by_id:
            by_id[id(item)] = known.setdefault(item, len(known))
    return list(known), np.array([by_id[id(item)] for item in items], np.int64)


def _common(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all documents have, with one value. Compared as text: NaN does not equal itself."""
    first, *others = documents
    return {
        key: value
        for key, value in first.items()
        if all(key in other and json.dumps(other[key]) == json.dumps(value) for other in others)
    }


def _meanings(first: Variable, second: Variable) -> dict[str, tuple[str, str]]:
    one, other = json.loads(first.attributes), json.loads(second.attributes)
    return {
        f"attribute {name}": (json.dumps(one.get(name)), json.dumps(other.get(name)))
        for name in sorted(MEANING)
    }


def _time_fills(variable: Variable) -> list[Any]:
    """What stands for no time; NaN is no count by itself."""
    told = json.loads(variable.attributes)
    return fill_values(variable.name, told, np.dtype(variable.dtype))


def _unfit(name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"variable {name!r}: {reason}: copy it, with loadable=[{name!r}], or leave it out, with "
        f"drop=[{name!r}]",
        kind="unaligned-files",
    )


def _with_axis(variable: Variable, name: str) -> Variable:
    return replace(
        variable,
        shape=(1, *variable.shape),
        chunks=(1, *variable.chunks),
        dimensions=(name, *variable.dimensions),
    )


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int | str, ...]:
    return tuple("any" if at == axis else size for at, size in enumerate(shape))
