"""Run the demonstration: `python -m demo [FOLDER]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from demo.story import run


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="icefloe-"))
    run(folder)
    print(
        "\nThe same repository opens in the official client:\n"
        "  import icechunk\n"
        f"  storage = icechunk.local_filesystem_storage({str(folder)!r})\n"
        "  icechunk.Repository.open(storage).readonly_session('main').store\n"
        "Next: docs/quickstart.md"
    )


if __name__ == "__main__":
    main()
