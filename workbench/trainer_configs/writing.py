"""A `Job` as a trainer's own configuration, which is read back before it is handed out.

What comes back must be the job: a field that does not is refused, with the reason; what the trainer
decides by itself, and no key of it says, is named in the comment on top.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.job import Job
from workbench.describe.library_refusals import check_offloaded_weights
from workbench.describe.model import Model
from workbench.describe.option import declared, text_of
from workbench.describe.strategy import DEGREES
from workbench.describe.trainers import preset
from workbench.describe.workload import Workload
from workbench.errors import UsageError
from workbench.trainer_configs.document import Document
from workbench.trainer_configs.fields import job_fields, placement_of
from workbench.trainer_configs.format import Format
from workbench.trainer_configs.limits import refusals
from workbench.trainer_configs.reading import TrainerConfig, format_of, job_of, read_document
from workbench.trainer_configs.rules import InexpressibleError, applies
from workbench.trainer_configs.syntax import (
    arguments,
    json_file,
    script_file,
    toml_file,
    yaml_file,
)

_FILES = {"yaml": yaml_file, "json": json_file, "toml": toml_file}
_SOFT = frozenset(
    {
        *declared(ImplementationAssumptions),
        *("loss_chunks", "keep_logits", "attention_mask", "variable_length", "adapter_bytes"),
        *("find_unused", "static_graph", "overlap_tp", "overlap_ep"),
    }
)
"""What is assumed of a trainer's code or of the data: named where no key says it, not refused."""
_KINDS = {"hsdp": "dp_replicate", "zero": "zero_stage", "fsdp": "dp_shard"}
"""Kind of data parallelism -> the field whose reason in `Format.lacks` is meant."""
_NAMES = {"model_text": "model", "model_id": "model", "data_parallel": "strategy"}


