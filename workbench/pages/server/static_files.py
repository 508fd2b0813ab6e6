"""The page's own files: modules and style sheets of the widgets, and plotly.js."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import HostError

_NAME = re.compile(r"[a-z_]+\.(?:js|css)")
PLOTLY = "plotly.min.js"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file of the page."""

    data: bytes
    """Its content, compressed with gzip."""
    kind: str
    """Its MIME type."""


def folder() -> Path:
    """Where the JavaScript lies; the package is found, not imported.

    Raises:
        HostError: the installation lacks it.
    """
    spec = importlib.util.find_spec("workbench_widgets")
    for place in (spec.submodule_search_locations or []) if spec else []:
        static = Path(place) / "static"
        if (static / "site.js").is_file():
            return static
    raise HostError(
        "The page's files (workbench_widgets/static) are not installed. Install the workbench "
        "again: pip install --force-reinstall training-workbench"
    )


@functools.cache
def plotly_file() -> Path | None:
    """plotly.js of the installed package, found without importing it; None = not installed."""
    spec = importlib.util.find_spec("plotly")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "package_data" / PLOTLY
        if path.is_file():
            return path
    return None


@functools.cache
def version() -> str:
    """Short hash of all files: a new version has new addresses, so that browsers may keep them."""
    digest = hashlib.sha256()
    for path in sorted(folder().glob("*.*")):
        digest.update(path.name.encode() + path.read_bytes())
    with_plotly = importlib.metadata.version("plotly") if plotly_file() else ""
    return hashlib.sha256(digest.digest() + with_plotly.encode()).hexdigest()[:12]


@functools.cache
def read(name: str) -> StaticFile | None:
    """One of the files; None where there is none of that name."""
    path = plotly_file() if name == PLOTLY else folder() / name if _NAME.fullmatch(name) else None
    if path is None or not path.is_file():
        return None
    return StaticFile(data=gzip.compress(path.read_bytes(), 6), kind=_TYPES[path.suffix])
