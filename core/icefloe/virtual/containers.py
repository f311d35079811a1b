"""Which container a location belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.virtual.locations import distinct_texts, normalize, object_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.config import VirtualChunkContainer
    from icefloe.format.ragged import Ragged

_BY_NAME = "vcc://"


class Containers:
    """The virtual chunk containers of a repository; the longest matching prefix wins."""

    def __init__(self, containers: Mapping[str, VirtualChunkContainer] | None) -> None:
        found = list((containers or {}).values())
        self._by_prefix = sorted(
            ((_normal_prefix(each.url_prefix), each) for each in found),
            key=lambda item: len(item[0]),
            reverse=True,
        )
        self._by_name = {each.name: each for each in found if each.name}

    def find(self, location: str) -> tuple[VirtualChunkContainer, str]:
        """The container of a normal location, and the location with a container's name resolved.

        Raises:
            InvalidInputError: no container has it (kind `no-container-for-virtual-chunk`).
        """
        if location.startswith(_BY_NAME):
            return self._find_named(location)
        for prefix, container in self._by_prefix:
            if location.startswith(prefix):
                return container, location
        known = ", ".join(prefix for prefix, _ in self._by_prefix) or "none"
        raise _homeless(
            f"no virtual chunk container has the location {location!r}; containers: {known}"
        )

    def validate(self, locations: Ragged | Iterable[str]) -> None:
        """Check that every location is in a container and names an object there.

        Costs what the distinct locations cost.

        Raises:
            InvalidInputError: for the first that is not.
        """
        for location in distinct_texts(locations):
            object_key(self.find(location)[1])

    def homeless(self, locations: Ragged) -> NDArray[np.bool_]:
        """Which rows no container has; at the cost of the distinct locations."""
        distinct, codes = locations.distinct()
        without = np.zeros(len(distinct), np.bool_)
        for row, location in enumerate(distinct.texts()):
            try:
                self.find(location)
            except InvalidInputError:
                without[row] = True
        return without[codes]

    def _find_named(self, location: str) -> tuple[VirtualChunkContainer, str]:
        name, slash, rest = location.removeprefix(_BY_NAME).partition("/")
        container = self._by_name.get(name)
        if container is None or not slash:
            raise _homeless(f"{location!r}: no virtual chunk container is named {name!r}")
        return container, _normal_prefix(container.url_prefix) + rest


def _normal_prefix(prefix: str) -> str:
    # Whatever another writer put into the configuration must not keep the rest from working.
    try:
        return normalize(prefix)
    except InvalidInputError:
        return prefix


def _homeless(text: str) -> InvalidInputError:
    return InvalidInputError(text, kind="no-container-for-virtual-chunk")
