"""Text of others made fit for a terminal and a page: nothing in it acts, reorders or hides."""

from __future__ import annotations

import re

MAX_LINE = 1000
# CSI, the strings OSC, DCS, SOS, PM and APC up to their end, and every other escape sequence; each
# also in its one-byte form.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Controls but tab and newline; marks of direction; what has no width and is no joiner of letters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def is_printable(text: str) -> bool:
    """Whether `printable` would leave lines that are short enough as they are."""
    # What Python calls printable holds none of them; it is asked first, for it answers at once.
    return text.isprintable() or ("\x1b" not in text and _HIDDEN.search(text) is None)


def printable(text: str, *, colours: bool = False, max_line: int | None = MAX_LINE) -> str:
    r"""`text` without escape sequences, control characters and hidden text, its lines cut.

    `colours` keeps the sequences that only colour. A cut line ends in "…".

    >>> printable("\x1b]52;c;ZXZpbA==\x07\x1b[31mred\x1b[0m \u202egnp.exe")
    'red gnp.exe'
    """
    text = _SEQUENCES.sub(_colour if colours else "", text)
    text = _HIDDEN.sub("", text if colours else text.replace("\x1b", ""))
    if max_line is None:
        return text
    lines = text.split("\n")
    if all(len(line) <= max_line for line in lines):
        return text
    return "\n".join(
        line if len(line) <= max_line else f"{line[: max_line - 1]}…" for line in lines
    )


def _colour(match: re.Match[str]) -> str:
    return match[0] if _COLOUR.fullmatch(match[0]) else ""
