"""A trainer's configuration as a `Job`: what its keys say, and what of it is not understood."""

from __future__ import annotations

import copy
import json
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from workbench.describe.job import Job, check_names
from workbench.describe.trainers import trainer as trainer_named
from workbench.errors import UnknownNameError, UsageError
from workbench.trainer_configs.all_formats import FORMATS
from workbench.trainer_configs.config_files import beside, merged, over_file, read_file
from workbench.trainer_configs.document import Document, is_off, is_on, value_text
from workbench.trainer_configs.fields import (
    data_parallel,
    implied_data_ranks,
    job_options,
    typed_strategy,
)
from workbench.trainer_configs.format import Format
from workbench.trainer_configs.refused_keys import check_keys
from workbench.trainer_configs.shell_script import settings_of
from workbench.trainer_configs.syntax import read_arguments

_MATTERS = re.compile(
    r"parallel|offload|checkpointing|recompute|precision|dtype|quant|gptq|fp8|fp16|bf16|8bit|4bit|lora"
    r"|dora|adapter|rank|batch|seq_len|_length|packing|packed|compile|kernel|liger|flash|attn"
    r"|attention|optim|shard|zero_|fsdp|deepspeed|accumulation|expert|moe|freeze|frozen|galore"
    r"|unsloth|cross_entropy|loss_fn|virtual|fuse|vocab|layers|hidden|cp_|tp_size|modules_to_save|additional_target"
)
"""Words in names of keys that change memory or time."""
COMMAND_LINE = "the script's command line"
"""What notes about arguments begin with."""
_MAX_LISTED = 6  # keys in one note
_BY_SPREAD = ("optimizer", "fused_optimizer", "precision", "low_precision_weights")
"""Fields whose keys mean another thing where states are sharded."""
_OF_LAUNCHER = {"world_size", "nodes"}
_OF_LAYOUT = {
    *("data_parallel", "zero_stage", "engine", "reshard_after_forward", "state_dict", "meta_init"),
    *("wrap_min_parameters", "offload_optimizer", "offload_parameters", "offload_device"),
    *("overlap_gradients", "reduce_bucket", "gather_bucket", "live_parameters"),
    *("tp", "cp", "dp_replicate", "dp_shard"),
}
"""Fields of which Accelerate's file decides unless the trainer's arguments do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What a trainer's configuration says of a job."""

    format: Format
    """How the trainer writes it."""
    trainer: str
    """The trainer, with its release where one was given."""
    document: Document
    """The file's values, for messages about them."""
    values: Mapping[str, Any]
    """Fields, as the rules name them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not understood, in sentences that name the file."""
        left = [f"{key}={value_text(value)}" for key, value in self.document.unknown()]
        listed = [key for key in left if self._matters(key)]
        more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
        notes = [f"{self.document.name}: {note}." for note in self.document.notes]
        if listed:
            keys = f"{', '.join(listed[:_MAX_LISTED])}{more}"
            notes.append(f"{self.document.name}: not understood and left out: {keys}.")
        return tuple(notes)

    def _matters(self, stated: str) -> bool:
        key, _, value = stated.partition("=")
        is_plain = is_off(value) or value in {"auto", "0", "0.0", "1", "[]", "{}"}
        harmless = any(fnmatchcase(key, pattern) for pattern in self.format.harmless)
        return not (is_plain or harmless) and _MATTERS.search(key) is not None

    def options(self, typed_options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a job, `model` among them; what is given counts before the file.

        Raises:
            UsageError: the file contradicts itself or the machines; says file and key.
        """
        values, strategy = self.values, typed_strategy(self.values, typed_options)
        if strategy is not None:
            values = {**values, **_where_spread(self, data_parallel(strategy))}
        job_values = job_options(values, typed_options, self.document)
        job_values.setdefault("trainer", self.trainer)
        return job_values


def read_config(path: str | Path, trainer: str | None = None) -> TrainerConfig:
    """Read a trainer's configuration file.

    Args:
        path: torchtitan's TOML, the YAML of torchtune, Axolotl, LLaMA-Factory or TRL, DeepSpeed's
            JSON, or a file with the command line of a transformers or Megatron-LM script.
        trainer: Whose it is (NAME or NAME@RELEASE); None = as its keys say.

    Raises:
        UsageError: it cannot be read, is no known trainer's, or contradicts itself.
    """
    path = Path(path).expanduser()
    config = _read(Document(str(path), read_file(path)), trainer, path.parent)
    document = config.document
    if all(document.peek(f"launcher.{key}") is None for key in ("config_file", "accelerate")):
        return config
    return replace(config, values={**config.values, **_launched(config, path.parent)})


def read_command_line(
    words: Sequence[str], trainer: str, declared: Sequence[str] = ()
) -> TrainerConfig:
    """Read the arguments of a script that uses a known trainer; a file among them is read too.

    What the script declares counts where neither says otherwise.

    Raises:
        UsageError: the trainer's arguments are not known here, or contradict themselves.
    """
    options, own = read_arguments(words), read_arguments(declared)
    for word in words:
        path = Path(word.partition("=")[2] if word.startswith("--") else word)
        is_file = path.suffix in {".toml", ".yaml", ".yml"} and path.is_file()
        if is_file and format_of(trainer).syntax != "arguments":
            values = over_file(read_file(path), settings_of(words), options)
            return _read(Document(str(path), merged(own, values)), trainer, path.parent)
    return _read(Document(COMMAND_LINE, merged(own, options)), trainer, Path())


def job_from_config(path: str | Path, *, layout_is_open: bool = False, **typed_options: Any) -> Job:
    """The job that a trainer's configuration describes; options that are given count before it.

    With `layout_is_open` a plan chooses how it is spread.

    Raises:
        UsageError: as `read_config`; or the file names no model and none is given.
    """
    check_names(typed_options)
    config = read_config(path, typed_options.get("trainer"))
    return job_of(config, typed_options, layout_is_open=layout_is_open)


def job_of(
    config: TrainerConfig, typed_options: Mapping[str, Any], *, layout_is_open: bool = False
) -> Job:
    """The job of a configuration that was read.

    Raises:
        UsageError: it names no model and none is given, or a value is impossible.
    """
    values = config.options(typed_options)
    model = values.pop("model", None)
    if model is None:
        raise UsageError(
            f"{config.document.name} names no model that is known here. Add --model M (workbench "
            "models lists them), or the folder of its config.json."
        )
    notes = list(config.notes)
    sharded = _where_spread(config, "fsdp").get("precision") if layout_is_open else None
    if sharded not in {None, values.get("precision")} and typed_options.get("precision") is None:
        notes.append(
            f"{config.document.name}: where states are sharded, its {values['precision']} weights "
            f"have an fp32 copy; every layout is counted with it ({sharded})."
        )
        values["precision"] = sharded
    job = Job.from_options(model, values, typed=typed_options, layout_is_open=layout_is_open)
    return job.with_notes(*notes, *_left_open(config, typed_options, job))


def _left_open(config: TrainerConfig, typed_options: Mapping[str, Any], job: Job) -> Iterator[str]:
    """What the configuration leaves open and changes the answer most."""
    if "seq_len" not in config.values and typed_options.get("seq_len") is None:
        yield (
            f"{config.document.name} does not say the sequence length: {job.workload.seq_len} "
            "tokens are assumed (--seq-len)."
        )
    sharded = str(config.values.get("data_parallel")).startswith(("fsdp", "zero"))
    free = "dp_shard" if sharded else "dp_replicate"
    stated = {"gpus", "world_size", free} & set(config.values)
    if not stated and typed_options.get("gpus") is None and typed_options.get("strategy") is None:
        gpus = job.strategy.world_size
        by = ""
        if implied_data_ranks(config.values) is not None:
            by = ", by its batch sizes"
        name = config.document.name
        yield f"{name} does not say on how many GPUs: {gpus} assumed{by} (--gpus)."


def format_of(trainer: str) -> Format:
    """How a trainer writes its configuration.

    Raises:
        UnknownNameError: no such trainer.
        UsageError: its configuration is not known here; the message has those that are.
    """
    name = trainer_named(trainer.partition("@")[0]).name
    for form in FORMATS:
        if name == form.trainer or name in form.other_trainers:
            return form
    raise UsageError(
        f"The configuration of {name} is not known here. Known: "
        f"{', '.join(form.trainer for form in FORMATS)}."
    )


def _read(document: Document, trainer: str | None, folder: Path) -> TrainerConfig:
    chosen = _chosen(document, trainer)
    for key in chosen.documents:
        text = document.peek(key)
        if isinstance(text, str) and not is_off(text) and not is_on(text):
            document.put(key, _inner(document, folder, key, text))
    values = read_document(document, chosen)
    return TrainerConfig(
        format=chosen, trainer=trainer or chosen.trainer, document=document, values=values
    )


def _inner(document: Document, folder: Path, key: str, text: str) -> dict[str, Any]:
    """The values of a file that a key names, or of the JSON that stands in its place."""
    if not text.lstrip().startswith("{"):
        return read_file(_resolved(folder, text))
    try:
        return cast("dict[str, Any]", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{document.name}: {key} is not JSON: {error}.") from error


def _launched(config: TrainerConfig, folder: Path) -> dict[str, Any]:
    """What the file of ``accelerate launch --config_file`` adds to what the arguments say.

    Raises:
        UsageError: the file contradicts itself.
    """
    document, values = config.document, config.values
    layout = merged(_launcher_file(document, folder), document.get("launcher.accelerate") or {})
    if not layout:
        return {}
    layout.setdefault("distributed_type", "MULTI_GPU")
    of_launch = Document(f"{document.name}: accelerate launch", layout)
    of_launcher = _read(of_launch, "accelerate", folder)
    document.notes += [note.rstrip(".") for note in of_launcher.notes]
    added = {field for field in _OF_LAUNCHER if field not in values}
    if values.get("data_parallel", "replicated") == "replicated":
        added |= _OF_LAYOUT
    if values.get("precision") == "fp32" and not _states_precision(document):
        added |= {"precision"}  # where the arguments say none, Accelerate's counts
    if of_launcher.values.get("recompute") == "full":
        added |= {"recompute", "recompute_layers"}
    of_launch_file = {name: value for name, value in of_launcher.values.items() if name in added}
    kind = of_launch_file.get("data_parallel")
    return {**(_where_spread(config, kind) if kind else {}), **of_launch_file}


def _where_spread(config: TrainerConfig, kind: str) -> dict[str, Any]:
    """What the document's own keys mean of weights and optimizer where data parallelism is so."""
    document = Document(config.document.name, copy.deepcopy(config.document.values))
    read = read_document(document, config.format, {"data_parallel": kind})
    names = _BY_SPREAD if _states_precision(config.document) else _BY_SPREAD[:2]
    return {name: read[name] for name in names if name in read}


def _states_precision(document: Document) -> bool:
    return any(document.peek(key) is not None for key in ("bf16", "fp16", "dtype"))


def _launcher_file(document: Document, folder: Path) -> dict[str, Any]:
    """The values of the file that ``accelerate launch`` is given, where it is here."""
    name = document.get("launcher.config_file")
    if name is None:
        return {}
    path = _resolved(folder, str(name))
    if path.suffix not in {".yaml", ".yml", ".json"} or not path.is_file():
        document.notes.append(f"config_file {name} is not here: what it says is left out")
        return {}
    values = read_file(path)
    if "distributed_type" not in values:
        document.notes.append(f"config_file {name} is not Accelerate's and is left out")
        return {}
    return values


def _resolved(folder: Path, name: str) -> Path:
    """A file that a configuration names: relative to where it is started, to itself, or above."""
    path = Path(name).expanduser()
    # os.path.exists: a name that no file can have is no error
    if path.is_absolute() or os.path.exists(path):  # noqa: PTH110
        return path
    return beside(folder, name) or folder / path


def _chosen(document: Document, trainer: str | None) -> Format:
    """The format that a file's keys belong to; of a trainer that is named, where that has one."""
    trainer_format: Format | None = None
    if trainer is None and (program_trainer := document.get("launcher.trainer")) is not None:
        return format_of(str(program_trainer))
    if trainer is not None:
        try:
            trainer_format = format_of(trainer)
        except UnknownNameError:
            raise
        except UsageError:
            trainer_format = None
    present = {
        form.trainer: [keys for keys in form.signatures if all(_has(document, key) for key in keys)]
        for form in FORMATS
    }
    matches = [form for form in FORMATS if present[form.trainer]]
    if trainer_format is not None:
        shown = {key for form in matches for keys in present[form.trainer] for key in keys}
        if trainer_format in matches or shown <= trainer_format.keys:
            return trainer_format
    if matches:
        return matches[0]
    raise UsageError(
        f"{document.name} has no keys of a known trainer: "
        f"{', '.join(form.trainer for form in FORMATS)}. Add --trainer NAME to say whose it is."
    )


def _has(document: Document, key: str) -> bool:
    inner: Any = document.values
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = cast("Mapping[str, Any]", inner)[part]
    return True


def read_document(
    document: Document, chosen: Format, spread: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields that a document's keys stand for, where the work is spread so by others.

    Raises:
        UsageError: two of its keys contradict each other.
    """
    chosen.spell_anew(document)
    check_keys(document, chosen)
    values: dict[str, Any] = {**chosen.assumed, **(spread or {})}
    if (others := document.get("launcher.left_out")) is not None:
        document.notes.append(f"its other commands are left out: {others}")
    if (config := document.get("launcher.config")) is not None:
        document.notes.append(f"read with {config}; options of its command count before that")
    for name in ("gpus", "nodes", "world_size"):
        stated = document.get(f"launcher.{name}")
        if stated is not None and str(stated).isdecimal():
            values[name] = int(stated)
    visible = str(document.get("launcher.visible") or "-1").split(",")
    if not {"gpus", "world_size"} & set(values) and "-1" not in visible:
        values["gpus"] = len(visible)
    if "gpus" in values and "nodes" in values and "world_size" not in values:
        values["world_size"] = values["gpus"] * values["nodes"]
    for rule in chosen.rules:
        values |= rule.read(document, values)
    return values
