"""The checkpoints of a run: what there is, whether it is whole, which one to resume from."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from workbench.recipes import checkpoint_files
from workbench.recover import contents, dcp_table
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths
from workbench.store.ownership import foreign_part, in_closed_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run, as a look at names and sizes shows it."""

    path: Path
    """Its folder, or its file; absolute."""
    step: int | None
    """Optimizer steps done when it was written; None = nothing in it says so."""
    kind: str
    """Who wrote it: ``recipe``, ``accelerate``, ``trainer``, ``deepspeed``, ``lightning``, ``dcp``,
    ``pretrained`` (weights alone), or ``torch`` for the script itself with `torch.save`."""
    bytes: int
    """All its files together."""
    saved_at: float | None
    """Unix seconds; None = not known."""
    sealed: bool
    """Whether sizes and hashes of its files were kept, so that it can be verified."""
    problem: str
    """Why no one should resume from it, as far as sizes tell; "" = nothing known against it."""
    manifest: Path | None = None
    """Where sizes and hashes are kept: inside the folder, or in the run for a script's own."""
    loss: float | None = None
    """Loss when it was written, where its manifest says so."""
    world_size: int | None = None
    """Processes that wrote it, where known."""
    strategy: str | None = None
    """The strategy that wrote it, where its manifest says so."""
    abandoned: bool = False
    """Whether the run has gone back to before it since: it is of a course that was given up. No one
    resumes from it unless it is named."""
    by_script: bool = False
    """Whether the script wrote it its own way, so that it was found by its content."""
    doubt: str = ""
    """Why another run may have written it, as the end of a sentence. No one resumes from it unless
    it is named."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def usable(self) -> bool:
        """Whether it may be taken without being named, as far as sizes tell."""
        return not (self.problem or self.abandoned or self.doubt)

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as in view.json."""
        document = {**asdict(self), "path": str(self.path), "name": self.name}
        del document["manifest"]
        return document


def list_checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """Every checkpoint of the run, newest step first; looks at names and sizes only."""
    by_path = {path: _own(paths, path) for path in checkpoint_files.named(paths.checkpoints)}
    for path, line in _reported(paths):
        if path not in by_path and path.is_dir():
            by_path[path] = _foreign(paths, path, line)
    left = given_up(paths)
    return newest_first(
        replace(checkpoint, abandoned=(str(checkpoint.path), checkpoint.saved_at) in left)
        for checkpoint in by_path.values()
    )


