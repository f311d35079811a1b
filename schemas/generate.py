"""Generate `icefloe/format/wire.py` from the .fbs files beside this script.

    python schemas/generate.py            rewrite the module
    python schemas/generate.py --check    exit 1 if the module is not what the schemas say

It reads the subset of the schema language that the Icechunk schemas use. flatc's Python output is
one class per table with a method per field and record; the columnar engine needs the layout as data
instead.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("common", "manifest", "snapshot", "transaction_log", "repo")
TARGET = HERE.parent / "core" / "icefloe" / "format" / "wire.py"
SCALARS = {
    "bool": ("u1", 1),
    "ubyte": ("u1", 1),
    "uint8": ("u1", 1),
    "uint16": ("<u2", 2),
    "int32": ("<i4", 4),
    "uint32": ("<u4", 4),
    "uint64": ("<u8", 8),
}
DECLARATION = re.compile(
    r"(table|struct|union|enum)\s+(\w+)\s*(?::\s*(\w+))?\s*\{(.*?)\}", re.DOTALL
)
FIELD = re.compile(r"(\w+)\s*:\s*(\[?[\w:]+\]?)\s*(?:=\s*(\w+))?\s*(?:\(([^)]*)\))?\s*;")
IDENTIFIER = re.compile(r'file_identifier\s+"(.{4})"')


@dataclass
class Schema:
    """The declarations of all files, in order of appearance."""

    structs: dict[str, tuple[list[tuple[str, str, int]], int, int]] = field(default_factory=dict)
    enums: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    unions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    tables: dict[str, list[tuple[str, str, str, str]]] = field(default_factory=dict)
    identifiers: set[str] = field(default_factory=set)


def parse(texts: list[str]) -> Schema:
    schema = Schema()
    for text in texts:
        source = re.sub(r"//[^\n]*", "", text)
        schema.identifiers.update(IDENTIFIER.findall(source))
        for word, name, base, body in DECLARATION.findall(source):
            match word:
                case "struct":
                    schema.structs[name] = lay_out_struct(schema, body)
                case "enum":
                    members = [member.split("=")[0].strip() for member in body.split(",")]
                    schema.enums[name] = (base, members)
                case "union":
                    schema.unions[name] = [
                        (member.split(":")[0].strip(), member.split(":")[-1].strip())
                        for member in body.split(",")
                        if member.strip()
                    ]
                case _:
                    schema.tables[name] = FIELD.findall(body)
    return schema


def lay_out_struct(schema: Schema, body: str) -> tuple[list[tuple[str, str, int]], int, int]:
    """Members as (name, dtype, offset), then size and alignment, by the rules of C."""
    members, offset, widest = [], 0, 1
    for name, kind, _, _ in FIELD.findall(body):
        if array := re.fullmatch(r"\[uint8:(\d+)\]", kind):
            dtype, size, align = f"({array[1]},)u1", int(array[1]), 1
        elif kind in schema.structs:
            _, size, align = schema.structs[kind]
            dtype = f"({size},)u1"
        else:
            dtype, size = SCALARS[kind]
            align = size
        offset += -offset % align
        members.append((name, dtype, offset))
        offset += size
        widest = max(widest, align)
    return members, offset + -offset % widest, widest


def constant(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


def struct_dtype(schema: Schema, name: str) -> str:
    """Ids are plain bytes; other structs get numpy fields."""
    members, size, _ = schema.structs[name]
    if len(members) == 1:
        return f'"V{size}"'
    return constant(name)


def render_field(schema: Schema, row: tuple[str, str, str, str], slot: int) -> tuple[str, int]:
    """One `Field(...)` and the number of slots it takes."""
    name, kind, default, attributes = row
    arguments = [f'"{name}"', str(slot)]
    element = kind.strip("[]")
    is_vector = kind.startswith("[")
    if element in schema.enums:
        element = schema.enums[element][0]
    width = 1
    if element in SCALARS:
        dtype, align = SCALARS[element]
        arguments += [
            "Kind.VECTOR" if is_vector else "Kind.SCALAR",
            f'np.dtype("{dtype}")',
            str(align),
        ]
        if default not in ("", "0"):
            arguments.append(f"default={default}")
    elif element in schema.structs:
        dtype = struct_dtype(schema, element)
        dtype = f"np.dtype({dtype})" if dtype.startswith('"') else dtype
        align = schema.structs[element][2]
        arguments += ["Kind.VECTOR" if is_vector else "Kind.STRUCT", dtype, str(align)]
    elif element == "string":
        arguments.append("Kind.STRINGS" if is_vector else "Kind.STRING")
    elif element in schema.unions:
        arguments[1], width = str(slot + 1), 2
        members = ", ".join(constant(table) for _, table in schema.unions[element])
        arguments += ["Kind.UNION", f"tables=({members},)"]
    else:
        arguments += [
            "Kind.TABLES" if is_vector else "Kind.TABLE",
            f"tables=({constant(element)},)",
        ]
    if "required" in attributes:
        arguments.append("required=True")
    return f"Field({', '.join(arguments)})", width


def render(schema: Schema) -> str:
    (identifier,) = schema.identifiers
    lines = [
        '"""Generated from schemas/*.fbs by schemas/generate.py: do not edit.',
        "",
        "The slots, types and defaults of every table in the metadata files.",
        '"""',
        "",
        "import numpy as np",
        "",
        "from icefloe.format.layout import Field, Kind, Table",
        "",
        f'FILE_IDENTIFIER = b"{identifier}"',
    ]
    for name, (members, size, _) in schema.structs.items():
        if len(members) > 1:
            names = [member for member, _, _ in members]
            formats = [dtype for _, dtype, _ in members]
            offsets = [offset for _, _, offset in members]
            layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
            lines += ["", f"{constant(name)}: np.dtype[np.void] = np.dtype({layout!r})"]
    for name, (_, members) in schema.enums.items():
        lines += ["", f"{constant(name)} = {tuple(members)!r}"]
    for name, members in schema.unions.items():
        lines += ["", f"{constant(name)} = {tuple(member for member, _ in members)!r}"]
    for name, rows in schema.tables.items():
        lines += ["", f"{constant(name)} = Table(", f'    "{name}",', "    {"]
        slot = 0
        for row in rows:
            rendered, width = render_field(schema, row, slot)
            lines.append(f'        "{row[0]}": {rendered},')
            slot += width
        lines += ["    },", ")"]
    return "\n".join(lines) + "\n"


def generate() -> str:
    return render(parse([(HERE / f"{name}.fbs").read_text() for name in FILES]))


def main() -> int:
    wanted = generate()
    if "--check" in sys.argv[1:]:
        same = TARGET.exists() and normalised(TARGET.read_text()) == normalised(wanted)
        if not same:
            print(f"{TARGET.name} is not what the schemas say: run `make schemas`", file=sys.stderr)
        return 0 if same else 1
    TARGET.write_text(wanted)
    return 0


def normalised(source: str) -> str:
    """The source without what a formatter may change."""
    return re.sub(r"[\s,'\"]", "", source)


if __name__ == "__main__":
    sys.exit(main())
