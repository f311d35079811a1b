"""The command's entry: arguments in, text or JSON out, an exit code a scheduler can use."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from icefloe.cli.arguments import parser
from icefloe.cli.commands import COMMANDS
from icefloe.errors import IcefloeError
from icefloe.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if all is well, 1 if the answer is bad (findings, failed deletions), 2 on an error.
    """
    args = parser().parse_args(argv)
    try:
        repo = Repository.open(args.url, args.storage_options)
        answer = COMMANDS[args.command](repo, args)
    except IcefloeError as error:
        print(f"icefloe {args.command}: {error} [{error.kind}]", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(answer.data, default=list))
    else:
        print("\n".join(answer.lines))
    return int(answer.failed)


def run() -> None:
    """The console script."""
    sys.exit(main())
