"""Classic NetCDF files, as bytes."""

import struct


def netcdf3(values, *, attribute=True):
    """A file with one variable, `rain` of two dimensions."""

    def number(value):
        return struct.pack(">i", value)

    def text(value):
        return number(len(value)) + value + b"\0" * (-len(value) % 4)

    units = number(12) + number(1) + text(b"units") + number(2) + text(b"mm/day")
    attributes = units if attribute else number(0) + number(0)
    dimensions = [(b"lat", values.shape[0]), (b"lon", values.shape[1])]
    head = b"CDF\1" + number(0) + number(10) + number(len(dimensions))
    head += b"".join(text(name) + number(size) for name, size in dimensions)
    head += attributes + number(11) + number(1)
    head += text(b"rain") + number(2) + number(0) + number(1) + attributes
    head += number(5) + number(values.size * 4)
    return head + number(len(head) + 4) + values.astype(">f4").tobytes()
