"""Which checkpoint is meant, whose model it is, and where its base and its tokenizer are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from workbench.errors import UnknownNameError, UsageError
from workbench.recover.checkpoints import Checkpoint, first_intact, verify
from workbench.recover.foreign import read_object
from workbench.recover.script_checkpoints import (
    every_checkpoint,
    named_checkpoint,
    notes_on_passed,
)
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

GPT, LORA, HUGGINGFACE, TENSORS = "gpt", "lora", "huggingface", "tensors"
IMAGE_LORA = "finetune_image"
ADAPTER_FILE, CONFIG_FILE = "adapter_config.json", "config.json"
_RECORD = "options.json"
# Arguments by which scripts name the model that they start from.
_MODEL_OPTIONS = (
    *("--model_name_or_path", "--model-name-or-path", "--model", "--model_name", "--model-name"),
    *("--base_model", "--base-model", "--pretrained_model_name_or_path", "--config_name"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """One checkpoint of a run, and what is known of the model in it."""

    run: str
    """Id of the run."""
    checkpoint: Checkpoint
    """The one that is meant; every byte of it was checked."""
    family: str
    """``gpt``, ``lora`` or ``finetune_image`` of the recipes, ``huggingface``, or ``tensors``: of a
    class that is not known."""
    arguments: tuple[str, ...] = ()
    """Of a recipe: what its model is made from."""
    config: Path | None = None
    """Folder with the model's config.json."""
    base: str | None = None
    """Folder or hub name of the model it was made from; None = not known, or there is none."""
    adapter: bool = False
    """Whether the checkpoint holds an adapter (LoRA and the like) alone."""
    notes: tuple[str, ...] = ()
    """Checkpoints that were passed over for it, one sentence each."""

    def request(self) -> dict[str, Any]:
        """Plain JSON form for the model's process."""
        return {
            "run": self.run,
            "checkpoint": str(self.checkpoint.path),
            "family": self.family,
            "arguments": list(self.arguments),
            "config": None if self.config is None else str(self.config),
            "base": self.base,
            "adapter": self.adapter,
        }


def trained_model(
    paths: RunPaths,
    checkpoint: str | None = None,
    *,
    step: int | None = None,
    base: str | None = None,
) -> TrainedModel:
    """The model that a run has trained.

    Args:
        paths: The run.
        checkpoint: Name or path of one; None = the newest whole one.
        step: Optimizer steps behind the checkpoint, instead of its name.
        base: Folder or hub name of the base model, or of one with the same config.json, where the
            run does not say it.

    Raises:
        UsageError: there is none, it is damaged or another user's, or no such base.
    """
    chosen, notes = _chosen(paths, checkpoint, step)
    run = read_run(paths) or RunRecord()
    record = read_object(chosen.path / _RECORD)
    own = record is not None and isinstance(record.get("options"), dict)
    final = run.recipe == LORA and (chosen.path / ADAPTER_FILE).is_file()
    if (own and run.recipe in {GPT, LORA, IMAGE_LORA}) or final:
        base_name = base or _argument(run)
        return TrainedModel(
            run=paths.directory.name,
            checkpoint=chosen,
            family=str(run.recipe),
            arguments=tuple(run.arguments),
            base=None if base_name is None else _resolved(base_name, run),
            adapter=final or (run.recipe in {LORA, IMAGE_LORA} and _is_adapter(record)),
            notes=tuple(notes),
        )
    return replace(_of_script(paths, chosen, run, base), notes=tuple(notes))


def _of_script(
    paths: RunPaths, chosen: Checkpoint, run: RunRecord, base: str | None
) -> TrainedModel:
    """A checkpoint of someone's script: what its files say."""
    folder = chosen.path if chosen.path.is_dir() else chosen.path.parent
    about = read_object(folder / ADAPTER_FILE)
    if about is not None:
        named = base or about.get("base_model_name_or_path") or _argument(run)
        return TrainedModel(
            run=paths.directory.name,
            checkpoint=chosen,
            family=HUGGINGFACE,
            config=folder,
            base=None if named is None else _resolved(str(named), run),
            adapter=True,
        )
    named = base or _argument(run)
    config = next(_configs(folder, paths, named, run), None)
    return TrainedModel(
        run=paths.directory.name,
        checkpoint=chosen,
        family=HUGGINGFACE if config or named else TENSORS,
        config=config,
        base=None if named is None else _resolved(named, run),
    )


def _configs(folder: Path, paths: RunPaths, base: str | None, run: RunRecord) -> Iterator[Path]:
    """Folders with a config.json of this model: the checkpoint's, those around it, its base's."""
    places = [folder, folder.parent]
    if folder.parent not in {paths.checkpoints, Path(run.working_directory or "/")}:
        places += sorted(path for path in folder.parent.glob("checkpoint-*") if path.is_dir())
    places += [Path(_resolved(base, run))] if base else []
    for place in places:
        about = read_object(place / CONFIG_FILE)
        if about is not None and ("model_type" in about or "architectures" in about):
            yield place


