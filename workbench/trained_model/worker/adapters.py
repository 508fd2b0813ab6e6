"""A base model with a trained adapter on it: of the class it was trained on, with its head."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from workbench.errors import UsageError
from workbench.trained_model.adapter_class import adapter_class
from workbench.trained_model.worker.huggingface import (
    UNREADABLE,
    class_of,
    config_of,
    first_sentence,
    on_meta,
    peft,
    recipe_options,
)
from workbench.trained_model.worker.recipe_files import recipe_module
from workbench.trained_model.worker.tensors import open_tensors

_INSIDE = "base_model.model."  # before each name in an adapter's file
_UNUSUAL = 7919  # a number of classes that is no other size of a model


def adapted(request: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The base model with the run's adapter on it, in fp32 on the CPU; and notes for people.

    Raises:
        UsageError: no base is known, or base and adapter do not fit each other in every weight.
    """
    if request["family"] == "lora":
        return _adapted_recipe(request)
    if not request["base"]:
        raise UsageError(
            "The adapter does not say which model it is of: give its folder or name with --base."
        )
    config, name = config_of(request["base"]), Path(request["base"]).name
    about = json.loads(Path(request["config"], "adapter_config.json").read_bytes())
    shapes = {
        key.removeprefix(_INSIDE): tuple(shape)
        for key, shape in open_tensors(Path(request["config"])).shapes.items()
    }
    quantized = getattr(config, "quantization_config", None) is not None
    notes = ["The base is quantized; it was merged in full precision."] if quantized else []
    try:
        kind = _best_class(config, about, shapes)
        notes += _take_labels(kind, config, shapes)
        base, loading = kind.from_pretrained(
            request["base"],
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # a head of other classes: the adapter has its own
        )
        model = peft().PeftModel.from_pretrained(base, request["config"])
        unplaced = model.load_adapter(request["config"], "default").unexpected_keys
    except UNREADABLE as error:
        raise UsageError(
            f"The adapter does not fit {name}: {first_sentence(error)} Name its base model with "
            "--base."
        ) from error
    if unplaced:
        raise UsageError(
            f"The adapter's weight {unplaced[0]} has no place in a {type(base).__name__} of "
            f"{name}: name its base model with --base."
        )
    return model.eval(), [*notes, *_drawn(loading, shapes, about, name)]


def _best_class(config: Any, about: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The class in which most of the adapter's weights have a place; first the one it names."""
    named = getattr(transformers, adapter_class(about) or "", None)
    places = dict[Any, int]()
    for kind in filter(None, (named, *_own_class(config, needed=named is None))):
        try:
            modules = {name for name, _ in on_meta(kind, config).named_modules() if name}
        except UNREADABLE:
            continue
        places[kind] = sum(not modules.isdisjoint(_owners(name)) for name in names)
    return max(places, key=lambda kind: places[kind]) if places else class_of(config)


def _own_class(config: Any, *, needed: bool) -> Iterator[Any]:
    try:
        yield class_of(config)
    except UsageError:
        if needed:
            raise


def _owners(name: str) -> tuple[str, str]:
    """Modules whose weight it can be: layer.lora_A.weight is of layer, score.weight of score."""
    inner = name.rpartition(".")[0]
    return inner, inner.rpartition(".")[0]


def _take_labels(kind: Any, config: Any, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Give the config as many classes as the adapter's head has; a note where they lose names."""
    unusual = copy.deepcopy(config)
    unusual.num_labels = _UNUSUAL
    heads = {
        name
        for name, value in on_meta(kind, unusual).state_dict().items()
        if value.ndim and value.shape[0] == _UNUSUAL
    }
    labels = next((shapes[name][0] for name in sorted(heads) if name in shapes), None)
    if labels is None or labels == config.num_labels:
        return []
    config.num_labels = labels
    return [f"The adapter does not hold the names of its {labels} classes: they have numbers."]


def _drawn(
    loading: Mapping[str, Any], shapes: Iterable[str], about: Mapping[str, Any], name: str
) -> list[str]:
    """What neither base nor adapter holds was drawn at random, and is not what was trained."""
    lost = set(loading["missing_keys"])
    lost |= {key if isinstance(key, str) else key[0] for key in loading["mismatched_keys"]}
    lost -= set(shapes)
    if not lost:
        return []
    if about.get("task_type") == "FEATURE_EXTRACTION":  # it need not be used
        return [f"{min(lost)} is random: neither {name} nor the adapter holds it."]
    raise UsageError(
        f"Neither {name} nor the adapter holds {min(lost)}: in the training it began at random, "
        "and it was not saved. Name it in modules_to_save of the LoRA's config and train again, "
        "or give the model that has it with --base."
    )


def _adapted_recipe(request: Mapping[str, Any]) -> tuple[Any, list[str]]:
    options, notes = recipe_options(request["arguments"]), list[str]()
    if request["base"]:
        options.model = request["base"]
    if options.qlora:
        options.qlora = False
        notes.append(
            "The adapter was trained on a base in 4 bits and is merged into the base in full "
            "precision: answers differ a little from those in training."
        )
    try:
        model = recipe_module("lora").make_model(options).float().eval()
    except UNREADABLE as error:
        raise UsageError(
            f"The base {options.model} cannot be read: {first_sentence(error)}"
        ) from error
    tensors = open_tensors(Path(request["checkpoint"]))
    if (Path(request["checkpoint"]) / "adapter_config.json").is_file():  # the recipe's last words
        loading: Any = peft().set_peft_model_state_dict(model, tensors.read(tensors.shapes))
        if loading.unexpected_keys:
            raise UsageError(f"The adapter is of another model: {loading.unexpected_keys[0]}.")
        return model, notes
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    trained = {name for name, tensor in parameters.items() if tensor.requires_grad}
    if missing := trained - set(tensors.shapes):
        raise UsageError(f"The checkpoint lacks {min(missing)}: it is of another model.")
    with torch.no_grad():
        for name, tensor in tensors.read(sorted(trained)).items():
            parameters[name].copy_(tensor)
    return model, notes
