"""An export's files on disk: the user's own are never overwritten, links never followed.

The folder keeps a list of what was written. What stands in it may be written again, all else that
lies there with other content is somebody's own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from workbench.errors import StoreError
from workbench.store.files import read_file, write_text_atomic

MARKER = ".workbench-export"
"""Names of the files of the last export, one per line; written last."""
_MOST_BYTES = 64_000_000


def write_all(folder: Path, texts: Mapping[str, str], copies: Mapping[str, Path]) -> list[Path]:
    """Write `texts` and copy `copies`, name -> content, into `folder`; returns what was written.

    Raises:
        StoreError: before anything is written: a file of that name is not an export's, or a link
            is in the way. Later: the disk refused.
    """
    try:
        ours = _ours(folder)
        for name, content in {**texts, **copies}.items():
            _check(folder, name, content, ours)
        for name, text in texts.items():
            path = _place(folder, name)
            write_text_atomic(path, text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        for name, source in copies.items():
            _copy(source, _place(folder, name))
        names = [*texts, *copies]
        write_text_atomic(folder / MARKER, "\n".join(sorted({*ours, *names})) + "\n")
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
    return frozenset(read_file(folder / MARKER, _MOST_BYTES).decode().splitlines())


def _check(folder: Path, name: str, content: str | Path, ours: frozenset[str]) -> None:
    path = folder / name
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            raise StoreError(f"{part} is a link, which exports do not follow. Remove it.")
    if not path.exists() or name in ours:
        return
    wanted = content.encode() if isinstance(content, str) else content.read_bytes()
    if not path.is_file() or path.read_bytes() != wanted:
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
