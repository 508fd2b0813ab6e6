"""The README.md of an exported model: what was trained on what, how, and how to load it.

No path of this machine, no user, no secret: arguments are those of the record (redacted there), of
a path its last part.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.summary import summarise
from workbench.store.layout import RunPaths
from workbench.store.printable import printable
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.secrets import hide_known
from workbench.trained_model.adapter_class import adapter_class
from workbench.trained_model.exported import ExportedModel
from workbench.trained_model.hub import license_of
from workbench.trained_model.source import ADAPTER_FILE, GPT, IMAGE_LORA, TENSORS, TrainedModel
from workbench.units import UNKNOWN, format_bytes, format_count, format_ratio, format_seconds
from workbench.version import __version__

_LOAD = {
    "full": """\
from transformers import AutoTokenizer, THE_CLASS

model = THE_CLASS.from_pretrained("THIS_FOLDER")
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")""",
    "adapter": """\
from peft import PeftModel
from transformers import THE_CLASS

base = THE_CLASS.from_pretrained("THE_BASE_MODEL")
model = PeftModel.from_pretrained(base, "THIS_FOLDER")""",
    IMAGE_LORA: """\
from diffusers import StableDiffusionPipeline

pipeline = StableDiffusionPipeline.from_pretrained("THE_BASE_MODEL")
pipeline.load_lora_weights("THIS_FOLDER")""",
    GPT: """\
import json
from pathlib import Path
from safetensors.torch import load_file
from gpt_model import GPT  # the file beside this one

shape = json.load(open("config.json"))
model = GPT(shape["layers"], shape["hidden"], shape["heads"])
weights = {}
for file in Path(".").glob("model*.safetensors"):
    weights |= load_file(file)
model.load_state_dict(weights)  # bytes in, logits of bytes out""",
    TENSORS: """\
from pathlib import Path
from safetensors.torch import load_file

weights = {}  # names and tensors, for your own model class
for file in Path(".").glob("model*.safetensors"):
    weights |= load_file(file)""",
}


def card(paths: RunPaths, model: TrainedModel, exported: ExportedModel) -> str:
    """The text, in Markdown with the hub's header."""
    run = read_run(paths) or RunRecord()
    base = _base_name(model.base)
    head = ["---", f"license: {_license(model)}"]
    head += [f"base_model: {json.dumps(base)}"] if base else []
    if _is_adapter(model, exported):
        of_images = model.family == IMAGE_LORA
        head += [f"library_name: {'diffusers' if of_images else 'peft'}"]
    head += ["tags:", "- training-workbench", "---", ""]
    title = _plain(run.name) or exported.run
    body = [f"# {title}", "", *_facts(paths, model, exported, run, base), ""]
    code = _LOAD[_kind(model, exported)].replace("THE_CLASS", _class_of(model, exported))
    body += ["## Load it", "", "```python", code, "```", ""]
    body += [*_compared(paths), *_notes(exported)]
    return hide_known("\n".join([*head, *body])).rstrip() + "\n"


def _is_adapter(model: TrainedModel, exported: ExportedModel) -> bool:
    return model.adapter and not exported.merged


def _kind(model: TrainedModel, exported: ExportedModel) -> str:
    if model.family in {GPT, IMAGE_LORA, TENSORS}:
        return model.family
    return "adapter" if _is_adapter(model, exported) else "full"


def _class_of(model: TrainedModel, exported: ExportedModel) -> str:
    """The class of transformers that loads what was trained, with its head."""
    if not _is_adapter(model, exported):
        class_name = exported.architecture or ""
        return class_name if class_name.isidentifier() else "AutoModel"
    if model.config is None:  # of the recipe lora
        return "AutoModelForCausalLM"
    try:
        about: Any = json.loads((model.config / ADAPTER_FILE).read_bytes())
        class_name = adapter_class(about) or ""
    except (OSError, ValueError, AttributeError, RecursionError):
        class_name = ""
    return class_name if class_name.isidentifier() else "AutoModel"


