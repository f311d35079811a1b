"""Conditions and splitting rules as JSON, tagged as serde does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.config import conditions
from icefloe.config.conditions import ManifestSplitDimCondition, Unrecognized
from icefloe.config.wire import COUNT32, TEXT, U32, U64, invalid, malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.config.settings import SplitRule
    from icefloe.format.flexbuffers import JSON


@dataclass(frozen=True, slots=True)
class Condition:
    """Terms as serde tags them; `true` and `false` are the names of the constants."""

    cls: Callable[[conditions.Term], Any]
    constants: Mapping[str, bool]

    def decode(self, value: JSON, place: str) -> Any:
        return self.cls(self._term(value))

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        return self._tree(value.term, place)

    def _term(self, value: JSON) -> conditions.Term:
        match value:
            case str() if value in self.constants:
                return conditions.Constant(self.constants[value])
            case {"or": list(parts), **rest} if not rest:
                return conditions.AnyOf(tuple(map(self._term, parts)))
            case {"and": list(parts), **rest} if not rest:
                return conditions.AllOf(tuple(map(self._term, parts)))
            case {"path_matches": {"regex": str(regex)}}:
                return conditions.PathMatches(regex)
            case {"name_matches": {"regex": str(regex)}}:
                return conditions.NameMatches(regex)
            case {"num_refs": {"from": low, "to": high}} if _is_bound(low) and _is_bound(high):
                return conditions.NumRefs(_bound(low), _bound(high))
            case _:
                return Unrecognized.of(value)

    def _tree(self, term: conditions.Term, place: str) -> JSON:
        match term:
            case conditions.Constant(value=value):
                return next(name for name, known in self.constants.items() if known == value)
            case conditions.AnyOf(terms=terms):
                return {"or": [self._tree(part, place) for part in terms]}
            case conditions.AllOf(terms=terms):
                return {"and": [self._tree(part, place) for part in terms]}
            case conditions.PathMatches(regex=regex):
                return {"path_matches": {"regex": TEXT.encode(regex, place, None)}}
            case conditions.NameMatches(regex=regex):
                return {"name_matches": {"regex": TEXT.encode(regex, place, None)}}
            case conditions.NumRefs(low=low, high=high):
                return {"num_refs": {"from": _limit(low, place), "to": _limit(high, place)}}
            case Unrecognized():
                return term.raw


def _is_bound(value: JSON) -> bool:
    if isinstance(value, dict) and len(value) == 1:
        ((name, number),) = value.items()
        return name in ("Included", "Excluded") and type(number) is int
    return value == "Unbounded"


def _bound(value: Any) -> conditions.Bound | None:
    if value == "Unbounded":
        return None
    ((name, number),) = value.items()
    return conditions.Bound(number, included=name == "Included")


def _limit(bound: conditions.Bound | None, place: str) -> JSON:
    if bound is None:
        return "Unbounded"
    number = U32.encode(bound.value, place, None)
    return {"Included" if bound.included else "Excluded": number}


@dataclass(frozen=True, slots=True)
class Dimension:
    def decode(self, value: JSON, place: str) -> conditions.DimCondition:
        match value:
            case "Any":
                return ManifestSplitDimCondition.Any()
            case {"Axis": int(axis)}:
                return ManifestSplitDimCondition.Axis(axis)
            case {"DimensionName": str(regex)}:
                return ManifestSplitDimCondition.DimensionName(regex)
            case _:
                return Unrecognized.of(value)

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        match value:
            case ManifestSplitDimCondition.Any():
                return "Any"
            case ManifestSplitDimCondition.Axis(axis=axis):
                return {"Axis": U64.encode(axis, place, None)}
            case ManifestSplitDimCondition.DimensionName(regex=regex):
                return {"DimensionName": TEXT.encode(regex, place, None)}
            case Unrecognized():
                return value.raw
            case _:
                raise invalid(place, f"{value!r} is no condition on a dimension")


@dataclass(frozen=True, slots=True)
class Rules:
    """Pairs of an array's condition and a list of dimensions' conditions with sizes."""

    def decode(self, value: JSON, place: str) -> tuple[SplitRule, ...]:
        if not isinstance(value, list):
            raise malformed(place, value, "a list")
        return tuple(self._rule(rule, f"{place}[{row}]") for row, rule in enumerate(value))

    def _rule(self, value: JSON, place: str) -> SplitRule:
        match value:
            case [array, list(sizes)]:
                return SPLIT_IF.decode(array, place), tuple(
                    self._size(size, place) for size in sizes
                )
            case _:
                raise malformed(place, value, "a pair of a condition and a list")

    def _size(self, value: JSON, place: str) -> tuple[conditions.DimCondition, int]:
        match value:
            case {"condition": dimension, "num_chunks": number}:
                return DIMENSION.decode(dimension, place), COUNT32.decode(number, place)
            case _:
                raise malformed(place, value, "a map of condition and num_chunks")

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        return [
            [
                SPLIT_IF.encode(array, place, None),
                [
                    {
                        "condition": DIMENSION.encode(dimension, place, None),
                        "num_chunks": COUNT32.encode(size, place, None),
                    }
                    for dimension, size in sizes
                ],
            ]
            for array, sizes in value
        ]


DIMENSION = Dimension()
RULES = Rules()
PRELOAD_IF = Condition(conditions.ManifestPreloadCondition, {"true": True, "false": False})
SPLIT_IF = Condition(conditions.ManifestSplitCondition, {"any_array": True})
