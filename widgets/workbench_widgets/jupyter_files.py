"""Where a directory is behind Jupyter's ``/files/`` URL, if it is there at all.

The answer is a guess that the browser checks: it reads ``run.json`` through the URL and compares
the run id before it trusts it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def server_roots() -> list[Path]:
    """Root directories of the running Jupyter servers; the one that started us comes first."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir  # noqa: PLC0415 - only in Jupyter
    except ImportError:
        return []
    ours = f"jpserver-{os.environ.get('JPY_PARENT_PID', '')}.json"
    try:
        files = sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json"))
    except OSError:
        return []
    files.sort(key=lambda path: path.name != ours)
    if files and files[0].name == ours:
        files = files[:1]
    return [root for root in map(_root_of, files) if root is not None]


def _root_of(info_file: Path) -> Path | None:
    """Root directory in a server's info file, None when its server is gone."""
    try:
        info = json.loads(info_file.read_text(encoding="utf-8"))
        os.kill(int(info["pid"]), 0)
        return Path(info["root_dir"])
    except PermissionError:  # another user's server: alive, but not ours to read
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def served_path(directory: Path, roots: list[Path] | None = None) -> str | None:
    """Path of ``directory`` relative to the server's root, None when it is not served.

    Jupyter serves nothing whose path below the root has a hidden part (a leading dot).
    """
    for root in server_roots() if roots is None else roots:
        for path, base in (
            (Path(os.path.abspath(directory)), Path(os.path.abspath(root))),  # noqa: PTH100 - keeps symlinks
            (directory.resolve(), root.resolve()),
        ):
            if path.is_relative_to(base):
                parts = path.relative_to(base).parts
                if not any(part.startswith(".") for part in parts):
                    return "/".join(parts)
    return None