class CannotExpressError(UsageError):
    """The trainer has no way to say what the job is; `fields` has each field with its sentence."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = dict(fields)
        super().__init__(" ".join(dict.fromkeys(fields.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFiles:
    """A job as files of a trainer. Nothing is written before they are."""

    trainer: str
    """Name of the trainer, with its release where one was given."""
    files: Mapping[str, str]
    """Name -> text; the trainer's own file first."""
    command: tuple[str, ...]
    """What to type in their folder."""
    notes: tuple[str, ...]
    """What was assumed, and what the files leave open."""
    unproven: tuple[str, ...]
    """Which files no parser of the trainer's package read in our tests."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "trainer": self.trainer,
            "files": dict(self.files),
            "command": list(self.command),
            "notes": list(self.notes),
            "unproven": list(self.unproven),
        }


def write_config(job: Job, trainer: str, model: str | None = None) -> TrainerFiles:
    """A job as a trainer's configuration.

    Args:
        job: What, how and where.
        trainer: NAME or NAME@RELEASE.
        model: What names the model there, a repository or a folder; None = the catalog's.

    Raises:
        CannotExpressError: (a UsageError) the trainer cannot say it; each field with the reason.
        UsageError: its configuration is not known here.
    """
    chosen = format_of(trainer)
    job = _trained_by(job, trainer)
    check_offloaded_weights(job.strategy)
    if model is not None and "/" not in model and not Path(model).exists():
        model = None  # a name of the catalog, which knows the repository
    fields = job_fields(job, model) | placement_of(job)
    document = _document(chosen, fields, trainer)
    differing = _differences(job, _read_back(document, chosen, job, trainer, model))
    unexpressed = {name: pair for name, pair in differing.items() if name not in _SOFT}
    split = {name: pair for name, pair in unexpressed.items() if name in DEGREES and pair[0] > 1}
    if unexpressed := split or unexpressed:
        raise CannotExpressError(
            {
                name: _sentence(chosen, name, fields, other)
                for name, (_, other) in unexpressed.items()
            }
        )
    notes = _notes(job, chosen, differing)
    files, command = _texts(document, chosen, fields, notes)
    return TrainerFiles(
        trainer=trainer,
        files=files,
        command=command,
        notes=notes,
        unproven=() if chosen.parsed_by else (_unproven(chosen),),
    )


def _document(chosen: Format, fields: Mapping[str, Any], trainer: str) -> Document:
    """The keys for the fields, and what the trainer wants beside them.

    Raises:
        CannotExpressError: there is no key for a field, or its own checks refuse the job.
    """
    document = Document(chosen.file, copy.deepcopy(dict(chosen.fixed)))
    stated = {name for rule in chosen.rules for name in rule.names}
    refused = {
        name: _sentence(chosen, name, fields)
        for name in DEGREES[2:]
        if fields[name] > 1 and name not in stated
    }
    refused |= {
        name: _refusal(chosen, reason)
        for name, reason in refusals(chosen.impossible, fields, trainer).items()
    }
    for rule in chosen.rules:
        try:
            rule.write(fields, document)
        except InexpressibleError as error:
            fields_named = [field for field in error.fields if field not in _SOFT] or error.fields[
                :1
            ]
            if set(error.fields) <= _SOFT:
                continue
            refused |= {name: _sentence(chosen, name, fields) for name in fields_named[:1]}
    if refused:
        raise CannotExpressError(refused)
    for companion in chosen.companions:
        for key, value in companion.keys.items() if applies(companion.when, fields) else ():
            document.put(key, value)
    for key, value in chosen.completed.items():
        if any(key.startswith(f"{name}.") and document.get(name) for name in chosen.documents):
            document.put(key, value)
    return document


def _trained_by(job: Job, trainer: str) -> Job:
    """The job as the trainer runs it; of one without options every field of it was given."""
    if job.trainer is not None and job.trainer.text == preset(trainer).text:
        return job
    if job.given:
        return job.with_trainer(trainer)
    workload = job.workload
    job_options = {
        name: getattr(workload, name) for name in declared(Workload) if name != "lora_targets"
    }
    if workload.lora_rank:
        job_options["lora_targets"] = workload.lora_targets
    own = {"strategy": job.strategy, "recompute": job.strategy.recompute, "trainer": trainer}
    return Job.from_options(workload.model, job_options | placement_of(job) | own, typed=())


def _read_back(
    document: Document, chosen: Format, job: Job, trainer: str, model: str | None
) -> Job:
    reread = Document(chosen.file, copy.deepcopy(document.values))
    config = TrainerConfig(
        format=chosen, trainer=trainer, document=reread, values=read_document(reread, chosen)
    )
    strategy = job.strategy.options()
    own = {name: getattr(job.workload, name, strategy.get(name)) for name in chosen.outside}
    job_options = placement_of(job) | own
    stated = {"model_text", "model_id", "model.layers"} & set(config.values)
    shape = model is not None or not stated  # read where the name leads, or not stated at all
    return job_of(config, {**job_options, "model": job.workload.model} if shape else job_options)


def _differences(job: Job, reread: Job) -> dict[str, tuple[Any, Any]]:
    """Fields in which a job comes back as another, with both values."""
    pairs: dict[str, tuple[Any, Any]] = {}
    if _shape(job.workload.model) != _shape(reread.workload.model):
        pairs["model"] = (job.workload.model, reread.workload.model)
    sides = [_flat(side) for side in (job, reread)]
    for name, value in sides[0].items():
        if sides[1][name] != value:
            pairs[name] = (value, sides[1][name])
    return pairs


def _shape(model: Model) -> Model:
    """A model without its name, and with what follows from its sizes said."""
    heads = {"kv_heads": model.key_value_heads, "head_dim": model.head_width}
    return replace(model, name="", **heads)


def _flat(job: Job) -> dict[str, Any]:
    workload = job.workload
    values = {name: getattr(workload, name) for name in declared(Workload)}
    if not workload.lora_rank:
        values.pop("lora_targets")
    kernels = declared(ImplementationAssumptions)
    values |= {name: getattr(workload.kernels, name) for name in kernels}
    strategy = job.strategy.options()
    del strategy["name"]
    if job.strategy.recompute != "selective":
        del strategy["recompute_parts"]
    return {"lora_targets": None} | values | {"recompute_parts": None} | strategy


def _sentence(chosen: Format, name: str, fields: Mapping[str, Any], other: Any = None) -> str:
    title = preset(chosen.trainer).trainer.title
    value = fields.get(name)
    if name == "data_parallel":
        name = _KINDS.get(str(value)[:4], name)
    if name in {"model", "model_text", "model_id"} and "model" not in chosen.lacks:
        return (
            f"No name of {title} for the model {fields['model.name']} is known. Give --model with "
            "its repository or the folder of its config.json."
        )
    if name.startswith("model"):
        name, value = "model", fields["model.name"]
    subject = f"{_NAMES.get(name, name).replace('_', ' ')} {text_of(value)}"
    if name in _KINDS.values() and isinstance(value, str):
        subject = f"strategy {value}"
    reason = chosen.lacks.get(name)
    if reason is None:
        reason = "no key of its configuration says so"
        if other is not None:
            reason += f", it would be {text_of(other)}"
    return f"{title} cannot express {subject}: {reason}. Change it, or export to another trainer."


def _refusal(chosen: Format, reason: str) -> str:
    title = preset(chosen.trainer).trainer.title
    return f"{title} cannot express this job: {reason}. Change it, or export to another trainer."


def _notes(job: Job, chosen: Format, differing: Mapping[str, tuple[Any, Any]]) -> tuple[str, ...]:
    assumed = [] if job.trainer is None else [job.trainer.note]
    unsaid = ", ".join(
        f"{name.replace('_', ' ')} {text_of(value)}" for name, (value, _) in differing.items()
    )
    if unsaid:
        assumed.append(f"No key says what the estimate assumes of the code: {unsaid}.")
    if job.trainer is not None and job.trainer.trainer.name != chosen.trainer:
        assumed.append(
            f"{job.trainer.trainer.title} reads no such file: its keys are those of "
            f"{preset(chosen.trainer).trainer.title}. Take the values over into your script."
        )
    assumed.append(f"Not decided here: {chosen.left_open}.")
    nodes = int(placement_of(job).get("nodes", 1))
    if nodes > 1:
        assumed.append(f"On {nodes} machines: {chosen.each_node}.")
    if chosen.note:
        assumed.append(chosen.note)
    return (*assumed, *(() if chosen.parsed_by else (_unproven(chosen),)))


def _unproven(chosen: Format) -> str:
    title = preset(chosen.trainer).trainer.title
    source = chosen.groups[-1].source
    return (
        f"{chosen.file}: not parsed by {title} itself here; its keys were read in its source "
        f"({source})."
    )


def _texts(
    document: Document, chosen: Format, fields: Mapping[str, Any], notes: tuple[str, ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files, and what to type."""
    gpus, nodes = int(fields["gpus"]), int(fields.get("nodes", 1))
    words = {"file": chosen.file, "gpus": gpus, "nodes": nodes, "world": gpus * nodes}
    words["recipe"] = next((name for name, when in chosen.recipes if applies(when, fields)), "")
    command = tuple(shlex.split(chosen.command.format(**words)))
    variables = [
        companion.keys for companion in chosen.environment if applies(companion.when, fields)
    ]
    set_before = {name: str(value) for keys in variables for name, value in keys.items()}
    if set_before and chosen.syntax != "arguments":
        command = ("env", *(f"{name}={value}" for name, value in set_before.items()), *command)
    device = "CPU ranks" if fields["device"] == "cpu" else "GPUs"
    comments = (
        f"Written by workbench export --trainer {chosen.trainer}, for {nodes} x {gpus} {device}.",
        f"Start: {shlex.join(command)}",
        *notes,
    )
    other_files: dict[str, str] = {}
    for key, name in chosen.documents.items():
        inner = document.get(key)
        if isinstance(inner, dict):
            other_files[name] = json_file(cast("dict[str, Any]", inner))
            document.put(key, name)
    values = document.values
    if chosen.syntax == "arguments":
        start = ("torchrun", f"--nnodes={nodes}", f"--nproc-per-node={gpus}", chosen.script)
        options = arguments(values, dashes=chosen.dashes)
        text = script_file(start, options, comments, set_before)
        return {chosen.file: text, **other_files}, command
    return {chosen.file: _FILES[chosen.syntax](values, comments), **other_files}, command


def write_files(config: TrainerFiles, folder: Path) -> list[Path]:
    """Write the files into `folder`, which is made; returns their paths.

    Raises:
        UsageError: one of them is there already.
    """
    paths = [folder / name for name in config.files]
    for path in paths:
        if path.exists():
            raise UsageError(f"{path} is there already. Give another folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, config.files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
