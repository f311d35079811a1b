"""Background upload: files on their way while the step that needs them is computed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Upload:
    """Work that waits for the store, in a thread of its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="icefloe-upload", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when all of it is done; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def ended_well(self) -> bool:
        """Wait, too, and say whether it raised nothing."""
        self._thread.join()
        return self._error is None

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
