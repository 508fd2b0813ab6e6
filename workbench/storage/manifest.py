"""What lies below ``URL/RUN``: pieces named by their SHA-256, and the manifest that lists them.

``manifest.json`` is written last, in one step, so that a reader finds all of an earlier push or all
of a later one. Pieces that neither of the two latest manifests names are removed; those that a
failed push left behind a day later. Whatever is read from there may have been made by anybody: it
is checked here before anything is done with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any, cast

from workbench.errors import StorageError
from workbench.storage.remote import Remote
from workbench.store import names
from workbench.store.shapes import LAST_SECOND
from workbench.store.signatures import is_signed, sign

MANIFEST = "manifest.json"
PIECES = "pieces"
SCHEMA = 1
MAX_MANIFEST_BYTES = 64 << 20
MAX_PIECE_BYTES = 64 << 20
_MAX_FILES = 200_000
_MAX_PATH = 1024
_MAX_NAME = 200
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NEVER_SENT = {"control"}  # requests to a supervisor, locks


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of the run."""

    path: str
    """Relative to the run directory, with slashes."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """When it was changed; with its size it tells a later push that it is the same."""
    pieces: tuple[tuple[str, int], ...]
    """SHA-256 and bytes of each piece, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCheckpoint:
    """A checkpoint of which every byte was checked before it was sent."""

    path: str
    """Relative to the run directory."""
    step: int | None
    """Optimizer steps done; None = nothing in it says so."""
    kind: str
    """As in `recover.checkpoints.Checkpoint`."""
    saved_at: float | None
    """Unix seconds."""
    world_size: int | None
    """Processes that wrote it."""
    reported: bool
    """It lay outside of the run directory, where the hook saw it being written."""
    manifest: str | None
    """File of this push that has its sizes and hashes, where it is not inside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """``manifest.json``: a run as it was at one moment."""

    run: str
    """Its id."""
    marker: str
    """Tells it from another run of that id."""
    pushed_at: float
    """Unix seconds."""
    attempts: int
    """Times that it was started."""
    live: bool
    """Whether it was still training when it was pushed."""
    files: tuple[RemoteFile, ...]
    """All that was sent."""
    checkpoints: tuple[RemoteCheckpoint, ...]
    """Newest first."""
    before: tuple[str, ...] = ()
    """Pieces of the manifest before this one: a reader may still be at it."""
    which: str = "newest"
    """The checkpoints that were asked for, see `push.push`."""
    started_at: float | None = None
    """When it was started last, Unix seconds: of two copies that went on from one push, which it
    is. None = not yet, or a push of an earlier version."""
    proof: str = ""
    """That this user's workbench wrote all of it (`store.signatures`); "" = no one says so."""

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(file.bytes for file in self.files)

    @property
    def pieces(self) -> frozenset[str]:
        """Names of the pieces of all files."""
        return frozenset(digest for file in self.files for digest, _ in file.pieces)

    @property
    def step(self) -> int | None:
        """The furthest step that a checkpoint has."""
        return max(
            (checkpoint.step for checkpoint in self.checkpoints if checkpoint.step is not None),
            default=None,
        )

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        document = {"schema": SCHEMA, **asdict(self)}
        if self.which == "newest":  # as before there was a choice, so that old proofs hold
            del document["which"]
        if self.started_at is None:  # likewise
            del document["started_at"]
        return document

    @property
    def is_ours(self) -> bool:
        """Whether the key of this user on this machine wrote it: then its files are theirs, too."""
        return is_signed(self._signed_text(), self.proof)

    def signed(self) -> RemoteRun:
        """The same with a proof."""
        return replace(self, proof=sign(self._signed_text()))

    def _signed_text(self) -> bytes:
        return json.dumps({**self.document(), "proof": ""}, sort_keys=True).encode()


def read_remote_run(remote: Remote) -> RemoteRun | None:
    """What the last push to this address left; None = nothing.

    Raises:
        StorageError: it cannot be read, or is nothing that a push writes.
    """
    try:
        data = remote.read(MANIFEST, MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    try:
        return _parsed(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise StorageError(
            f"{remote.url}/{MANIFEST} is damaged or not written by workbench push ({error}). Push "
            "the run again from where it is."
        ) from error


def write_remote_run(remote: Remote, run: RemoteRun) -> None:
    """Make a push the one that readers find; raises StorageError."""
    remote.write(MANIFEST, json.dumps(run.signed().document(), separators=(",", ":")).encode())


def _parsed(document: Any) -> RemoteRun:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    run = _text(document["run"])
    if not names.is_id(run):
        raise ValueError(f"{run[:80]!r} is not a run id")
    files = tuple(_file(file) for file in _list(document["files"]))
    paths = {file.path for file in files}
    if len(files) > _MAX_FILES or len({path.lower() for path in paths}) != len(files):
        raise ValueError("too many files, or one twice")
    if any(str(parent) in paths for path in paths for parent in PurePosixPath(path).parents):
        raise ValueError("a file lies in a file")
    return RemoteRun(
        run=run,
        marker=_text(document["marker"]),
        pushed_at=_seconds(document["pushed_at"]),
        attempts=_natural_number(document["attempts"]),
        live=bool(document["live"]),
        files=files,
        checkpoints=tuple(_checkpoint(checkpoint) for checkpoint in _list(document["checkpoints"])),
        before=tuple(_digest(digest) for digest in _list(document["before"])),
        which=_text(document.get("which", "newest")),
        started_at=None if document.get("started_at") is None else _seconds(document["started_at"]),
        proof=_text(document["proof"]),
    )


def _file(document: Any) -> RemoteFile:
    pieces = tuple(
        (_digest(digest), _natural_number(size)) for digest, size in _list(document["pieces"])
    )
    size = _natural_number(document["bytes"])
    if any(not 0 < piece <= MAX_PIECE_BYTES for _, piece in pieces) or size != sum(
        n for _, n in pieces
    ):
        raise ValueError("sizes of pieces do not fit")
    return RemoteFile(
        path=safe_path(_text(document["path"])),
        bytes=size,
        mtime_ns=_natural_number(document["mtime_ns"]),
        pieces=pieces,
    )


def _checkpoint(document: Any) -> RemoteCheckpoint:
    step, world = document["step"], document["world_size"]
    saved, manifest = document["saved_at"], document["manifest"]
    return RemoteCheckpoint(
        path=safe_path(_text(document["path"])),
        step=None if step is None else _natural_number(step),
        kind=_text(document["kind"]),
        saved_at=None if saved is None else _seconds(saved),
        world_size=None if world is None else _natural_number(world),
        reported=bool(document["reported"]),
        manifest=None if manifest is None else safe_path(_text(manifest)),
    )


def safe_path(path: str) -> str:
    """`path`, if a file of that name lies inside of the run directory on any machine.

    Raises:
        ValueError: it is absolute, leads out of it, or has a name that is not allowed.
    """
    parts = path.split("/")
    wrong = (
        len(path) > _MAX_PATH
        or any(part in {"", ".", ".."} or len(part.encode()) > _MAX_NAME for part in parts)
        or not path.isprintable()
        or "\\" in path
        or parts[0] in _NEVER_SENT
    )
    if wrong:
        raise ValueError(f"the path {path[:80]!r} is not allowed")
    return path


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_PATH:
        raise TypeError("a text is missing or too long")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return cast("list[Any]", value)


def _natural_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError("a number is missing")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in {int, float} or not 0 <= value <= LAST_SECOND:
        raise TypeError("a time is missing")
    return float(value)


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise TypeError("a SHA-256 is missing")
    return value