def newest_first(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """By step, then by time; those of an unknown step last."""

    def order(checkpoint: Checkpoint) -> tuple[int, float]:
        return (-1 if checkpoint.step is None else checkpoint.step, checkpoint.saved_at or 0.0)

    return sorted(checkpoints, key=order, reverse=True)


def verify(checkpoint: Checkpoint) -> str:
    """Read every byte; what is wrong as the end of a sentence, "" if the checkpoint is whole.

    Without kept hashes the files are read by what their own formats promise: the checksums of
    torch's archives, the table of safetensors, JSON that parses. With or without, the table of a
    distributed checkpoint must name all that another layout needs.
    """
    if checkpoint.problem:
        return checkpoint.problem
    single = checkpoint.path.is_file()
    foreign = _foreign_file(checkpoint.path) if single else foreign_part(checkpoint.path)
    if foreign is not None:  # to load it can run its code
        return foreign
    if checkpoint.manifest is None:
        return contents.why_broken(checkpoint.path)
    manifest = checkpoint_files.read_manifest(checkpoint.manifest)
    if manifest is None:
        return f"{checkpoint.manifest.name} cannot be read"
    changed = checkpoint_files.differs(checkpoint.path, manifest)
    if changed or not (checkpoint.path / dcp_table.TABLE).is_file():
        return changed
    return dcp_table.why_unreadable(checkpoint.path)  # its bytes are those that were written


def _foreign_file(path: Path) -> str | None:
    """Why a checkpoint of one file is not this user's own; None = it is."""
    about = path.lstat()
    open_to_all = about.st_mode & stat.S_IWOTH and not in_closed_folder(path)
    if about.st_uid not in {0, os.geteuid()} or open_to_all:
        return "it belongs to another user, or others can write to it"
    return None


def newest_intact(
    paths: RunPaths, checkpoints: Iterable[Checkpoint] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of which every byte is right, and a sentence per one passed over.

    `checkpoints`: those to choose from; default those that the run knows of.
    """
    listed = list_checkpoints(paths) if checkpoints is None else checkpoints
    return first_intact(
        checkpoint for checkpoint in listed if not (checkpoint.abandoned or checkpoint.doubt)
    )


def first_intact(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint | None, list[str]]:
    """The first of which every byte is right, and a sentence per one passed over."""
    passed = list[str]()
    for checkpoint in checkpoints:
        problem = verify(checkpoint)
        if not problem:
            return checkpoint, passed
        passed.append(f"Checkpoint {checkpoint.name} is skipped: {problem}.")
    return None, passed


def given_up(paths: RunPaths) -> set[tuple[str, float | None]]:
    """Path and time of what lay beyond the step from which an attempt continued.

    Names, not an order of times: a clock that is set back must not make new ones look old.
    """
    reader, abandoned = LineReader(paths.attempts), set[tuple[str, float | None]]()
    own = (paths.directory.name, paths.checkpoints.name)

    def here(place: object) -> str:
        """Of a checkpoint of the run itself: where it lies now, however the store was moved."""
        path = Path(str(place))
        return str(paths.checkpoints / path.name if path.parts[-3:-1] == own else path)

    while lines := reader.read():
        for line in lines:
            # What was resumed from by name since is taken back into use.
            abandoned = {pair for pair in abandoned if pair[0] != here(line.get("checkpoint"))}
            entries = line.get("given_up")
            for entry in cast("list[Any]", entries) if isinstance(entries, list) else ():
                if isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
                    path, saved_at = cast("list[Any]", entry)
                    abandoned.add((here(path), _number(saved_at)))
    return abandoned


def manifest_path(paths: RunPaths, checkpoint: Path) -> Path:
    """Where the run keeps the manifest of a checkpoint that the script wrote its own way."""
    place = hashlib.sha256(str(checkpoint).encode(errors="surrogateescape")).hexdigest()[:12]
    return paths.manifests / f"{checkpoint.name[:80]}-{place}.json"


def _own(paths: RunPaths, folder: Path) -> Checkpoint:
    """A folder ``step-…`` of the run itself; its manifest knows better than a name."""
    step = checkpoint_files.step_of(folder)
    assert step is not None
    found = _find_manifest(paths, folder, None)
    if found is not None:
        manifest, place = found
        inside = _whole_number(manifest.get("step"))
        step = step if inside is None else inside
        return _with_manifest(
            folder, step, str(manifest.get("kind") or "accelerate"), manifest, place
        )
    torn = (folder / checkpoint_files.MANIFEST).exists()  # else of a version that wrote none
    problem = f"{checkpoint_files.MANIFEST} cannot be read" if torn else ""
    return _without_manifest(folder, step, "accelerate", problem, None)


def _foreign(paths: RunPaths, folder: Path, line: dict[str, Any]) -> Checkpoint:
    """A checkpoint that the hook saw the script write, wherever it lies."""
    step, kind = _whole_number(line.get("step")) or 0, str(line.get("kind") or "accelerate")
    saved_at = _number(line.get("time"))
    found = _find_manifest(paths, folder, saved_at)
    if found is not None:
        return _with_manifest(folder, step, kind, *found)
    size = _whole_number(line.get("world_size"))
    return _without_manifest(folder, step, kind, "", saved_at, size)


def _find_manifest(
    paths: RunPaths, folder: Path, saved_at: float | None
) -> tuple[dict[str, Any], Path] | None:
    """The manifest and its file: the checkpoint's own, or the one that the run keeps of it."""
    place = folder / checkpoint_files.MANIFEST
    manifest = checkpoint_files.read_manifest(place)
    if manifest is not None or place.exists():
        return None if manifest is None else (manifest, place)
    place = manifest_path(paths, folder)
    manifest = checkpoint_files.read_manifest(place)
    if manifest is None or (saved_at or 0.0) > (_number(manifest.get("saved_at")) or 0.0):
        return None  # written again since
    return manifest, place


def _with_manifest(
    folder: Path, step: int, kind: str, manifest: dict[str, Any], manifest_file: Path
) -> Checkpoint:
    strategy = manifest.get("strategy")
    return Checkpoint(
        path=folder,
        step=step,
        kind=kind,
        bytes=_whole_number(manifest.get("total_bytes")) or 0,
        saved_at=_number(manifest.get("saved_at")),
        sealed=True,
        problem=checkpoint_files.differs(folder, manifest, read=False),
        manifest=manifest_file,
        loss=_number(manifest.get("loss")),
        world_size=_whole_number(manifest.get("world_size")),
        strategy=strategy if isinstance(strategy, str) else None,
    )


def _without_manifest(
    folder: Path,
    step: int,
    kind: str,
    problem: str,
    saved_at: float | None,
    world_size: int | None = None,
) -> Checkpoint:
    total, newest = contents.measure(folder)
    return Checkpoint(
        path=folder,
        step=step,
        kind=kind,
        bytes=total,
        saved_at=saved_at or newest,
        sealed=False,
        problem=problem or ("" if total else "it is empty"),
        world_size=world_size,
    )


def _reported(paths: RunPaths) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folder and line of each checkpoint in checkpoints.jsonl; the latest word on each."""
    reader, latest = LineReader(paths.saved), dict[Path, dict[str, Any]]()
    while lines := reader.read():
        for line in lines:
            path = line.get("path")
            if isinstance(path, str) and path.startswith("/") and "\0" not in path:
                latest[Path(path)] = line
    return iter(latest.items())


def _whole_number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or not abs(value) < 1e18:  # neither nan nor huge
        return None
    return float(value)
