"""Checkpoints that the workbench did not write: whose they are, and the step in their content.

Names of folders and files are never taken for a step. Nothing is unpickled, see `pickled`; files
are opened only as far as their tables go, so that a checkpoint of a terabyte costs milliseconds.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from workbench.recipes import checkpoint_files
from workbench.recover.counters import COUNTERS, count_of, counted_steps, optimizer_updates
from workbench.recover.pickled import UNREADABLE, Call, Saved, read_pickle, read_saved
from workbench.recover.series import are_series

MAX_FILES = 64
"""Files of one folder that are opened to find the step."""
_MAX_ENTRIES = 5000  # of a folder that are looked at by name
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl")
_TRAINER_FILES = (
    *("rng_state", "optimizer.", "scheduler.", "scaler.", "training_args."),
    *("pytorch_model", "adapter_model"),
)
_PRETRAINED = (
    ("adapter_config.json", "adapter_model.safetensors"),
    ("adapter_config.json", "adapter_model.bin"),
    ("config.json", "model.safetensors"),
    ("config.json", "pytorch_model.bin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedCheckpoint:
    """What a folder or file is, by its content."""

    kind: str
    """recipe, trainer, deepspeed, lightning, accelerate, dcp, pretrained for what `save_pretrained`
    wrote (weights alone), or torch for what `torch.save` wrote."""
    step: int | None
    """Optimizer steps done when it was written; None = its content does not say."""
    updates: int | None = None
    """What its optimizer counts itself, as Adam does; one that was built again counts from 0."""
    problem: str = ""
    """What is missing in it, as the end of a sentence; "" = nothing that can be seen."""
    world_size: int | None = None
    """Processes that wrote it, where known."""


def identify(path: Path) -> IdentifiedCheckpoint | None:
    """What the checkpoint at `path` is; None: nothing in it is known as one."""
    try:
        if path.is_file():
            return _file(path)
        names = {entry.name for entry in itertools.islice(path.iterdir(), _MAX_ENTRIES)}
    except OSError:
        return None
    for identify_folder in _FOLDERS:
        identified = identify_folder(path, names)
        if identified is not None:
            return identified
    return None


def candidates(folder: Path, limit: int = 200) -> Iterator[Path]:
    """What may be checkpoints in a folder of a training: itself, and what lies below.

    Two levels, and a bounded number of entries; links are not followed.
    """
    waiting, looked = [(folder, 0)], 0
    while waiting and looked < limit:
        place, depth = waiting.pop(0)
        try:
            entries = sorted(itertools.islice(place.iterdir(), _MAX_ENTRIES))
        except OSError:
            continue
        looked += 1
        names = {entry.name for entry in entries}
        if any(
            identify_folder(place, names) for identify_folder in _FOLDERS[: -1 if depth else -2]
        ):
            yield place  # weights beside the script are what it starts from
            continue
        files = [entry for entry in entries if entry.suffix in _SUFFIXES and entry.is_file()]
        if depth and files and not are_series(files):
            yield place
            continue
        yield from (file for file in files if not file.is_symlink())
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir() and depth < 2:
                waiting.append((entry, depth + 1))


def _recipe(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """A checkpoint with our manifest; others use that name too, as a page or a pushed run."""
    if checkpoint_files.MANIFEST not in names:
        return None
    manifest = checkpoint_files.read_manifest(folder / checkpoint_files.MANIFEST)
    if manifest is None or count_of(manifest.get("step")) is None:
        return None
    kind = str(manifest.get("kind") or "recipe")
    return IdentifiedCheckpoint(kind=kind, step=count_of(manifest.get("step")))


def _trainer(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """Transformers' Trainer: trainer_state.json has global_step."""
    if "trainer_state.json" not in names:
        return _unfinished_trainer(folder, names)
    state = read_object(folder / "trainer_state.json")
    problem = "" if state is not None else "trainer_state.json cannot be read"
    return IdentifiedCheckpoint(
        kind="trainer", step=count_of((state or {}).get("global_step")), problem=problem
    )


