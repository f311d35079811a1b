"""What JSON configurations are made of, both ways: numbers, texts, choices and records.

A codec's `decode` takes the place for messages; its `encode` also takes what was there before, and
keeps the keys of it that nobody here knows.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.config.conditions import Unrecognized
from icefloe.errors import FormatError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum

    from icefloe.format.flexbuffers import JSON


class Codec(Protocol):
    def decode(self, value: JSON, place: str) -> Any: ...

    def encode(self, value: Any, place: str, previous: JSON) -> JSON: ...


def malformed(place: str, value: JSON, wanted: str) -> FormatError:
    return FormatError(
        f"{place}: {wanted} belongs there, not {type(value).__name__}",
        kind="config-deserialization",
    )


def invalid(place: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: {reason}", kind="invalid-config")


@dataclass(frozen=True, slots=True)
class Integer:
    """Limits are those of the official library's types: it could not open what exceeds them."""

    low: int
    high: int

    def decode(self, value: JSON, place: str) -> int:
        if type(value) is not int:
            raise malformed(place, value, "an integer")
        return value

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        number = None if isinstance(value, bool) else _index(value)
        if number is None or not self.low <= number <= self.high:
            raise invalid(place, f"{value!r} is no integer from {self.low} to {self.high}")
        return number


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


@dataclass(frozen=True, slots=True)
class Plain:
    kind: type[bool | str]
    wanted: str

    def decode(self, value: JSON, place: str) -> Any:
        if type(value) is not self.kind:
            raise malformed(place, value, self.wanted)
        return value

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        if not isinstance(value, self.kind):
            raise invalid(place, f"{value!r} is not {self.wanted}")
        encoded: JSON = value
        return encoded


@dataclass(frozen=True, slots=True)
class Choice:
    """An enumeration, by the name of each member."""

    names: Mapping[str, Enum]

    def decode(self, value: JSON, place: str) -> Enum | Unrecognized:
        found = self.names.get(value) if isinstance(value, str) else None
        return found or Unrecognized.of(value)

    def encode(self, value: Any, place: str, previous: JSON) -> JSON:
        if isinstance(value, Unrecognized):
            return value.raw
        for name, member in self.names.items():
            if member is value:
                return name
        raise invalid(place, f"{value!r} is none of {', '.join(self.names)}")


@dataclass(frozen=True, slots=True)
class Texts:
    """A map of texts, replaced as a whole."""

    def decode(self, value: JSON, place: str) -> dict[str, str]:
        if not isinstance(value, dict):
            raise malformed(place, value, "a map")
        return {key: text for key, text in value.items() if isinstance(text, str)}

    def encode(self, value: Any, place: str, previous: JSON) -> dict[str, JSON]:
        return {key: TEXT.encode(text, f"{place}.{key}", None) for key, text in value.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass; what is null or missing takes the dataclass's default."""

    cls: Callable[..., Any]
    fields: Mapping[str, Codec]
    required: frozenset[str] = frozenset()

    def decode(self, value: JSON, place: str) -> Any:
        if not isinstance(value, dict):
            raise malformed(place, value, "a map")
        present = {name: value[name] for name in self.fields if value.get(name) is not None}
        if missing := self.required - present.keys():
            raise FormatError(
                f"{place}: no {', '.join(sorted(missing))}", kind="config-deserialization"
            )
        return self.cls(
            **{
                name: self.fields[name].decode(part, f"{place}.{name}")
                for name, part in present.items()
            }
        )

    def encode(self, value: Any, place: str, previous: JSON) -> dict[str, JSON]:
        tree = dict(previous) if isinstance(previous, dict) else {}
        for name, codec in self.fields.items():
            part = getattr(value, name)
            tree[name] = (
                None if part is None else codec.encode(part, f"{place}.{name}", tree.get(name))
            )
        return tree


TEXT = Plain(str, "text")
TEXTS = Texts()
BOOL = Plain(bool, "a boolean")
U8, U16, U32 = Integer(0, 2**8 - 1), Integer(0, 2**16 - 1), Integer(0, 2**32 - 1)
U64 = Integer(0, 2**64 - 1)
I32 = Integer(-(2**31), 2**31 - 1)
COUNT16, COUNT32, COUNT64 = Integer(1, 2**16 - 1), Integer(1, 2**32 - 1), Integer(1, 2**64 - 1)


def named(codec: Codec, *names: str) -> dict[str, Codec]:
    return dict.fromkeys(names, codec)
