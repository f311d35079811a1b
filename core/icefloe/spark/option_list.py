"""The options of the data sources: which there are, and which of them reading and writing know."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Use(StrEnum):
    """What an option may be given to."""

    READ = "read"
    WRITE = "write"
    WRITE_STREAM = "writeStream"
    READ_STREAM = "readStream"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the data sources.

    Attributes:
        name: in lower case: Spark does not tell cases apart.
        meaning: in a few words.
        default: what counts without it.
        uses: what knows it.
    """

    name: str
    meaning: str
    default: str
    uses: Collection[Use]


_ROWS = (Use.READ, Use.WRITE, Use.WRITE_STREAM)
_WRITES = (Use.WRITE, Use.WRITE_STREAM)

OPTIONS = (
    Option("url", "of the repository", "required", (*Use,)),
    Option("storage_options", "of the repository, as JSON, none of them secret", "{}", (*Use,)),
    Option("credentials", "`module:function` that gives secret options", "none", (*Use,)),
    Option("branch", "to read or to commit to", "main", (*Use,)),
    Option("tag", "to read", "none", (Use.READ,)),
    Option("snapshot_id", "to read", "none", (Use.READ,)),
    Option(
        "as_of", "the branch as it was then, such as 2026-11-18T06:00Z; UTC", "now", (Use.READ,)
    ),
    Option("array", "its path", "required", _ROWS),
    Option(
        "coordinates",
        "`true`: dimensions that have a coordinate are told by its labels; `false`: all by "
        "position; or the columns that hold labels, with commas",
        "true",
        _ROWS,
    ),
    Option(
        "decode",
        "`true`: `scale_factor`, `add_offset`, `_FillValue`, `missing_value` and `_Unsigned` are "
        "applied; `false`: values are as they are stored",
        "true",
        _ROWS,
    ),
    Option("value", "the column of values", "value", _ROWS),
    Option("columns", "read these only, with commas", "all", (Use.READ,)),
    Option(
        "columns", "the columns of the dimensions, in their order", "the dimensions' names", _WRITES
    ),
    Option("filters", "whether filters on dimensions leave chunks out", "true", (Use.READ,)),
    Option(
        "virtual_chunks", "prefixes of containers that may be read from, with commas", "none", _ROWS
    ),
    Option("on_duplicate", "two rows for one place: `error`, or `any` of them", "error", _WRITES),
    Option("message", "of the commit", "says the array", _WRITES),
    Option("write_key", "makes the write happen once", "a new one", (Use.WRITE,)),
    Option("allow_empty", "whether a write without rows is well", "false", (Use.WRITE,)),
    Option("from", "where it begins: `latest` or `earliest`", "latest", (Use.READ_STREAM,)),
)

_OF_SPARK = {
    Use.READ: frozenset[str](),
    Use.WRITE: frozenset[str](),
    Use.WRITE_STREAM: frozenset({"checkpointlocation", "queryname"}),
    Use.READ_STREAM: frozenset[str](),
}
"""What Spark hands over of its own."""


def known(use: Use) -> list[str]:
    return [option.name for option in OPTIONS if use in option.uses]


def check_options(options: Mapping[str, str], use: Use) -> None:
    """Raises InvalidInputError for an option that is not known here: it would change nothing."""
    names = known(use)
    for name in sorted({each.lower() for each in options} - {*names} - _OF_SPARK[use]):
        raise InvalidInputError(
            f"there is no option {name!r} for {use}{_hint(name, names)}; there are "
            f"{', '.join(names)}",
            kind="unknown-option",
        )


def _hint(name: str, names: Collection[str]) -> str:
    elsewhere = [str(use) for option in OPTIONS if option.name == name for use in option.uses]
    if elsewhere:
        return f", only for {' and '.join(dict.fromkeys(elsewhere))}"
    if name == "path":
        return ": the repository is the option 'url', and the array the option 'array'"
    plain = {each.replace("_", ""): each for each in names} | {"snapshot": "snapshot_id"}
    close = get_close_matches(name.replace("_", ""), plain, n=1)
    return f" (did you mean {plain[close[0]]!r}?)" if close and plain[close[0]] in names else ""
