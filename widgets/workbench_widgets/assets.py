"""The JavaScript and CSS of the faces: a bundle for each, named after all of it, and plotly.js.

The files are published once into ``<store>/_assets`` so that Jupyter's own ``/files/`` URL can
serve them to a page whose kernel is busy or gone; where it cannot, they travel gzip-compressed
over the comm. plotly.js is taken from the installed ``plotly``: no network, no vendored copy.

A store may belong to another user, and what lies in its ``_assets`` runs in the page of everyone
who views a run there. So a page gets the hash of each file, and runs nothing that differs.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
LOADER = STATIC / "loader.js"
FALLBACK = "fallback.js"
ASSETS_FOLDER = "_assets"
_IMPORT = re.compile(r'from "\./([\w.]+)"')  # as loader.js links them
_MOUNT = re.compile(r"^export (?:function mount\(|const mount = )", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)[ \t]*$", re.MULTILINE | re.DOTALL)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


@functools.cache
def modules() -> dict[str, str]:
    """Name -> text of every module but the loader."""
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(STATIC.glob("*.js"))
        if path != LOADER
    }


def faces() -> list[str]:
    """The modules that draw a widget: those with a ``mount``."""
    return [name for name, text in modules().items() if _MOUNT.search(text)]


@functools.cache
def bundle_text(face: str) -> str:
    """The style sheet and the modules that `face` ("runs.js") needs, as one JSON document."""
    needed: dict[str, str] = {}
    waiting = [face, FALLBACK]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = _without_comments(modules()[name])
            waiting += _IMPORT.findall(needed[name])
    return json.dumps({"css": _INDENT.sub("", _css()), "modules": needed}, ensure_ascii=False)


def _without_comments(text: str) -> str:
    """A module without comments on lines of their own and indentation; line numbers stay."""
    return _INDENT.sub("", _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text))


def _css() -> str:
    return (STATIC / "workbench.css").read_text(encoding="utf-8")


@functools.cache
def version() -> str:
    """Short content hash of all modules and the loader: a new version is a new URL."""
    content = json.dumps(modules()) + _css() + LOADER.read_text(encoding="utf-8")
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def bundle_name(face: str) -> str:
    """File name of the bundle of `face` in ``_assets``."""
    return f"workbench-{version()}-{face.removesuffix('.js')}.json"


def loader_name() -> str:
    """File name of the loader in ``_assets``."""
    return f"workbench-{version()}.js"


@functools.cache
def plotly_file() -> Path:
    """plotly.js inside the installed package, found without importing plotly.

    Raises:
        FileNotFoundError: plotly is not installed, or has no plotly.js.
    """
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "plotly.js was not found, which the charts need. Install it: pip install 'plotly>=6.1'"
    )


@functools.cache
def plotly_name() -> str:
    """File name of plotly.js in ``_assets``."""
    return f"plotly-{importlib.metadata.version('plotly')}.min.js"


def publish(store: Path, face: str) -> bool:
    """Put `face`'s files into ``<store>/_assets`` unless they are there.

    False where they are missing or differ, and cannot be written.
    """
    folder = store / ASSETS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(face).items():
            if not _holds(folder / name, content):
                write_atomic(folder / name, content)
    except OSError:
        return False
    return True


def integrity(face: str) -> dict[str, str]:
    """Name of each file of `face` -> its hash, as the page's ``fetch`` and ``<script>`` check it.

    Raises:
        FileNotFoundError: plotly.js is not installed.
    """
    return {name: _hash(content) for name, content in _files(face).items()}


def _files(face: str) -> dict[str, bytes]:
    return {
        bundle_name(face): bundle_text(face).encode(),
        loader_name(): LOADER.read_bytes(),
        plotly_name(): _plotly(),
    }


@functools.cache
def _plotly() -> bytes:
    return plotly_file().read_bytes()


@functools.cache
def _hash(content: bytes) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


def _holds(target: Path, content: bytes) -> bool:
    if not target.is_file() or target.stat().st_size != len(content):
        return False
    return target.read_bytes() == content


def write_atomic(target: Path, content: bytes) -> None:
    """Replace `target` in one step: no page ever reads half a script. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix="partial-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@functools.cache
def compressed(asset: str, face: str) -> bytes:
    """``"bundle"`` of `face`, or ``"plotly"``, as gzip for the comm; raises KeyError of others."""
    sources = {"bundle": lambda: bundle_text(face).encode(), "plotly": _plotly}
    return gzip.compress(sources[asset](), compresslevel=6)


def send_asset(widget: Any, name: str) -> None:
    """Send a gzip-compressed asset to a page that cannot get it through ``/files/``."""
    face = widget.config["face"] if name == "bundle" else ""  # plotly.js is everyone's
    widget.send({"type": "asset", "name": name}, buffers=[compressed(name, face)])
