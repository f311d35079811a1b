"""The command's entry: arguments in, text or JSON out, an exit code a scheduler can use."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, TextIO

from icefloe.cli.arguments import parser
from icefloe.cli.commands import COMMANDS
from icefloe.cli.wording import one_line, spoken
from icefloe.errors import IcefloeError
from icefloe.repository import Repository

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from icefloe.cli.commands import Answer

_INTERRUPTED = 130
_PIPE_CLOSED = 141
"""What a shell reports of programs that these signals end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if all is well, 1 if the answer is bad (findings, failed deletions), 2 on an error; 130 if
        interrupted, 141 if nobody reads what is printed.
    """
    args = parser().parse_args(argv)
    try:
        repo = Repository.open(args.url, args.storage_options)
        answer = COMMANDS[args.command](repo, args)
        _show(answer, args)
    except IcefloeError as error:
        _complain(args, f"{spoken(str(error))} [{error.kind}]")
        return 2
    except KeyboardInterrupt:
        _complain(args, "interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return int(answer.failed)


def _show(answer: Answer, args: Namespace) -> None:
    if args.json:
        print(json.dumps(answer.data, default=list))
    else:
        _print([_inert(line) for line in answer.lines], sys.stdout)
    sys.stdout.flush()


def _inert(line: str) -> str:
    """Inert, but with the blanks that make columns."""
    blanks = line[: len(line) - len(line.lstrip(" "))]
    return blanks + one_line(line)


def _complain(args: Namespace, text: str) -> None:
    _print([f"icefloe {args.command}: {one_line(text)}"], sys.stderr)


def _print(lines: Sequence[str], file: TextIO) -> None:
    encoding = file.encoding or "utf-8"
    for line in lines:
        # A terminal without Unicode gets escapes.
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=file)


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
