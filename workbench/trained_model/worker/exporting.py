"""A model out of a checkpoint into a folder: what is written for each kind, and what is checked."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from workbench.errors import HostError, UsageError, WorkbenchError
from workbench.recipes.dtypes import DTYPES
from workbench.trained_model.worker.merging import merge
from workbench.trained_model.worker.names import matched, without_prefix
from workbench.trained_model.worker.recipe_files import HOME, recipe_module
from workbench.trained_model.worker.tensors import (
    SafetensorsFiles,
    SavedTensors,
    Tensors,
    open_tensors,
)
from workbench.trained_model.worker.writing import SINGLE, Progress, full_or, write
from workbench.units import format_bytes

Say = Callable[[dict[str, Any]], None]
_ADAPTER = "adapter_model.safetensors"  # the one file that PEFT loads
_LEAST_SECONDS = 0.1  # between two messages of progress


class _Export:
    """One request: its source, its target, and what is reported of it."""

    def __init__(self, request: Mapping[str, Any], say: Say) -> None:
        self.request, self.folder = request, Path(request["partial"])
        self.checkpoint = Path(request["checkpoint"])
        self.dtype = DTYPES.get(request["dtype"])
        self.notes = list[str]()
        self.facts: dict[str, Any] = {"logits_difference": None, "loads": None, "tokenizer": None}
        self.widest: str | None = None  # type of the fractions, in which transformers loads them
        self._say, self._said_at = say, 0.0

    def progress(self, done: int, total: int, text: str) -> None:
        """Not more often than someone can read it."""
        now = time.monotonic()
        if now - self._said_at > _LEAST_SECONDS or done == total:
            self._said_at = now
            self._say({"progress": done / max(1, total), "text": text})

    def weights(self, tensors: Tensors, names: Mapping[str, str], *, one_file: str = "") -> None:
        """Write and verify them, and note what they are.

        In shards, or in `one_file` where what loads them reads no other.
        """
        needed = sum(tensors.bytes(old, self.dtype) for old in names.values())
        free = psutil.disk_usage(str(self.folder)).free
        if free < needed:
            raise HostError(
                f"The model needs {format_bytes(needed)} and {format_bytes(free)} are free where "
                "it should go: nothing was written. Name another place with --to."
            )
        progress: Progress = self.progress
        self.facts["fingerprint"] = write(
            tensors,
            names,
            self.folder,
            dtype=self.dtype,
            shard_bytes=needed if one_file else self.request["shard_bytes"],
            progress=progress,
        )
        if one_file:
            (self.folder / SINGLE).rename(self.folder / one_file)
        kinds = {tensors.dtypes[old] for old in names.values()}
        floats = {self.dtype if self.dtype and kind.is_floating_point else kind for kind in kinds}
        fractions = [kind for kind in floats if kind.is_floating_point]
        if fractions:  # others count: a BatchNorm's batches
            widest = max(fractions, key=lambda kind: kind.itemsize)
            self.widest = str(widest).removeprefix("torch.")
        self.facts |= {
            "tensors": len(names),
            "parameters": sum(torch.Size(tensors.shapes[old]).numel() for old in names.values()),
            "bytes": needed,
            "dtype": ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floats)),
        }

    def text(self, name: str, text: str) -> None:
        """A small file."""
        (self.folder / name).write_text(text, encoding="utf-8")


def export(request: Mapping[str, Any], say: Say) -> None:
    """Fill the folder ``partial``; ends with what was written."""
    job = _Export(request, say)
    job.progress(0, 1, "reading the checkpoint")
    try:
        if request["family"] == "finetune_image":
            _image_adapter(job)
        elif request["adapter_only"]:
            _adapter_alone(job)
        elif request["adapter"]:
            _merged(job)
        elif request["family"] == "gpt":
            _gpt(job)
        elif request["family"] == "tensors":
            _plain(job)
        else:
            _full(job)
    except (OSError, RuntimeError) as error:
        raise full_or(error) from error
    say({"end": True, "facts": job.facts, "notes": job.notes})


def _gpt(job: _Export) -> None:
    """The recipe's own model, with the file that defines it."""
    options = json.loads((job.checkpoint / "options.json").read_bytes())["options"]
    shape = {key: int(options[key]) for key in ("layers", "hidden", "heads")}
    with torch.device("meta"):
        bare = recipe_module("gpt_model").GPT(**shape)
    shapes = {name: tuple(value.shape) for name, value in bare.state_dict().items()}
    tensors = open_tensors(job.checkpoint)
    names = matched(tensors, shapes, {})
    job.weights(tensors, names)
    config = {"model_type": "workbench_gpt", **shape, "seq_len": options.get("seq_len")}
    job.text("config.json", json.dumps(config, indent=2))
    source = (HOME / "gpt_model.py").read_text(encoding="utf-8")
    vocabulary = recipe_module("recipe_options").VOCABULARY
    line = "from recipe_options import VOCABULARY\n"
    own = f"VOCABULARY = {vocabulary}  # bytes\n"
    head, _, rest = source.partition(line)
    before, _, after = rest.partition("\n\n\n")  # imports stay together
    job.text("gpt_model.py", f"{head}{before}\n\n{own}\n\n{after}")


def _image_adapter(job: _Export) -> None:
    """The adapter of a UNet, by the names that diffusers' pipelines load."""
    tensors = open_tensors(job.checkpoint)
    names = {
        f"unet.{name.replace('.default.weight', '.weight')}": name
        for name in tensors.shapes
        if name.endswith((".lora_A.default.weight", ".lora_B.default.weight"))
    }
    if not names:
        raise UsageError(f"{job.checkpoint.name} holds no adapter of a UNet.")
    job.weights(tensors, names, one_file="pytorch_lora_weights.safetensors")
    job.notes.append("An adapter alone: its base model is loaded beside it, and not merged.")


