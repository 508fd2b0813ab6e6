"""A script's own files: it, the modules beside it that it imports, and the settings it is given."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.store.python_source import imports, parse_python

MOST_FILES = 200
MOST_BYTES = 1 << 20
_SETTINGS = {".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".py"}
_SAMPLE_BYTES = 1 << 20
_MOST_ENTRIES = 2000


def own_files(script: Path, arguments: Sequence[str], folder: Path) -> dict[Path, bytes]:
    """Content of each, the script first: at most `MOST_FILES`, `MOST_BYTES` in all."""
    settings_files = [
        path for _, path in named_paths(arguments, folder) if path.suffix in _SETTINGS
    ]
    roots = _roots(script)
    contents, waiting, left = dict[Path, bytes](), [script, *settings_files], MOST_BYTES
    while waiting and len(contents) < MOST_FILES:
        path = waiting.pop(0)
        data = None if path in contents else _content(path, left)
        if data is None:
            continue
        contents[path] = data
        left -= len(data)
        if path.suffix == ".py":
            waiting += _imported_files(path, roots, data)
    return contents


def _roots(script: Path) -> list[Path]:
    """Where its imports look: its folder, and those above while the one below is a package."""
    roots = [script.parent]
    while (roots[-1] / "__init__.py").is_file() and roots[-1].parent != roots[-1]:
        roots.append(roots[-1].parent)
    return roots


def _content(path: Path, most: int) -> bytes | None:
    """None for what is no plain file, or has more than `most` bytes."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                return None
            return file.read(most)
    except OSError:
        return None


def _imported_files(path: Path, roots: Sequence[Path], source: bytes) -> Iterator[Path]:
    """Files below `roots` that the imports of `path` name; a package's ``__init__`` with them."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for name, dots in imports(tree):
        relative = 0 < dots <= len(path.parents)
        for base in [path.parents[dots - 1]] if relative else roots:
            if base.is_relative_to(roots[-1]):
                yield from _modules(base, name)


def _modules(base: Path, name: str) -> Iterator[Path]:
    place = base
    for part in name.split("."):
        place = place / part
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if part.isidentifier() and path.is_file():
                yield path


def named_paths(arguments: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """(option, path) for each argument that names a file or folder that is there."""
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        option = name if word.startswith("-") else option
        text = value if equals and word.startswith("-") else word
        try:
            path = folder / Path(text).expanduser()
            if text and not text.startswith("-") and path.exists():
                yield option, path
        except (OSError, ValueError, RuntimeError):
            continue


def fingerprint(path: Path, deadline: float) -> tuple[int, str]:
    """Bytes, and a SHA-256: of a file's size, beginning and end; of a folder's names and sizes.

    Of a folder the first 2,000 entries count. Data sets are too large to be read at a launch.

    Raises:
        TimeoutError: it is later than `deadline` (`time.monotonic`).
        OSError: it cannot be read.
    """
    if path.is_dir():
        sizes = dict(_sizes(path, deadline))
        lines = sorted(f"{name} {size}" for name, size in sizes.items())
        return sum(sizes.values()), hashlib.sha256("\n".join(lines).encode()).hexdigest()
    _check_time(deadline)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{path} is not a plain file")
        sample = hashlib.sha256(b"%d\n" % about.st_size + file.read(_SAMPLE_BYTES))
        file.seek(max(0, about.st_size - _SAMPLE_BYTES))
        sample.update(file.read(_SAMPLE_BYTES))
    return about.st_size, sample.hexdigest()


def _sizes(top: Path, deadline: float) -> Iterator[tuple[str, int]]:
    """Path below `top` and size of each file, of at most `_MOST_ENTRIES` entries."""
    waiting, seen = [top], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                _check_time(deadline)
                seen += 1
                if seen > _MOST_ENTRIES:
                    return
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file():
                    yield os.path.relpath(entry.path, top), entry.stat().st_size


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError
