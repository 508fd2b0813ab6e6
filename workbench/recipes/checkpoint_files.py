"""A checkpoint is a folder with a manifest: the size and SHA-256 of every file in it.

It is written as ``partial-…``, synced to the disk, sealed with its manifest and renamed, so a
folder called ``step-00000020`` is whole, and every byte can be checked against the manifest.
Standard library only: the recipes, the capture hook and the supervisor share this file.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

MANIFEST = "manifest.json"
SCHEMA = 1
STEP = "step-{:08d}"
PARTIAL = "partial-"  # of a folder that is being written
_CHUNK_BYTES = 1 << 22
_MANIFEST_MAX_BYTES = 64 << 20
_THREADS = 8  # hashing lets go of the interpreter: about 1.5 GB/s for each core that is free


def seal(folder: Path, *, step: int, **about: Any) -> dict[str, Any]:
    """Sync every file of `folder` to the disk and write its manifest, which is returned.

    Args:
        folder: Complete: nothing is written into it now.
        step: Optimizer steps done.
        about: More for the manifest: world_size, kind, strategy, loss …

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    folder = Path(folder)
    manifest = {"schema": SCHEMA, "step": step, "saved_at": time.time(), **about}
    manifest |= inventory(folder, sync=True)
    write_synced(folder / MANIFEST, json.dumps(manifest, indent=1))
    for inner in {folder, *(path.parent for path in _files(folder))}:
        _sync(inner)
    return manifest


def publish(partial: Path, final: Path) -> None:
    """Give a sealed folder its name, in place of an older one of that name; synced."""
    partial, final = Path(partial), Path(final)
    replaced = final.with_name(f"{PARTIAL}replaced-{final.name}")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def inventory(folder: Path, *, sync: bool = False) -> dict[str, Any]:
    """What a manifest says of the files: ``total_bytes`` and ``files`` by relative path."""
    paths = _files(folder)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(functools.partial(_digest, sync=sync), paths))
    files = {
        path.relative_to(folder).as_posix(): {"bytes": size, "sha256": digest}
        for path, (size, digest) in zip(paths, digests, strict=True)
    }
    return {"total_bytes": sum(size for size, _ in digests), "files": files}


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest in `folder`; None where there is none that can be read."""
    return read_manifest(Path(folder) / MANIFEST)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """A manifest from its file; None if it is missing, torn, or of another form."""
    try:
        if path.stat().st_size > _MANIFEST_MAX_BYTES:
            return None
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    manifest = cast("dict[str, Any]", document)
    right = type(manifest.get("step")) is int and isinstance(manifest.get("files"), dict)
    return manifest if right else None


def why_broken(folder: Path, *, read: bool = True) -> str:
    """What is wrong with a checkpoint, as the end of a sentence; "" if nothing is.

    Args:
        folder: The checkpoint; its manifest is inside.
        read: Read every byte. False: names and sizes only, which takes no time.

    >>> why_broken(Path("/nowhere"))
    'the folder does not exist'
    """
    folder = Path(folder)
    if not folder.is_dir():
        return "the folder does not exist"
    manifest = manifest_of(folder)
    if manifest is None:
        missing = not (folder / MANIFEST).exists()
        return f"{MANIFEST} is missing" if missing else f"{MANIFEST} cannot be read"
    return differs(folder, manifest, read=read)


def differs(folder: Path, manifest: Mapping[str, Any], *, read: bool = True) -> str:
    """How the files of `folder` differ from a manifest; "" if they do not."""
    expected = dict[Path, tuple[int, str]]()
    files: dict[str, Any] = manifest["files"]
    for name, entry in files.items():
        try:
            size, digest = entry["bytes"], str(entry["sha256"])
        except (KeyError, TypeError):
            return f"{MANIFEST} does not describe {name!r}"
        if Path(name).is_absolute() or ".." in Path(name).parts or type(size) is not int:
            return f"{MANIFEST} lists an impossible file: {name!r}"
        expected[Path(name)] = (size, digest)
    for name, (size, _) in expected.items():
        actual = _size(folder / name)
        if actual is None:
            return f"{name} is missing"
        if actual != size:
            return f"{name} has {actual:,} bytes instead of {size:,}"
    return _other_content(folder, expected) if read else ""


def complete_in(parent: Path) -> list[Path]:
    """The checkpoints in `parent` whose files have their names and sizes, newest first by step."""
    return [folder for folder in named(parent) if not why_broken(folder, read=False)]


def named(parent: Path) -> list[Path]:
    """The folders in `parent` called ``step-…``, newest first by step, whole or not."""
    try:
        numbered = [(step_of(path), path) for path in Path(parent).iterdir()]
    except OSError:
        return []
    steps = [(step, path) for step, path in numbered if step is not None and path.is_dir()]
    return [path for _, path in sorted(steps, reverse=True)]


def newest_complete(parent: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of which every byte is right, and a sentence per one passed over."""
    passed = list[str]()
    for folder in named(parent):
        problem = why_broken(folder)
        if not problem:
            return folder, passed
        passed.append(f"{folder.name} is skipped: {problem}.")
    return None, passed


def prune(
    parent: Path, keep_last: int | None, keep_best: int | None, *, step: int | None = None
) -> list[Path]:
    """Remove all but the newest `keep_last` and the `keep_best` of lowest loss; None: keep all.

    The newest whole one always stays. What goes loses its name first, so a process that dies here
    leaves nothing half removed under a checkpoint's name.

    `step` is where the training stands. Checkpoints of later steps are of a course from which it
    has gone back: they stay, and none of its own goes in their favour.
    """
    if keep_last is None and keep_best is None:
        return []
    there = [path for path in complete_in(parent) if step is None or (step_of(path) or 0) <= step]
    retained = set(there[: max(1, keep_last or 0)])
    losses = [(about.get("loss"), path) for path in there if (about := manifest_of(path))]
    scored = [(loss, path) for loss, path in losses if isinstance(loss, int | float)]
    retained |= {path for _, path in sorted(scored, key=lambda pair: pair[0])[: keep_best or 0]}
    removed = [path for path in there if path not in retained]
    for path in removed:
        without_name = path.with_name(f"{PARTIAL}removed-{path.name}")
        path.rename(without_name)
        shutil.rmtree(without_name, ignore_errors=True)
    return removed


def step_of(folder: Path) -> int | None:
    """The step in a checkpoint's name; None for any other name.

    >>> step_of(Path("runs/a/checkpoints/step-00000020")), step_of(Path("partial-00000020"))
    (20, None)
    """
    match = re.fullmatch(r"step-(\d{1,18})", Path(folder).name, re.ASCII)
    return int(match[1]) if match else None


def write_synced(path: Path, text: str) -> None:
    """Write a file under another name, sync it, rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _files(folder: Path) -> list[Path]:
    """All regular files below, without the manifest; links are not followed."""
    files = list[Path]()
    for parent, folders, names in os.walk(folder):
        folders.sort()
        files += [Path(parent, name) for name in sorted(names)]
    own = {folder / MANIFEST, folder / f".{MANIFEST}.tmp"}
    return [path for path in files if path not in own and _size(path) is not None]


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None for anything else."""
    try:
        about = path.lstat()
    except (OSError, ValueError):
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _digest(path: Path, *, sync: bool = False) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def _other_content(folder: Path, expected: Mapping[Path, tuple[int, str]]) -> str:
    """The first file whose bytes are not those that were sealed."""

    def content(name: Path) -> str | None:
        try:
            return _digest(folder / name)[1]
        except OSError:
            return None

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        contents = list(pool.map(content, expected))
    for (name, (_, digest)), real in zip(expected.items(), contents, strict=True):
        if real is None:
            return f"{name} cannot be read"
        if real != digest:
            return f"{name} does not have the content that was saved (its SHA-256 differs)"
    return ""


def _sync(folder: Path) -> None:
    """A folder's own entries; some file systems do not know that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