def _plain(job: _Export) -> None:
    """Weights of an unknown class."""
    tensors = open_tensors(job.checkpoint)
    job.weights(tensors, without_prefix(tensors.shapes, ()))
    job.notes.append(
        "The class of the model is not known, so the weights alone were written: load them in your "
        "script with safetensors.torch.load_file. For a Hugging Face model, name a folder with its "
        "config.json with --base."
    )


def _full(job: _Export) -> None:
    """All weights of a Hugging Face model, a shard at a time."""
    hf = huggingface()
    config, tensors = hf.full_config(job.request), open_tensors(job.checkpoint)
    names = hf.full_names(config, tensors, job.checkpoint)
    job.weights(tensors, names or {name: name for name in tensors.shapes})
    _finish(job, config)


def _merged(job: _Export) -> None:
    """An adapter merged into its base, and what it says compared before anything is written."""
    _check_memory(job)
    model, notes = _adapted(job.request)
    job.notes += notes
    job.progress(0, 1, "merging the adapter")
    merged, job.facts["logits_difference"] = merge(model)
    if job.facts["logits_difference"] is None:
        job.notes.append("What it says was not compared with what base and adapter say.")
    config = merged.config
    config.architectures = [type(merged).__name__]
    state = merged.state_dict()
    tied = dict(getattr(merged, "all_tied_weights_keys", None) or {})
    own = {name: state[name] for name in state if not _is_same(state, name, tied.get(name))}
    if own.keys() & tied.keys():
        config.tie_word_embeddings = False
    own = huggingface().as_saved(merged, own)
    job.weights(SavedTensors(own), {name: name for name in own})
    _finish(job, config)


def _is_same(state: Mapping[str, Any], name: str, of: str | None) -> bool:
    """Whether two names are of one weight still: an adapter may have trained one of them alone."""
    return of is not None and of in state and state[name].data_ptr() == state[of].data_ptr()


def _check_memory(job: _Export) -> None:
    """Refuse what would be killed half-way: the base stands in memory once, in fp32."""
    base = job.request["base"]
    if not base or not Path(base).is_dir():
        return
    shapes = SafetensorsFiles(sorted(Path(base).glob("*.safetensors"))).shapes.values()
    needed = 4.4 * sum(torch.Size(shape).numel() for shape in shapes)  # fp32, and room to merge
    free = psutil.virtual_memory().available
    if needed > free:
        raise HostError(
            f"Merging needs about {format_bytes(needed)} of memory and {format_bytes(free)} are "
            "free: export the adapter alone with --adapter, or merge on a larger host."
        )


def _adapter_alone(job: _Export) -> None:
    """The adapter as PEFT loads it."""
    if not job.request["adapter"]:
        raise UsageError(
            "All weights of this run were trained, so there is no adapter: leave --adapter out."
        )
    if job.request["family"] == "huggingface":
        source = Path(job.request["config"])
        tensors = open_tensors(source)
        job.weights(tensors, {name: name for name in tensors.shapes}, one_file=_ADAPTER)
        about = json.loads((source / "adapter_config.json").read_bytes())
    else:
        model, notes = _adapted(job.request)
        job.notes += notes
        state = huggingface().peft().get_peft_model_state_dict(model)
        job.weights(SavedTensors(state), {name: name for name in state}, one_file=_ADAPTER)
        model.peft_config["default"].save_pretrained(str(job.folder))
        about = json.loads((job.folder / "adapter_config.json").read_bytes())
        if not about.get("base_model_name_or_path"):
            job.notes.append(
                "The base is the recipe's own random model, which has no name: without --adapter "
                "the merged model is written."
            )
    base = about.get("base_model_name_or_path")
    if base and Path(base).is_absolute():  # a place on this machine means nothing elsewhere
        about["base_model_name_or_path"] = Path(base).name
        job.notes.append(f"The base was a folder on this machine: {Path(base).name}.")
    job.text("adapter_config.json", json.dumps(about, indent=2))
    job.facts["tokenizer"] = huggingface().save_tokenizer(job.request, job.folder)


def _finish(job: _Export, config: Any) -> None:
    """Config, tokenizer and how it answers; then transformers loads it, where it fits in memory."""
    hf = huggingface()
    kind = hf.class_of(config)
    config.architectures, config.dtype = [kind.__name__], job.widest
    if hasattr(config, "_name_or_path"):
        config._name_or_path = ""  # noqa: SLF001 - a path of this machine
    config.save_pretrained(job.folder)
    job.facts["architecture"] = kind.__name__
    job.facts["tokenizer"] = hf.save_tokenizer(job.request, job.folder)
    if kind.can_generate():
        hf.save_generation(job.request, job.folder)
    if not job.facts["tokenizer"]:
        job.notes.append("No tokenizer was found beside the model: add its files yourself.")
    if 2 * job.facts["bytes"] > psutil.virtual_memory().available:
        job.notes.append("It was not loaded for a test: the host has too little free memory.")
        return
    job.progress(1, 1, "loading it with transformers")
    _, loading = kind.from_pretrained(job.folder, output_loading_info=True, dtype="auto")
    wrong = [
        name
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
        for name in loading[key]
    ]
    if wrong:
        raise WorkbenchError(
            f"transformers does not load what was written ({wrong[0]}): nothing was kept."
        )
    job.facts["loads"] = True


def _adapted(request: Mapping[str, Any]) -> tuple[Any, list[str]]:
    from workbench.trained_model.worker.adapters import adapted  # noqa: PLC0415 - takes seconds

    return adapted(request)


def huggingface() -> Any:
    """Loaded where it is needed: transformers takes seconds."""
    from workbench.trained_model.worker import huggingface as module  # noqa: PLC0415

    return module
