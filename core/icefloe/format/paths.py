"""Node paths: absolute, canonical, and the two orders the format sorts them in."""

from __future__ import annotations

from icefloe.errors import InvalidInputError

ROOT = "/"


def validate(path: str) -> str:
    """Return `path` if the spec allows it as a node path.

    Raises:
        InvalidInputError: it is no str, is relative, ends in `/`, has an empty, `.` or `..`
            segment, a NUL, or is not Unicode text.
    """
    check_text(path)
    if not path.startswith(ROOT):
        raise _invalid(path, "it does not start with '/'")
    if path == ROOT:
        return path
    if path.endswith("/"):
        raise _invalid(path, "it ends in '/'")
    for segment in path[1:].split("/"):
        _check_segment(segment, path)
    return path


def check_text(path: str) -> None:
    """Raises InvalidInputError if no node could be asked for by this path."""
    if not isinstance(path, str):
        raise _invalid(path, "pass a str")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _invalid(path, "it is not valid Unicode text") from None


def sort_key(path: str) -> bytes:
    """Order of the nodes of a snapshot: raw UTF-8 bytes, so `/a` < `/a-b` < `/a/b`.

    The spec's text says component-wise; the reference implementation searches in this order and
    misses nodes otherwise.
    """
    return path.encode()


def segment_key(path: str) -> tuple[bytes, ...]:
    """Order of the moves in a transaction log: by segment, so `/a` < `/a/b` < `/a-b`."""
    return tuple(path.encode().split(b"/"))[1:] if path != ROOT else ()


def parent(path: str) -> str:
    """Return the path of the group that holds `path`.

    Raises:
        InvalidInputError: `path` is the root.
    """
    if path == ROOT:
        raise InvalidInputError("the root has no parent", kind="invalid-path")
    return path.rpartition("/")[0] or ROOT


def name(path: str) -> str:
    """Return the last segment; empty for the root."""
    return path.rpartition("/")[2]


def join(parent: str, name: str) -> str:
    """Return the path of the child `name` of `parent`.

    Raises:
        InvalidInputError: `name` is not one valid segment.
    """
    path = f"{parent.rstrip('/')}/{name}"
    if "/" in name:
        raise _invalid(path, f"the name {name!r} has a '/'")
    _check_segment(name, path)
    return path


def is_descendant(path: str, ancestor: str) -> bool:
    """Whether `path` lies below `ancestor`, at any depth; a path is not its own descendant."""
    return path != ancestor and path.startswith(ancestor if ancestor == ROOT else f"{ancestor}/")


def ancestors(path: str) -> tuple[str, ...]:
    """Return every group above `path`, nearest first, the root last; none for the root."""
    above = []
    while path != ROOT:
        path = parent(path)
        above.append(path)
    return tuple(above)


def _check_segment(segment: str, path: str) -> None:
    if segment in ("", ".", ".."):
        raise _invalid(path, f"it has the segment {segment!r}")
    if "\0" in segment:
        raise _invalid(path, "it has a NUL")


def _invalid(path: object, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{path!r} is not a node path: {reason}", kind="invalid-path")
