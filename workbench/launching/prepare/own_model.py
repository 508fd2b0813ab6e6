"""A recipe on the user's own model and data: the job that its trainer makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from workbench import recipes
from workbench.describe.job import Job
from workbench.describe.workload import LORA_TARGETS
from workbench.errors import UsageError
from workbench.estimate.parts import Estimate
from workbench.launching.prepare.model_weights import check_weights
from workbench.launching.prepare.request import Request
from workbench.store.files import read_json
from workbench.training_data import check_objective, examine, form_of_source, locate

_MOST_BYTES = 256 << 20  # of data that is read to count its rows; more takes minutes


def of_own_model(request: Request, recipe: str, shape: Mapping[str, Any]) -> Job | None:
    """The job of a recipe that runs a known trainer; None = another recipe, or a model not here.

    What the recipe decides itself is given; the rest is as its trainer does it.
    """
    trainer = recipes.find(recipe).trainer
    if trainer is None or shape["model"] is None:
        return None
    options: dict[str, Any] = {
        name: shape[name]
        for name in ("seq_len", "micro_batch", "accumulate", "precision", "optimizer")
    }
    options |= {"low_precision_weights": False, "strategy": request.strategy, "trainer": trainer}
    options["variable_length"] = not shape["packing"]  # a batch is as long as its longest example
    if shape["objective"] == "dpo":  # a pair is two sequences of one forward; see `with_pairs`
        options |= {"micro_batch": 2 * shape["micro_batch"], "loss": "chunked"}
    if shape["lora_rank"]:
        options |= {name: shape[name] for name in ("lora_rank", "lora_targets", "quantization")}
        options |= _of_adapter(shape["adapter"])
    nodes = request.cluster.nodes
    options |= {"nodes": nodes, "gpus": request.strategy.world_size // nodes}
    if request.device == "cpu":
        options["cpu"] = True
    elif request.cluster.accelerator is not None:
        options["gpu"] = request.cluster.accelerator.id
    try:
        return Job.from_options(shape["model"], options, typed=())
    except UsageError:
        named_as_folder = shape["model"].startswith((".", "/", "~"))
        if named_as_folder or Path(shape["model"]).is_dir():
            raise  # not there, without a config, or it cannot be trained so
        return None


def _of_adapter(folder: str | None) -> dict[str, Any]:
    """Rank and layers of an adapter that is trained further, which it keeps; {} = not known."""
    about = None if folder is None else read_json(Path(folder, "adapter_config.json").expanduser())
    if about is None:
        return {}
    rank, modules = about.get("r"), about.get("target_modules")
    listed = cast("list[object]", modules) if isinstance(modules, list) else []
    named = {str(name).rpartition(".")[2] for name in listed}
    targets = tuple(name for name in LORA_TARGETS if f"{name}_proj" in named)
    found = {"lora_rank": rank} if isinstance(rank, int) and rank > 0 else {}
    return found | ({"lora_targets": targets} if targets else {})


def with_pairs(memory: Estimate, shape: Mapping[str, Any]) -> Estimate:
    """Memory of a rank that learns from pairs: without adapters it holds the start model as well.

    With adapters the start model is the trained one with its adapters off. TRL computes the
    logarithms of probabilities in chunks, and shards its second model as the first one is.
    """
    if shape["objective"] != "dpo":
        return memory
    parts = dict(memory.parts)
    if not shape["lora_rank"]:
        parts["reference model"] = parts["parameters"]
    notes = ("both answers of a pair are in one forward pass: two sequences per example",)
    return replace(memory, parts=parts, assumptions=(*memory.assumptions, *notes))


def check_files(shape: Mapping[str, Any]) -> None:
    """Refuse weights, data and adapters that the recipe would refuse after a minute of loading.

    Raises:
        UsageError: a file of the weights is not whole, the data are not what the objective trains
            on, or there is no adapter.
    """
    if shape["model"] is not None:
        check_weights(shape["model"])
    folder = shape["adapter"]
    if folder is not None and not Path(folder, "adapter_config.json").expanduser().is_file():
        raise UsageError(
            f"--adapter {folder}: no adapter_config.json there. Give a folder as a fine-tuning "
            "leaves it: checkpoints/adapter of its run."
        )
    if shape["data"] is not None:
        form, _ = form_of_source(locate(shape["data"]))
        check_objective(shape["data"], form, shape["objective"])


def epoch_steps(request: Request, shape: Mapping[str, Any]) -> tuple[int, int] | tuple[None, None]:
    """Optimizer steps of one pass over the data, and its examples; None = they are not known.

    Raises:
        UsageError: nothing in the data can be trained on.
    """
    if shape["data"] is None or shape["packing"]:  # packed examples are known once encoded
        return None, None
    source = locate(shape["data"])
    if sum(path.stat().st_size for path in source.files) > _MOST_BYTES:
        return None, None
    every = examine(shape["data"]).examples
    examples = every - math.ceil(every * shape["eval_share"])
    per_rank = math.ceil(examples / request.strategy.data_ranks)
    per_epoch = math.ceil(per_rank / shape["micro_batch"])
    return math.ceil(per_epoch / shape["accumulate"]), examples
