"""What is known of a recipe's run before it starts: workload, memory of a rank, time of a step."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Model, Strategy, Workload
from workbench.estimate import Estimate, training_memory
from workbench.estimate.card import CPU_CONTEXT_BYTES, CPU_CONTEXT_OF_CUDA_BUILD_BYTES
from workbench.estimate.parts import CONTEXT
from workbench.launch.prepare.request import Request
from workbench.launch.prepare.step_prediction import predict


def with_prediction(request: Request, recipe: str) -> Request:
    """Add what is known of a recipe: its defaults for the device, workload, memory and step time.

    On a GPU the recipe's GPU-sized defaults come before the user's own arguments, which win. The
    time limit is left to the recipe, which has one only when no steps are asked for.
    """
    arguments = request.arguments
    if request.device == "cuda":
        defaults = list(recipes.find(recipe).gpu_arguments)
        if "--minutes" in defaults:
            at = defaults.index("--minutes")
            del defaults[at : at + 2]
        arguments = (*defaults, *arguments)
    shape = recipes.shape(arguments, recipe=recipe)
    workload = None if shape["layers"] is None else workload_of(recipe, shape)
    wrap = request.wrap  # a model given by name says itself what its blocks are
    if wrap is None and shape["model"] is None:
        wrap = recipes.find(recipe).block
    where = "cpu" if request.device == "cpu" else request.cluster
    step = workload and predict(
        workload, request.strategy, request.cluster, request.device, request.store
    )
    return replace(
        request,
        arguments=arguments,
        wrap=wrap,
        precision=shape["precision"],
        optimizer=shape["optimizer"],
        checkpoint_folder=shape["checkpoint_dir"],
        workload=workload,
        predicted=workload and _of_this_torch(memory_of(recipe, workload, request.strategy, where)),
        predicted_time=step and step[0],
        predicted_basis=step and step[1],
        steps_total=shape["steps"],
        seconds_total=None if shape["minutes"] is None else 60.0 * shape["minutes"],
        checkpoint_every=shape["checkpoint_every"],
    )


def memory_of(recipe: str, workload: Workload, strategy: Strategy, where: Any) -> Estimate:
    """Memory of a rank of the recipe."""
    if recipes.find(recipe).alone != ("cp",):
        return training_memory(workload, strategy, where)
    # Not sharded over the context ranks, as FSDP does it: the whole model, part of each sequence.
    own = replace(workload, seq_len=workload.seq_len // strategy.cp)
    found = training_memory(own, Strategy.parse("single", 1), where)
    said = f"each of the {strategy.cp} context ranks holds the whole model"
    return replace(found, assumptions=(*found.assumptions, said))


def _of_this_torch(predicted: Estimate) -> Estimate:
    """A CPU rank loads the CUDA libraries of torch's CUDA build too, though it never uses them."""
    torch = importlib.util.find_spec("torch")
    folders = torch.submodule_search_locations if torch is not None else None
    cuda = any(Path(folder, "lib", "libtorch_cuda.so").exists() for folder in folders or ())
    if not cuda or predicted.parts.get(CONTEXT) != CPU_CONTEXT_BYTES:
        return predicted
    size = CPU_CONTEXT_OF_CUDA_BUILD_BYTES
    said = f"context of a CPU rank under torch's CUDA build: {size >> 20} MiB, not measured here"
    kept = tuple(one for one in predicted.assumptions if "context of a CPU rank" not in one)
    return replace(predicted, parts={**predicted.parts, CONTEXT: size}, assumptions=(*kept, said))


def workload_of(recipe: str, shape: Mapping[str, Any]) -> Workload:
    """What the recipe trains: our GPT, or a Hugging Face model with adapters."""
    from_config = shape["gated_mlp"]  # a Llama, not the GPT of gpt_model.py
    model = Model(
        name=f"{recipe}, {shape['layers']} layers, {shape['hidden']} wide",
        layers=shape["layers"],
        hidden=shape["hidden"],
        heads=shape["heads"],
        kv_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        mlp_hidden=shape["mlp"],
        vocab=shape["vocab"],
        gated_mlp=shape["gated_mlp"],
        norm="rmsnorm" if from_config else "rmsnorm-plain",
        tied_embeddings=bool(shape["tied"]),
    )
    adapters: dict[str, Any] = {}
    if shape["lora_rank"]:
        adapters = {key: shape[key] for key in ("lora_rank", "lora_targets", "quantization")}
    return Workload(
        model=model,
        seq_len=shape["seq_len"],
        micro_batch=shape["micro_batch"],
        accumulate=shape["accumulate"],
        precision=shape["precision"],
        optimizer=shape["optimizer"],
        attention_mask=from_config,
        variable_length=from_config,
        **adapters,
    )
