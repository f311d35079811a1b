"""Conditions on arrays and dimensions, by which manifests are split and preloaded."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.format.flexbuffers import JSON


@dataclass(frozen=True, slots=True)
class Unrecognized:
    """A value of a newer writer, which we keep and do not understand; `text` is its JSON."""

    text: str

    @classmethod
    def of(cls, value: JSON) -> Self:
        return cls(json.dumps(value))

    @property
    def raw(self) -> JSON:
        value: JSON = json.loads(self.text)
        return value


@dataclass(frozen=True, slots=True)
class AnyOf:
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class PathMatches:
    regex: str


@dataclass(frozen=True, slots=True)
class NameMatches:
    regex: str


@dataclass(frozen=True, slots=True)
class Bound:
    value: int
    included: bool


@dataclass(frozen=True, slots=True)
class NumRefs:
    """None is no bound."""

    low: Bound | None
    high: Bound | None


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool


type Term = AnyOf | AllOf | PathMatches | NameMatches | NumRefs | Constant | Unrecognized


@dataclass(frozen=True, slots=True)
class _Condition:
    term: Term

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        return cls(AnyOf(tuple(condition.term for condition in conditions)))

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        return cls(AllOf(tuple(condition.term for condition in conditions)))

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """`regex` is found in the array's absolute path."""
        return cls(PathMatches(regex))

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """`regex` is found in the last part of the array's path."""
        return cls(NameMatches(regex))

    def __or__(self, other: Self) -> Self:
        return self.or_conditions([self, other])

    def __and__(self, other: Self) -> Self:
        return self.and_conditions([self, other])


class ManifestPreloadCondition(_Condition):
    """Which manifests a session fetches before it is asked to."""

    __slots__ = ()

    @classmethod
    def num_refs(cls, from_refs: int | None, to_refs: int | None) -> Self:
        """The manifest has at least `from_refs` and fewer than `to_refs`."""
        low = None if from_refs is None else Bound(from_refs, included=True)
        high = None if to_refs is None else Bound(to_refs, included=False)
        return cls(NumRefs(low, high))

    @classmethod
    def true(cls) -> Self:
        return cls(Constant(value=True))

    @classmethod
    def false(cls) -> Self:
        return cls(Constant(value=False))

    def matches(self, path: str, num_refs: int) -> bool:
        return _holds(self.term, _absolute(path), num_refs)


class ManifestSplitCondition(_Condition):
    """Which arrays a rule of splitting is for."""

    __slots__ = ()

    @classmethod
    def AnyArray(cls) -> Self:  # noqa: N802 the official name
        return cls(Constant(value=True))

    def matches(self, path: str) -> bool:
        return _holds(self.term, _absolute(path), 0)


class ManifestSplitDimCondition:
    """Which dimensions a size is for."""

    @dataclass(frozen=True, slots=True)
    class Axis:
        """The dimension with this number, from 0."""

        axis: int

    @dataclass(frozen=True, slots=True)
    class DimensionName:
        """`regex` is found in the dimension's name; a dimension without one never matches."""

        regex: str

    @dataclass(frozen=True, slots=True)
    class Any:
        """Each dimension that no condition before it took."""


type DimCondition = (
    ManifestSplitDimCondition.Axis
    | ManifestSplitDimCondition.DimensionName
    | ManifestSplitDimCondition.Any
    | Unrecognized
)

# The coordinate names that cf-xarray guesses axes by.
_COORDINATES = (
    r"^\bt\b$|^(time|min|hour|day|week|month|year)[0-9]*$",
    r"^(z|nav_lev|gdep|lv_|[o]*lev|bottom_top|sigma|h(ei)?ght|altitude|depth|isobaric|pres"
    r"|isotherm)[a-z_]*[0-9]*$",
    r"^(y|j|nlat|rlat|nj)$",
    r"^y?(nav_lat|lat|gphi)[a-z0-9]*$",
    r"^x?(nav_lon|lon|glam)[a-z0-9]*$",
    r"^(x|i|nlon|rlon|ni)$",
)
DEFAULT_PRELOAD = ManifestPreloadCondition.or_conditions(
    map(ManifestPreloadCondition.name_matches, _COORDINATES)
) & ManifestPreloadCondition.num_refs(None, 1001)


def preload_matches(condition: ManifestPreloadCondition | None, path: str, num_refs: int) -> bool:
    """Whether to preload this manifest; without a condition, if it is one of small coordinates."""
    return (condition or DEFAULT_PRELOAD).matches(path, num_refs)


def dimension_matches(condition: DimCondition, axis: int, name: str | None) -> bool:
    match condition:
        case ManifestSplitDimCondition.Any():
            return True
        case ManifestSplitDimCondition.Axis(axis=wanted):
            return wanted == axis
        case ManifestSplitDimCondition.DimensionName(regex=regex):
            return bool(name) and _is_found(regex, name or "")
        case Unrecognized():
            return False


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def _holds(term: Term, path: str, num_refs: int) -> bool:
    match term:
        case AnyOf(terms=terms):
            return any(_holds(part, path, num_refs) for part in terms)
        case AllOf(terms=terms):
            return all(_holds(part, path, num_refs) for part in terms)
        case PathMatches(regex=regex):
            return _is_found(regex, path)
        case NameMatches(regex=regex):
            return _is_found(regex, path.rpartition("/")[2])
        case NumRefs(low=low, high=high):
            return _is_within(num_refs, low, high)
        case Constant(value=value):
            return value
        case Unrecognized():
            return False


def _is_within(number: int, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or number > low.value or (low.included and number == low.value)
    below = high is None or number < high.value or (high.included and number == high.value)
    return above and below


def _is_found(regex: str, text: str) -> bool:
    pattern = _compiled(regex)
    return pattern is not None and pattern.search(text) is not None


# Look-around, backreferences and conditionals, which the official engine refuses.
_PYTHON_ONLY = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:<?[=!]|P=|>|\()|\\[1-9])")


@lru_cache(maxsize=1024)
def _compiled(regex: str) -> re.Pattern[str] | None:
    """None if either engine refuses the regex; the official library lets such a one never match."""
    if _PYTHON_ONLY.search(regex):
        return None
    with warnings.catch_warnings():
        # Python warns where the official engine nests sets.
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(regex)
        except (re.error, FutureWarning, OverflowError, RecursionError):
            return None
