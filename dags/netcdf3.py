"""Where a NetCDF 3 file keeps the values of a variable; reads nothing but the head of the file."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

# By the number of a type: its name in numpy, big-endian as the format wants it.
TYPES = {1: "|i1", 2: "|S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}


@dataclass(frozen=True)
class Variable:
    """Values without a record dimension lie in one piece."""

    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def length(self):
        return math.prod(self.shape) * int(self.dtype[-1])


def read_variables(path):
    """The variables of a file, by name."""
    head = _Head(Path(path).read_bytes())
    magic, version = head.take(3), head.take(1)
    if magic != b"CDF" or version not in (b"\1", b"\2"):
        raise ValueError(f"{path} is no classic NetCDF file")
    head.number()  # records
    dimensions = [(head.name(), head.number()) for _ in head.items()]
    head.skip_attributes()
    variables = {}
    for _ in head.items():
        name = head.name()
        shape = tuple(dimensions[head.number()][1] for _ in range(head.number()))
        head.skip_attributes()
        dtype = TYPES[head.number()]
        head.number()  # size
        offset = head.number() if version == b"\1" else head.long()
        if 0 in shape:
            raise ValueError(f"{name} of {path} has records, which do not lie in one piece")
        variables[name] = Variable(shape, dtype, offset)
    return variables


class _Head:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self):
        return struct.unpack(">i", self.take(4))[0]

    def long(self):
        return struct.unpack(">q", self.take(8))[0]

    def name(self):
        return self.padded(self.number()).decode()

    def padded(self, count):
        found = self.take(count)
        self.take(-count % 4)
        return found

    def items(self):
        self.number()  # the kind of the list
        return range(self.number())

    def skip_attributes(self):
        for _ in self.items():
            self.name()
            dtype = TYPES[self.number()]
            self.padded(self.number() * int(dtype[-1]))
