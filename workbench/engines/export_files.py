"""The files of an export: which ones a script needs beside it, and how all are written.

The user's own files are never overwritten, and links are never followed. The folder keeps a list of
what was written: that may be written again, all else that lies there with other content is the
user's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from workbench.errors import StoreError
from workbench.store.files import read_file, write_bytes_atomic, write_text_atomic
from workbench.store.python_source import imports, parse_python

FOLDER = "code"
"""Of an export: where the script and its files lie."""
_MOST_SOURCE_BYTES = 5_000_000
MARKER = ".workbench-export"
"""Names of the files of the last export, one per line; written last."""
_MOST_LIST_BYTES = 64_000_000


def files_of(script: Path) -> dict[str, Path]:
    """Relative name -> file: the script, and every module beside it that one of them imports.

    Imports by a computed name are not seen, data files neither.
    """
    home, files, left = script.parent, dict[str, Path](), [script]
    while left:
        path = left.pop()
        name = path.relative_to(home).as_posix()
        if name in files or path.stat().st_size > _MOST_SOURCE_BYTES:
            continue
        files[name] = path
        package = path.relative_to(home).parent.parts
        left += [file for module in _imports(path, package) for file in _local(home, module)]
    return dict(sorted(files.items(), key=lambda pair: (pair[1] != script, pair[0])))


def _imports(path: Path, package: tuple[str, ...]) -> set[str]:
    """Dotted names; what is imported relatively is named from the script's folder."""
    try:
        tree = parse_python(path.read_bytes())
    except SyntaxError:  # a template beside the script is no reason to stop
        return set()
    names: set[str] = set()
    for name, dots in imports(tree):
        above = package[: max(0, len(package) - dots + 1)] if dots else ()
        names.add(".".join([*above, name]))
    return names


def _local(home: Path, module: str) -> list[Path]:
    """The file of `module` beside the script, with the __init__ files above it."""
    parts = module.split(".")
    heads = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    names = [f"{head}/__init__.py" for head in heads] + [f"{heads[-1]}.py"]
    return [path for name in names if (path := home / name).is_file()]


def write_all(folder: Path, texts: Mapping[str, str], copies: Mapping[str, Path]) -> list[Path]:
    """Write `texts` and copy `copies`, name -> content, into `folder`; returns what was written.

    Raises:
        StoreError: before anything is written: a file of that name is not an export's, or a link
            is in the way. Later: the disk refused.
    """
    try:
        own_names = _ours(folder)
        for name, content in {**texts, **copies}.items():
            _check(folder, name, content, own_names)
        for name, text in texts.items():
            path = _place(folder, name)
            write_bytes_atomic(path, text.encode(), hide=False)  # exact: `ship` has looked
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        for name, source in copies.items():
            _copy(source, _place(folder, name))
        names = [*texts, *copies]
        write_text_atomic(folder / MARKER, "\n".join(sorted({*own_names, *names})) + "\n")
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror or error}. Choose another --out."
        ) from error
    return [folder / name for name in names]


def _ours(folder: Path) -> frozenset[str]:
    """What an earlier export wrote there."""
    if not (folder / MARKER).is_file():
        return frozenset()
    return frozenset(read_file(folder / MARKER, _MOST_LIST_BYTES).decode().splitlines())


def _check(folder: Path, name: str, content: str | Path, own_names: frozenset[str]) -> None:
    path = folder / name
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            raise StoreError(f"{part} is a link, which exports do not follow. Remove it.")
    if not path.exists() or name in own_names:
        return
    new_bytes = content.encode() if isinstance(content, str) else content.read_bytes()
    if not path.is_file() or path.read_bytes() != new_bytes:
        raise StoreError(
            f"{path} exists and was not written by an export. Choose another --out, or move it."
        )


def _place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy(source: Path, path: Path) -> None:
    """In one step, and to a new file: what lies there may be a second name of another file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        shutil.copyfile(source, temporary)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
