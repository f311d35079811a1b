"""The write verbs of a driver that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from icefloe.errors import ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.storage.driver import Condition
    from icefloe.storage.protocol import Version


class ReadOnlyDriver:
    """Says why; a handle refuses writes before they come here."""

    delete_batch = 1
    refusal: str

    def __init__(self, url: str) -> None:
        self._url = url

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        self._refuse(key)

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        self._refuse(target)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        self._refuse(keys[0])

    def _refuse(self, key: str) -> NoReturn:
        raise ReadOnlyError(f"{key!r} in {self._url}: {self.refusal}", kind="read-only-storage")
