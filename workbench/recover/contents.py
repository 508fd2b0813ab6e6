"""What the files of a checkpoint say about themselves, where their hashes were not kept.

Nothing is unpickled: torch's files are zip archives with a checksum per member, safetensors begin
with the table of their tensors, the rest is JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from workbench.recover import dcp_table, foreign

_HEADER_MAX_BYTES = 100 << 20  # safetensors' own limit
_JSON_MAX_BYTES = 64 << 20
_INCOMPLETE = "checkpoint-is-incomplete.txt"  # transformers writes it first and removes it last
# What damaged files make their readers raise.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, EOFError),
    *(zipfile.BadZipFile, NotImplementedError, zlib.error),
)


def measure(folder: Path, most: int | None = None) -> tuple[int, float | None]:
    """Bytes of all files below `folder`, and when the newest was written (None: there is none).

    `folder` may be a file; `most` files are looked at.
    """
    stats = [about for _, about in itertools.islice(_files(folder), most)]
    times = [about.st_mtime for about in stats]
    return sum(about.st_size for about in stats), max(times, default=None)


def why_broken(folder: Path) -> str:
    """What is wrong with a file of the checkpoint, as the end of a sentence; "" if nothing is."""
    for path, about in _files(folder):
        name = path.relative_to(folder) if path != folder else path.name
        if path.name == _INCOMPLETE:
            return f"{name} says that it was being written"
        try:
            problem = _look(path, about.st_size)
        except _UNREADABLE:
            problem = "cannot be read"
        if problem:
            return f"{name} {problem}"
    return ""


def _look(path: Path, size: int) -> str:
    if path.suffix == ".safetensors":
        return _safetensors(path, size)
    if path.name == dcp_table.TABLE:
        problem = dcp_table.why_unreadable(path.parent)
        if "cannot be read" in problem and foreign.dcp_places(path.parent):
            problem = foreign.dcp_problem(path.parent)  # a table with values of the script's own
        return f"does not fit: {problem}" if problem else ""
    if path.suffix == ".json":
        if size <= _JSON_MAX_BYTES:
            json.loads(path.read_bytes())
        return ""
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix in {".pt", ".pth", ".bin", ".ckpt"} and not size:
        return "is empty"
    if start != b"PK\3\4":
        return ""  # an old pickle or something of the script's own: nothing to hold it against
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    return f"is damaged (the checksum of {wrong} differs)" if wrong else ""


def _safetensors(path: Path, size: int) -> str:
    """Eight bytes with the length of a JSON table; its tensors fill the rest to the last byte."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _HEADER_MAX_BYTES):
            return "is cut short"
        table = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    return "" if size == expected else f"has {size:,} bytes instead of {expected:,}"


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files below, links not followed; of a file, itself."""
    if folder.is_file() and not folder.is_symlink():
        yield folder, folder.lstat()
        return
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            try:
                about = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode):
                yield path, about
