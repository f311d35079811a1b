"""What the library says, in the language of the command line, and safe to show on a terminal."""

from __future__ import annotations

import re

# The library speaks of arguments of Python functions.
_SPOKEN = (
    # A time to the second, and a span in days, say enough.
    (re.compile(r"(\d\d:\d\d:\d\d)\.\d{6}"), r"\1"),
    (re.compile(r"(\d days?), 0:00:00"), r"\1"),
    (re.compile(r"\bforce=True\b"), "--force"),
    (re.compile(r"\b(?:delete_object_)?older_than\b"), "--older-than"),
    (re.compile(r"\bkeep_last\b"), "--keep-last"),
    (re.compile(r"\bkeep is\b"), "--keep is"),
    (re.compile(r"\bstorage_options\b"), "--storage-options"),
    (re.compile(r"\(storage option `deadline`\)"), "(--storage-options '{\"deadline\": SECONDS}')"),
    (re.compile(r"until Repository\.set_status brings it (?:online|back)"),
     "until `icefloe status --set online`"),
    (re.compile(r": create one with Repository\.create"), ""),
    (re.compile(r"Nothing is lost: commit again with rebase_with=.*? in a new session"),
     "Run the command again"),
)  # fmt: skip


def spoken(text: str) -> str:
    """A message of the library, with the options of the command in place of arguments."""
    for pattern, words in _SPOKEN:
        text = pattern.sub(words, text)
    return text


def one_line(text: str) -> str:
    """Text that others wrote, on one line: lines joined, control characters shown and not obeyed.

    Those that turn the direction of writing, or move the cursor, are among them.
    """
    joined = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if joined.isprintable():
        return joined
    return "".join(each if each.isprintable() else _escaped(each) for each in joined)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