def _facts(
    paths: RunPaths, model: TrainedModel, exported: ExportedModel, run: RunRecord, base: str | None
) -> list[str]:
    about = summarise(paths)
    losses = [
        UNKNOWN if about[key] is None else f"{about[key]:.4f}"
        for key in ("loss_first", "loss_last")
    ]
    accelerator: Mapping[str, Any] = run.cluster.get("accelerator") or {}
    hardware = f"{run.processes} processes on {run.cluster.get('cpu_name') or run.device}"
    if run.device != "cpu" and accelerator:
        hardware = f"{run.processes} x {accelerator.get('name')}"
    rows = {
        "run": exported.run,
        "checkpoint": f"{exported.checkpoint}, step {_or_unknown(exported.step)}",
        "base model": base or "none, or not known",
        "license of the base": _license(model),
        "script": _plain(Path(run.script).name),
        "arguments": _arguments(run),
        "data": _data(run, base),
        "steps of the run": _or_unknown(about["steps"]),
        "loss, first and last": " and ".join(losses),
        "strategy": _plain(about["strategy"] or UNKNOWN),
        "hardware": _plain(hardware),
        "time": format_seconds(about["elapsed_seconds"]),
        "parameters": f"{exported.parameters:,} in {exported.tensors:,} tensors, {exported.dtype}",
        "size": format_bytes(exported.bytes),
        "SHA-256 of the tensors": f"`{exported.fingerprint}`",
        "written by": f"training-workbench {__version__}",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _compared(paths: RunPaths) -> list[str]:
    """Predicted beside measured."""
    rows = read_prediction_error(paths).rows
    if not rows:
        return []
    lines = [
        "## Predicted and measured",
        "",
        "| | predicted | measured | ratio |",
        "|---|---|---|---|",
    ]
    for term in rows:
        ratio = format_ratio(term.measured, term.predicted)
        cells = (term.what, term.text(term.predicted), term.text(term.measured), ratio)
        lines.append(f"| {' | '.join(map(_plain, cells))} |")
    return [*lines, ""]


def _notes(exported: ExportedModel) -> list[str]:
    lines = [f"- {_plain(note)}" for note in exported.notes]
    if exported.logits_difference is not None:
        lines.append(
            f"- The adapter was merged: on a fixed input the logits differ by at most "
            f"{exported.logits_difference:.1e} from those of base and adapter (fp32)."
        )
    return ["## Notes", "", *lines] if lines else []


def _arguments(run: RunRecord) -> str:
    words = [_without_folders(word) for word in run.arguments]
    return f"`{_plain(shlex.join(words)).replace('`', '')}`" if words else "none"


def _without_folders(word: str) -> str:
    """An argument with the last part of a path alone.

    >>> [_without_folders(one) for one in ("--data=/home/ann/a.jsonl", "runs/b/", "3e-4")]
    ['--data=a.jsonl', 'runs/b/', '3e-4']
    """
    option, equals, value = word.rpartition("=")
    absolute = value.startswith(("/", "~", "file:"))
    return f"{option}{equals}{Path(value).name if absolute else value}"


def _data(run: RunRecord, base: str | None) -> str:
    if run.recipe == "gpt":
        return "the sources of Python's standard library, as bytes"
    if run.recipe == "lora":
        return "signatures and docstrings of Python's standard library"
    files = (run.provenance or {}).get("data") or []
    named = [_plain(Path(str(file.get("path"))).name) for file in files if file.get("path")]
    return ", ".join([name for name in named if name != base][:8]) or UNKNOWN


def _base_name(base: str | None) -> str | None:
    """A hub's name as it is; of a folder its own name."""
    if base is None:
        return None
    return _plain(Path(base).name if Path(base).is_absolute() else base)


def _license(model: TrainedModel) -> str:
    """Of the base, by its own card; unknown where it says none."""
    return "unknown" if model.base is None else license_of(Path(model.base))


def _or_unknown(value: int | None) -> str:
    return UNKNOWN if value is None else format_count(value) if value > 9_999 else str(value)


def _plain(text: str) -> str:
    """Text of a run in a table cell: one line, no markup."""
    line = " ".join(printable(text).split())
    return re.sub(r"([|<>\[\]*])", r"\\\1", line)
