"""An adapter that finetune.py trains further: it must be of the model that it is put on."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import re
from pathlib import Path
from typing import Any

from peft import PeftModel
from safetensors import SafetensorError, safe_open

from workbench.errors import UsageError

_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.\w+)?\.weight")
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def with_adapter(model: Any, folder: str, named: str) -> Any:
    """The model (called `named`) with the adapter in `folder`, to train further.

    Raises:
        UsageError: there is none, or it is of another model; one sentence.
    """
    config = _config(folder)
    base = str(config.get("base_model_name_or_path") or "n/a")
    wrong = _misfit(model, config, Path(folder, _WEIGHTS))
    if wrong:
        raise UsageError(
            f"--adapter {folder} is not of --model {named}: {wrong}. It was trained on {base}"
        )
    return PeftModel.from_pretrained(model, folder, is_trainable=True)


def _config(folder: str) -> dict[str, Any]:
    """adapter_config.json, which every adapter of PEFT has."""
    path = Path(folder, _CONFIG)
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--adapter {folder} has no readable {_CONFIG} ({type(error).__name__}): give a folder "
            "as a fine-tuning leaves it in checkpoints/adapter"
        ) from error


def _size(module: Any) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; GPT-2's has other names for them."""
    for inputs, outputs in (("in_features", "out_features"), ("nx", "nf")):
        if hasattr(module, inputs) and hasattr(module, outputs):
            return getattr(module, inputs), getattr(module, outputs)
    return None


def _misfit(model: Any, config: dict[str, Any], weights: Path) -> str:
    """What of the adapter does not fit; "" = all of it does."""
    if (task := config.get("task_type") or "CAUSAL_LM") != "CAUSAL_LM":
        return f"its task is {task}, and this trains text (CAUSAL_LM)"
    try:
        with safe_open(str(weights), framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        return f"its weights cannot be read ({str(error).splitlines()[0]})"
    sizes = {
        name: {"A": size[0], "B": size[1]}
        for name, module in model.named_modules()
        if (size := _size(module)) is not None
    }
    adapted: set[str] = set()
    for key, shape in shapes.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        name, side = match[1], match[2]
        if name not in sizes:
            return f"the model has no {name}"
        own, there = sizes[name][side], shape[1] if side == "A" else shape[0]
        if own != there:
            way = "inputs" if side == "A" else "outputs"
            return f"{name} has {own:,} {way}, the adapter is for {there:,}"
        adapted.add(name)
    kinds = {name.rpartition(".")[2] for name in adapted}
    left = [size for size in sizes if size.rpartition(".")[2] in kinds and size not in adapted]
    if left and not config.get("layers_to_transform") and not config.get("exclude_modules"):
        return f"it has nothing for {left[0]}"
    return "" if adapted else "it adapts no linear layer"
