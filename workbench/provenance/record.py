"""`Provenance`: what a run was made from, as typed fields of its record and files beside it.

Recorded when a run is launched, within a second, and never in the way of the launch: what cannot
be read is left out, and `Provenance.notes` says why.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

from workbench.provenance.files import fingerprint, named_paths, own_files
from workbench.provenance.git import Checkout, checkout
from workbench.store.files import write_bytes_atomic
from workbench.store.run_record import ProvenanceDoc
from workbench.store.secrets_in_settings import hide_in_file

CHANGES = "changes.diff"
_INSTALLED = re.compile(r"(.+?)-([^-]+?)(?:-py3\.\d+)?\.(?:dist|egg)-info")
_GIT_SECONDS = 0.7
_DATA_SECONDS = 0.2
_EACH_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPart:
    """A file or folder that the script's arguments name."""

    option: str
    """The option before it; "" = none."""
    path: str
    """Where it lies, absolute."""
    bytes: int
    """Its size; of a folder the sum of its first 2,000 files."""
    sha256: str
    """Of size, beginning and end of a file; of the names and sizes in a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a run was made from."""

    repository: str | None = None
    """Top folder of the repository that the script lies in; None = in none."""
    commit: str | None = None
    """What is checked out there, 20 digits."""
    changes_sha256: str | None = None
    """Of the uncommitted changes, which ``source/changes.diff`` has; None = none, or see notes."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """SHA-256 of the script's own files, by their path relative to the script's folder."""
    copied: tuple[str, ...] = ()
    """Those of them that no commit holds: they lie in ``source/``."""
    python: str | None = None
    """Version of Python."""
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    """Version of each installed package, by name."""
    data: tuple[DataPart, ...] = ()
    """Files and folders that the arguments name."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that were set before the launch and tune a training."""
    notes: tuple[str, ...] = ()
    """What is not known, and why."""

    def document(self) -> ProvenanceDoc:
        """Plain JSON form."""
        return cast("ProvenanceDoc", asdict(self))


def record_provenance(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    ours: bool,
    keep: Path | None = None,
) -> Provenance:
    """What a launch of `script` is made from now; what goes wrong is a note of it.

    Args:
        script: The script.
        arguments: Its arguments.
        folder: Where it is started.
        environment: The variables that count.
        ours: The script is a recipe: its package's version says what is in it.
        keep: Folder for the changes and the copies; None = nothing is written.
    """
    try:
        return _record(script, arguments, folder, environment, ours=ours, keep=keep)
    except Exception as error:  # noqa: BLE001  (a launch continues without it)
        return Provenance(notes=(f"What the run is made from cannot be read: {error!r}.",))


def _record(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    ours: bool,
    keep: Path | None,
) -> Provenance:
    own = {} if ours else own_files(script, arguments, folder)
    repository = checkout(script.parent, own, _GIT_SECONDS)
    notes = list(repository.notes if repository else ())
    uncommitted = _not_in_commit(own, repository)
    names = _names(own, script.parent)
    copies = {names[path]: data for path, data in uncommitted.items()}
    if keep is not None:
        texts = {CHANGES: repository.diff} if repository and repository.diff else {}
        notes += _write(keep, {**texts, **copies})
    data, late = _data(arguments, folder)
    return Provenance(
        repository=str(repository.folder) if repository else None,
        commit=repository.commit if repository else None,
        changes_sha256=repository.diff_sha256 if repository else None,
        files={names[path]: hashlib.sha256(text).hexdigest() for path, text in own.items()},
        copied=tuple(copies),
        python=platform.python_version(),
        packages=installed_packages(),
        data=data,
        environment=dict(environment),
        notes=(*notes, *late),
    )


def _not_in_commit(own: Mapping[Path, bytes], repository: Checkout | None) -> dict[Path, bytes]:
    if repository is None or repository.diff is None:
        return dict(own)
    return {path: data for path, data in own.items() if path.resolve() not in repository.tracked}


def _names(own: Iterable[Path], folder: Path) -> dict[Path, str]:
    """Of each file its name in the record, never that of another: a second one is numbered."""
    names = dict[Path, str]()
    for path in own:
        name, number = _relative(path, folder), 1
        while name in names.values():
            number += 1
            name = f"{number}/{path.name}"
        names[path] = name
    return names


def _relative(path: Path, folder: Path) -> str:
    """Below the script's folder, or its bare name: a copy never lies outside of its folder."""
    inside = path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts
    return path.relative_to(folder).as_posix() if inside else path.name


def _write(keep: Path, texts: Mapping[str, bytes]) -> list[str]:
    redacted = {name: _without_secrets(name, text) for name, text in texts.items()}
    try:
        for name, text in redacted.items():
            (keep / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes_atomic(keep / name, text, hide=False)
    except OSError as error:
        return [f"Source files cannot be kept: {error}."]
    hidden = [name for name, text in texts.items() if redacted[name] != text]
    return [f"Secrets are hidden in source/{name}." for name in hidden]


def _without_secrets(name: str, text: bytes) -> bytes:
    """Of the changes each file's part as what it is a part of."""
    if name != CHANGES:
        return hide_in_file(name, text)
    return b"".join(hide_in_file(_named_in(part), part) for part in _EACH_FILE.split(text))


def _named_in(part: bytes) -> str:
    """The file that a part of the changes is about."""
    return part.partition(b"\n")[0].decode("utf-8", "replace").rstrip('"')


def _data(arguments: Sequence[str], folder: Path) -> tuple[tuple[DataPart, ...], list[str]]:
    parts, deadline = list[DataPart](), time.monotonic() + _DATA_SECONDS
    for option, path in named_paths(arguments, folder):
        try:
            size, digest = fingerprint(path, deadline)
        except TimeoutError:
            return tuple(parts), [f"Data from {path} on is not fingerprinted: it took too long."]
        except OSError:
            continue
        parts.append(DataPart(option=option, path=str(path), bytes=size, sha256=digest))
    return tuple(parts), []


def installed_packages() -> dict[str, str]:
    """Version of each package, by its normalised name, in order of the names.

    From the names of the metadata folders alone: reading all metadata takes a tenth of a second.
    """
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            changed = Path(folder).stat().st_mtime_ns if folder else 0
        except OSError:
            continue
        for name, version in _in_folder(folder, changed):
            versions.setdefault(name, version)
    return dict(sorted(versions.items()))


@cache
def _in_folder(folder: str, _changed: int) -> tuple[tuple[str, str], ...]:
    try:
        names = sorted(os.listdir(folder)) if folder else []
    except OSError:
        return ()
    matches = filter(None, map(_INSTALLED.fullmatch, names))
    return tuple((re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]) for match in matches)
