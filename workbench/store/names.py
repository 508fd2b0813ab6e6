"""Run names and run ids. A name is data; an id is a directory name that cannot leave the store."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from workbench.errors import UsageError, WorkbenchError

MAX_NAME = 120
_MOST_OF_FILE = 72  # the strategy is written behind it
_MOST_OF_PART, _MOST_OF_PATH = 255, 4000  # bytes, of Linux; a run's files lie below it
LAST = "last"
"""Stands for the newest run, sweep or study where one is named."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def check_name(name: str) -> str:
    """Return `name` stripped, or say what is wrong with it.

    A name may hold any printable text (it is always shown as text); it may not look like a path,
    an option or nothing at all.

    Raises:
        UsageError: the name is empty, too long, a path, starts with "-", is not UTF-8 text, has
            control characters, or is `LAST`.
    """
    name = readable(name).strip()
    rule = (
        "Use letters, digits, spaces and . _ - (at most 120 characters), for example 'gpt-lr3e-4'."
    )
    if not name or not re.search(r"\w", name):
        raise UsageError(f"The run name {name!r} has no letter or digit. {rule}")
    if len(name) > MAX_NAME:
        raise UsageError(f"The run name has {len(name)} characters. {rule}")
    if "\\" in name or ".." in name or name.startswith(("/", ".", "-", "~")) or "/.." in name:
        raise UsageError(f"The run name {name!r} looks like a path or an option. {rule}")
    if slug(name) == LAST:
        raise UsageError(
            f"The run name {name!r} stands for the newest run in every command. Choose another."
        )
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise UsageError(f"The run name {name!r} is not valid UTF-8 text. {rule}")
    if any(unicodedata.category(character)[0] == "C" for character in name):
        raise UsageError(f"The run name {name!r} has control characters. {rule}")
    return name


def readable(text: str) -> str:
    r"""Text from a command line, read as UTF-8 where the locale made Python read it as ASCII.

    Python keeps bytes that the locale (LC_ALL=C without UTF-8 mode) does not know as lone
    surrogates; what is not UTF-8 either stays as it is.

    >>> readable("gr\udcc3\udcb6\udcc3\udc9fe"), readable("größe")
    ('größe', 'größe')
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


def from_file(stem: str) -> str:
    r"""What `check_name` allows of a file's name, which its user did not choose as a run's.

    >>> from_file("-train"), from_file("..my\ntrain"), from_file("?")
    ('train', 'my-train', 'run')
    """
    kept = "".join(
        "-" if character == "\\" or unicodedata.category(character)[0] == "C" else character
        for character in readable(stem)
    )
    kept = re.sub(r"\.{2,}", ".", kept).strip("/.-~ ")[:_MOST_OF_FILE].strip()
    return kept if re.search(r"\w", kept) else "run"


def slug(name: str) -> str:
    """Directory name for `name`: the allowed characters kept, the others turned into "-".

    >>> slug("my run"), slug("<b>x</b>")
    ('my-run', 'b-x-b')
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    text = re.sub(r"[^A-Za-z0-9._]+", "-", ascii_name).strip("-._")[:72].rstrip("-._")
    return text or "run"


def is_id(text: str) -> bool:
    """Whether `text` can be a run id at all (and so is safe to join to the store's path)."""
    return _ID.fullmatch(text) is not None and ".." not in text


def check_local(path: str | os.PathLike[str], subject: str) -> str:
    """`path` as text, if it is one of a mounted file system.

    Raises:
        UsageError: it is no path, or one that no folder can have, or the address of an object
            store; a path of that name would be local.

    >>> check_local("/data/runs", "--store")
    '/data/runs'
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{subject} must be the path of a folder, not {path!r}.")
    if not text:
        raise UsageError(f"{subject} is empty. Give the path of a folder.")
    longest = max(len(part) for part in os.fsencode(text).split(b"/"))
    if longest > _MOST_OF_PART or len(text) > _MOST_OF_PATH:
        raise UsageError(
            f"{subject} has a path of {len(text)} characters, {longest} in one part. Give one "
            f"of at most {_MOST_OF_PATH}, and {_MOST_OF_PART} in a part."
        )
    if _SCHEME.match(text):
        raise UsageError(
            f"{subject} {text!r} is an address of an object store, which is not supported. Give a "
            "folder, for example of a mounted network volume or bucket."
        )
    return text


def check_folder(path: Path, subject: str, error: type[WorkbenchError]) -> Path:
    """`path`, if it is a folder or may become one.

    Raises:
        WorkbenchError: as `error`: it, or something above it, is a file.
    """
    there = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
    if there.is_file():  # a link to nowhere, or what may not be looked at, says so when it is used
        raise error(f"{subject} {path} must be a folder, and {there} is a file. Give another one.")
    return path
