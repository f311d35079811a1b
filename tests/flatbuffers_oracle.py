"""An independent way in and out of FlatBuffers: the `flatbuffers` package, one record at a time.

A record is a dict with every field of its table: an int for a scalar, bytes for a struct or a
vector of scalars or structs, str, dict, lists of these, (tag, dict) for a union, None where absent.
"""

from dataclasses import dataclass, field
from random import Random

import flatbuffers
from flatbuffers.table import Table

from schemas import generate

OFFICIAL = generate.parse([(generate.HERE / f"{name}.fbs").read_text() for name in generate.FILES])


@dataclass(frozen=True)
class Slot:
    """A field as the schema's text declares it; `element` is the type without brackets."""

    number: int
    element: str
    is_vector: bool
    default: int


@dataclass
class Oracle:
    schema: generate.Schema

    def slots(self, table: str) -> dict[str, Slot]:
        slots, number = {}, 0
        for name, kind, default, _ in self.schema.tables[table]:
            element = kind.strip("[]")
            if element in self.schema.enums:
                element = self.schema.enums[element][0]
            number += element in self.schema.unions
            slots[name] = Slot(number, element, kind.startswith("["), int(default or 0))
            number += 1
        return slots

    def width(self, element: str) -> tuple[int, int]:
        """Bytes and alignment of a scalar or struct."""
        if element in self.schema.structs:
            return self.schema.structs[element][1:]
        return (generate.SCALARS[element][1],) * 2

    def is_inline(self, element: str) -> bool:
        return element in self.schema.structs or element in generate.SCALARS

    def read(self, data: bytes, root: str) -> dict:
        return self.read_table(Table(data, int.from_bytes(data[:4], "little")), root)

    def read_table(self, table: Table, name: str) -> dict:
        return {key: self.read_field(table, slot) for key, slot in self.slots(name).items()}

    def read_field(self, table: Table, slot: Slot):
        offset = table.Offset(4 + 2 * slot.number)
        if not offset:
            return slot.default if slot.element in generate.SCALARS and not slot.is_vector else None
        at = table.Pos + offset
        if slot.is_vector:
            return self.read_vector(table, offset, slot.element)
        if slot.element in self.schema.unions:
            tag = table.Bytes[table.Pos + table.Offset(2 + 2 * slot.number)]
            member = self.schema.unions[slot.element][tag - 1][1]
            return tag, self.read_table(Table(table.Bytes, table.Indirect(at)), member)
        if slot.element == "string":
            return table.String(at).decode()
        if slot.element in self.schema.structs:
            return bytes(table.Bytes[at : at + self.width(slot.element)[0]])
        if slot.element in generate.SCALARS:
            size, _ = self.width(slot.element)
            signed = slot.element.startswith("int")
            return int.from_bytes(table.Bytes[at : at + size], "little", signed=signed)
        return self.read_table(Table(table.Bytes, table.Indirect(at)), slot.element)

    def read_vector(self, table: Table, offset: int, element: str):
        start, count = table.Vector(offset), table.VectorLen(offset)
        if self.is_inline(element):
            return bytes(table.Bytes[start : start + count * self.width(element)[0]])
        places = [start + 4 * item for item in range(count)]
        if element == "string":
            return [table.String(place).decode() for place in places]
        return [
            self.read_table(Table(table.Bytes, table.Indirect(place)), element) for place in places
        ]


@dataclass
class Builder:
    """Writes records as others might: other field orders, defaults spelt out, shared strings.

    `extra_slots` adds that many fields after the last one the schema knows.
    """

    oracle: Oracle
    random: Random
    force_defaults: bool = False
    share_strings: bool = False
    extra_slots: int = 0
    out: flatbuffers.Builder = field(default_factory=lambda: flatbuffers.Builder(256))

    def finish(self, record: dict, root: str) -> bytes:
        self.out.ForceDefaults(self.force_defaults)
        self.out.Finish(self.table(record, root), file_identifier=b"Test")
        return bytes(self.out.Output())

    def table(self, record: dict, name: str) -> int:
        slots = self.oracle.slots(name)
        order = [key for key in slots if record.get(key) is not None]
        self.random.shuffle(order)
        targets = {key: self.target(record[key], slots[key]) for key in order}
        self.random.shuffle(order)
        self.out.StartObject(
            max((s.number + 1 for s in slots.values()), default=0) + self.extra_slots
        )
        for key in order:
            self.put(record[key], slots[key], targets[key])
        for number in range(self.extra_slots):
            self.out.PrependUint32Slot(len(self.out.current_vtable) - 1 - number, 77, 0)
        return self.out.EndObject()

    def put(self, value, slot: Slot, target: int | None) -> None:
        if target is not None:
            if slot.element in self.oracle.schema.unions:
                self.out.PrependUint8Slot(slot.number - 1, value[0], 0)
            self.out.PrependUOffsetTRelativeSlot(slot.number, target, 0)
        elif slot.element in self.oracle.schema.structs:
            self.raw(value, *self.oracle.width(slot.element))
            self.out.Slot(slot.number)
        elif value != slot.default or self.force_defaults:
            size, _ = self.oracle.width(slot.element)
            self.raw(value.to_bytes(size, "little", signed=value < 0), size, size)
            self.out.Slot(slot.number)

    def raw(self, value: bytes, size: int, alignment: int) -> None:
        self.out.Prep(alignment, size)
        self.out.head = self.out.head - size
        self.out.Bytes[self.out.Head() : self.out.Head() + size] = value

    def target(self, value, slot: Slot) -> int | None:
        if slot.is_vector:
            return self.vector(value, slot.element)
        if slot.element in self.oracle.schema.unions:
            return self.table(value[1], self.oracle.schema.unions[slot.element][value[0] - 1][1])
        if self.oracle.is_inline(slot.element):
            return None
        return self.string(value) if slot.element == "string" else self.table(value, slot.element)

    def vector(self, value, element: str) -> int:
        if self.oracle.is_inline(element):
            size, alignment = self.oracle.width(element)
            self.out.StartVector(size, len(value) // size, alignment)
            if value:
                self.raw(value, len(value), 1)
            return self.out.EndVector()
        items = [self.string(v) if element == "string" else self.table(v, element) for v in value]
        self.out.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.out.PrependUOffsetTRelative(item)
        return self.out.EndVector()

    def string(self, value: str) -> int:
        return (
            self.out.CreateSharedString(value)
            if self.share_strings
            else self.out.CreateString(value)
        )