def _chosen(paths: RunPaths, name: str | None, step: int | None) -> tuple[Checkpoint, list[str]]:
    """The one that is meant, and what was passed over for it."""
    checkpoints = every_checkpoint(paths)
    if name is not None:
        return _checked(paths, _named(paths, checkpoints, name)), []
    if step is not None:
        fits = [checkpoint for checkpoint in checkpoints if checkpoint.step == step]
        fits.sort(key=lambda checkpoint: bool(checkpoint.doubt))
        if not fits:
            steps = (
                ", ".join(
                    str(checkpoint.step)
                    for checkpoint in checkpoints
                    if checkpoint.step is not None
                )
                or "none"
            )
            raise UsageError(f"{paths.directory.name} has no checkpoint of step {step}: {steps}.")
        complete, passed = first_intact(fits)
        return (_checked(paths, fits[0]) if complete is None else complete), passed
    usable, passed = [checkpoint for checkpoint in checkpoints if checkpoint.usable], list[str]()
    while usable:
        chosen = _newest(usable)
        complete, sentences = first_intact([chosen])
        if complete is not None:
            states = [
                checkpoint
                for checkpoint in checkpoints
                if checkpoint.by_script and checkpoint.kind != "pretrained"
            ]
            return complete, [*passed, *notes_on_passed(states, complete)]
        passed += sentences
        usable.remove(chosen)
    broken = [
        f"{checkpoint.name}: {checkpoint.problem or checkpoint.doubt}."
        for checkpoint in checkpoints
        if checkpoint.problem or checkpoint.doubt
    ]
    raise UsageError(
        " ".join([f"{paths.directory.name} has no whole checkpoint.", *broken, *passed])
        + _how_to_save(paths)
    )


def _how_to_save(paths: RunPaths) -> str:
    """What to do where nothing is saved."""
    name = paths.directory.name
    if not paths.exit.exists():
        return (
            " It has not ended: try again after its first checkpoint (workbench checkpoints "
            f"{name}). `{command_for(paths.directory, 'stop')}` saves one if the script can."
        )
    return (
        " Launch it again so that it saves: recipes do with --checkpoint-every N, your own script "
        "with accelerator.save_state() or save_pretrained()."
    )


def _newest(usable: list[Checkpoint]) -> Checkpoint:
    """Of the highest step that the run knows of, or the final model that was written after it.

    What lies where the script works may be of another run: it comes last.
    """
    own = [checkpoint for checkpoint in usable if not checkpoint.by_script]
    stepped = [checkpoint for checkpoint in own or usable if checkpoint.step is not None]
    final = [
        checkpoint
        for checkpoint in usable
        if checkpoint.step is None and _has_weights(checkpoint.path)
    ]
    if not stepped:
        return max(final or usable, key=lambda checkpoint: checkpoint.saved_at or 0.0)
    newest = stepped[0]
    around = {newest.path.parent, newest.path.parent.parent}
    later = [
        checkpoint
        for checkpoint in final
        if (checkpoint.saved_at or 0.0) >= (newest.saved_at or 0.0)
        and (checkpoint.path in around or checkpoint.path.parent in around)
    ]
    return max(later, key=lambda checkpoint: checkpoint.saved_at or 0.0) if later else newest


def _has_weights(path: Path) -> bool:
    """Whether it is a folder of a model in its final form."""
    names = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")
    return any((path / name).is_file() for name in names)


def _named(paths: RunPaths, checkpoints: list[Checkpoint], name: str) -> Checkpoint:
    absolute = Path(name).expanduser().absolute()
    for checkpoint in checkpoints:
        if checkpoint.name == name or checkpoint.path == absolute:
            return checkpoint
    if absolute.exists():
        return named_checkpoint(absolute)
    if not checkpoints:
        raise UsageError(
            f"{paths.directory.name} has no checkpoint, and there is no file or folder {name}. "
            "Recipes save with --checkpoint-every N."
        )
    raise UnknownNameError.near("checkpoint", name, [checkpoint.name for checkpoint in checkpoints])


def _checked(paths: RunPaths, chosen: Checkpoint) -> Checkpoint:
    problem = verify(chosen)
    if problem:
        raise UsageError(
            f"The checkpoint {chosen.name} cannot be used: {problem}. "
            f"The others: workbench checkpoints {paths.directory.name} --verify"
        )
    return chosen


def _is_adapter(record: dict[str, Any] | None) -> bool:
    options = (record or {}).get("options")
    rank: Any = cast("dict[str, Any]", options).get("lora_rank") if options else 0
    return bool(rank)


def _argument(run: RunRecord) -> str | None:
    """The model that the script was told to start from."""
    words = run.arguments
    for option in _MODEL_OPTIONS:
        for at, word in enumerate(words):
            if word == option and at + 1 < len(words):
                return words[at + 1]
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
    return None


def _resolved(name: str, run: RunRecord) -> str:
    """A folder from where the script worked; any other name as it is."""
    place = Path(run.working_directory or "/", name).expanduser()
    return str(place) if place.is_dir() else name
