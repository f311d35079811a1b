"""A progress bar on a terminal, where tqdm is installed."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.maintenance import Progress, Report


@contextmanager
def bar() -> Iterator[Report | None]:
    """Where a long operation tells how far it is; None where nobody would see it."""
    if not sys.stderr.isatty() or find_spec("tqdm") is None:
        yield None
        return
    # tqdm is optional.
    from tqdm import tqdm

    with tqdm(unit=" objects", file=sys.stderr, leave=False) as shown:

        def report(progress: Progress) -> None:
            shown.set_description(progress.phase, refresh=False)
            shown.set_postfix(
                manifests=progress.manifests_read, deleted=progress.objects_deleted, refresh=False
            )
            shown.update(progress.objects_listed - shown.n)

        yield report