def _unfinished_trainer(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """Without the file that it writes last; each rank writes the state of its generators itself."""
    files = [name for name in names if name.endswith(_SUFFIXES)]
    random = any(name.startswith("rng_state") for name in files)
    its = all(name.startswith(_TRAINER_FILES) for name in files)
    if not (random and its and folder.name.startswith("checkpoint-")):
        return None
    problem = "trainer_state.json is missing: it was being written"
    return IdentifiedCheckpoint(kind="trainer", step=None, problem=problem)


def _deepspeed(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """DeepSpeed: a tag's folder with …_model_states.pt, or the folder above it with ``latest``."""
    states = _model_states(names)
    if not states:
        return _deepspeed_latest(folder) if "latest" in names else None
    saved = _read(folder / states[0])
    if saved is None:
        return IdentifiedCheckpoint(
            kind="deepspeed", step=None, problem=f"{states[0]} cannot be read"
        )
    ranks = count_of(_top(saved).get("dp_world_size"))
    of_rank = [name for name in states if name.startswith("zero_pp_rank_")]  # ZeRO-3's weights
    optimizers = [name for name in names if name.endswith("_optim_states.pt")]
    problem = ", ".join(
        f"{ranks - len(files)} of {ranks} files of {part} are missing"
        for part, files in (("optimizer states", optimizers), ("weights", of_rank))
        if ranks is not None and 0 < len(files) < ranks
    )
    step = count_of(_top(saved).get("global_steps"))
    return IdentifiedCheckpoint(kind="deepspeed", step=step, problem=problem, world_size=ranks)


def _deepspeed_latest(folder: Path) -> IdentifiedCheckpoint | None:
    """The checkpoint that the file ``latest`` names."""
    try:
        tag = (folder / "latest").read_text(encoding="utf-8")[:200].strip()
        inside = folder / tag
        if not tag or Path(tag).name != tag:
            return None
        if not inside.is_dir():
            problem = f"latest names {tag}, which is not there"
            return IdentifiedCheckpoint(kind="deepspeed", step=None, problem=problem)
        names = {path.name for path in itertools.islice(inside.iterdir(), _MAX_ENTRIES)}
    except (OSError, ValueError):
        return None
    return _deepspeed(inside, names - {"latest"})


def _top(saved: Saved) -> dict[str, Any]:
    """The dictionary that was saved."""
    value: Any = saved.value
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _model_states(names: set[str]) -> list[str]:
    return sorted(name for name in names if name.endswith("_model_states.pt"))


def _lightning(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """Lightning's sharded strategies: a folder NAME.ckpt with meta.pt beside the shards."""
    if "meta.pt" not in names or not (folder / "meta.pt").is_file():
        return None
    saved = _read(folder / "meta.pt")
    if saved is None or not _is_lightning(saved):
        return None
    return IdentifiedCheckpoint(
        kind="lightning", step=_of_lightning(saved), problem=dcp_problem(folder)
    )


def _is_lightning(saved: Saved) -> bool:
    return "pytorch-lightning_version" in _top(saved)


def _of_lightning(saved: Saved) -> int | None:
    return count_of(_top(saved).get("global_step"))


def _accelerate(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """Accelerate's save_state: what it calls a step is not one of the optimizer, whose own is."""
    if not any(name.startswith("random_states_") for name in names):
        return None
    ranks = sum(1 for name in names if name.startswith("random_states_"))
    inside = sorted(name for name in names if name.startswith("optimizer"))
    step: int | None = None
    for name in inside[:MAX_FILES]:
        place = folder / name
        step = _of_dcp(place) if place.is_dir() else _of_optimizer(place)
        if step is not None:
            break
    if step is None and any(name.startswith("pytorch_model") for name in names):
        below = [folder / name for name in names if (folder / name / "latest").is_file()]
        tagged = next((identify(path) for path in (folder, *below) if _tagged(path)), None)
        step = None if tagged is None else tagged.step
    last = "random_states_0.pkl"  # what rank 0 writes last
    problem = "" if last in names else f"{last} is missing: it was being written"
    return IdentifiedCheckpoint(kind="accelerate", step=step, problem=problem, world_size=ranks)


def _tagged(folder: Path) -> bool:
    """Whether it is DeepSpeed's part of a save_state."""
    return folder.name.startswith("pytorch_model") and (folder / "latest").is_file()


def _of_optimizer(path: Path) -> int | None:
    saved = _read(path)
    return None if saved is None else optimizer_updates(saved)


def _dcp(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """torch.distributed.checkpoint: .metadata is written last and names every file."""
    if ".metadata" not in names:
        shards = any(name.endswith(".distcp") for name in names)
        problem = ".metadata is missing: it was being written"
        return IdentifiedCheckpoint(kind="dcp", step=None, problem=problem) if shards else None
    return IdentifiedCheckpoint(kind="dcp", step=_of_dcp(folder), problem=dcp_problem(folder))


def dcp_places(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Name of each value -> its file, offset and length, for those that are not split."""
    try:
        with (folder / ".metadata").open("rb") as file:
            value = read_pickle(file)
    except UNREADABLE:
        return {}
    storage = _attribute(value, "storage_data")
    places: dict[str, tuple[str, int, int]] = {}
    for index, where in _pairs(storage):
        name, about = _attribute(index, "fqn"), where
        place = _attribute(about, "relative_path")
        offset, length = _attribute(about, "offset"), _attribute(about, "length")
        if isinstance(name, str) and isinstance(place, str):
            places[name] = (place, int(offset or 0), int(length or 0))
    return places


def _pairs(storage: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = storage.items if isinstance(storage, Call) else storage
    if isinstance(items, dict):
        yield from cast("dict[Any, Any]", items).items()


def _attribute(value: Any, name: str) -> Any:
    state: Any = value.state if isinstance(value, Call) else None
    return cast("dict[str, Any]", state).get(name) if isinstance(state, dict) else None


def dcp_problem(folder: Path) -> str:
    """What is missing of the files that its table names, as the end of a sentence."""
    ends: dict[str, int] = {}
    for place, offset, length in dcp_places(folder).values():
        ends[place] = max(ends.get(place, 0), offset + length)
    for place, end in ends.items():
        if Path(place).name != place:
            continue
        try:
            size = (folder / place).stat().st_size
        except OSError:
            return f"{place} is missing"
        if size < end:
            return f"{place} is cut short"
    return ""


def _of_dcp(folder: Path) -> int | None:
    table = dcp_places(folder)
    for name in _step_names(list(table)):
        place, offset, length = table[name]
        if Path(place).name != place or not 0 < length < 1 << 20:
            continue
        try:
            with (folder / place).open("rb") as file:
                file.seek(offset)
                saved = read_saved(io.BytesIO(file.read(length)))
        except UNREADABLE:
            continue
        step = count_of(saved.number(saved.value))
        if step is not None:
            return step
    return None


def _step_names(names: list[str]) -> list[str]:
    """Names that may hold the number of steps: the optimizer's first, never the model's."""

    def worth(name: str) -> int | None:
        parts = name.split(".")
        if parts[-1] not in COUNTERS or "model" in parts[:-1]:
            return None
        of_optimizer = any("optim" in part for part in parts[:-1]) or "state" in parts[:-1]
        return -1 if of_optimizer and parts[-1] == "step" else COUNTERS.index(parts[-1])

    ranked = [(rank, name) for name in names if (rank := worth(name)) is not None]
    return [name for _, name in sorted(ranked)][:MAX_FILES]


def _pretrained(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """A model or an adapter with its configuration, as Transformers and PEFT load it."""
    for config, weights in _PRETRAINED:
        index = f"{weights}.index.json"
        if config not in names or not {weights, index} & names:
            continue
        if weights in names:
            return IdentifiedCheckpoint(kind="pretrained", step=None)
        shards: Any = (read_object(folder / index) or {}).get("weight_map")
        if not isinstance(shards, dict):
            return IdentifiedCheckpoint(
                kind="pretrained", step=None, problem=f"{index} cannot be read"
            )
        missing = {str(name) for name in cast("dict[str, Any]", shards).values()} - names
        problem = f"{min(missing)} is missing" if missing else ""
        return IdentifiedCheckpoint(kind="pretrained", step=None, problem=problem)
    return None


def _torch(folder: Path, names: set[str]) -> IdentifiedCheckpoint | None:
    """A folder of files of torch.save; the furthest step that one of them has."""
    files = sorted(name for name in names if name.endswith(_SUFFIXES))[:MAX_FILES]
    identified = [read for name in files if (read := _file(folder / name)) is not None]
    steps = [checkpoint.step for checkpoint in identified if checkpoint.step is not None]
    if not identified:
        has_weights = any(name.endswith(".safetensors") for name in names)
        return IdentifiedCheckpoint(kind="torch", step=None) if has_weights else None
    return IdentifiedCheckpoint(kind=identified[0].kind, step=max(steps, default=None))


def _file(path: Path) -> IdentifiedCheckpoint | None:
    """One file: Lightning's, or one of torch.save."""
    if path.suffix not in _SUFFIXES:
        return None
    saved = _read(path)
    if saved is None:
        return IdentifiedCheckpoint(kind="torch", step=None, problem="it cannot be read")
    if _is_lightning(saved):
        return IdentifiedCheckpoint(
            kind="lightning", step=_of_lightning(saved), updates=optimizer_updates(saved)
        )
    updates = optimizer_updates(saved)
    step = counted_steps(saved) if updates is None else updates
    return IdentifiedCheckpoint(kind="torch", step=step, updates=updates)


def _read(path: Path) -> Saved | None:
    try:
        return read_saved(path, COUNTERS)
    except UNREADABLE:
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file of at most 64 MiB; None where there is none."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(64 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_FOLDERS: tuple[Callable[[Path, set[str]], IdentifiedCheckpoint | None], ...] = (
    *(_recipe, _trainer, _lightning, _accelerate, _deepspeed, _dcp, _pretrained, _torch),
)
