"""A described job as a launch: which recipe trains it, with which arguments, and whether it can be.

What is launched is what was described. A recipe gets the workload as arguments and is refused where
it would train another; anybody's own script is taken at its word, and the description is what its
run is predicted by.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Model, Workload
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def recipe_for(job: Job) -> str:
    """The recipe that trains exactly this workload. Raises UsageError: none does."""
    for name in recipes.recipes():
        if not recipes.find(name).alone and not _differences(name, job.workload):
            return name
    raise UsageError(
        f"No recipe trains {job.workload.model.name} as the job describes it. Name your script: "
        'wb.launch("train.py", job=job).'
    )


def recipe_arguments(recipe: str, workload: Workload) -> list[str]:
    """The arguments by which a recipe trains the workload, those that it has.

    >>> job = Job.of("gpt2", seq_len=512)
    >>> recipe_arguments("vision", job.workload)[:4]
    ['--micro-batch', '1', '--accumulate', '1']
    """
    model = workload.model
    values: dict[str, Any] = {
        "--layers": model.layers,
        "--hidden": model.hidden,
        "--heads": model.heads,
        "--seq-len": workload.seq_len,
        "--micro-batch": workload.micro_batch,
        "--accumulate": workload.accumulate,
        "--precision": workload.precision,
        "--optimizer": workload.optimizer,
        "--lora-rank": workload.lora_rank,
    }
    flags = flags_of(recipe)
    if "--layers" not in flags:
        values["--size"] = model.layers
    if workload.lora_rank:
        values["--lora-targets"] = ",".join(workload.lora_targets)
    words = [part for flag, value in values.items() if flag in flags for part in (flag, str(value))]
    return words + ["--qlora"] * (workload.quantization == "nf4" and "--qlora" in flags)


@functools.cache
def flags_of(recipe: str) -> frozenset[str]:
    """The options that a recipe has."""
    return frozenset(_FLAG.findall(recipes.help_text(recipe)))


def check_trained(recipe: str, arguments: Sequence[str], workload: Workload) -> None:
    """Refuse arguments under which the recipe would not train what was described.

    Raises:
        UsageError: it would train something else, which the message names.
    """
    differing = _differences(recipe, workload, arguments)
    if differing:
        raise UsageError(
            f"The recipe {recipe} would not train what the job describes: {'; '.join(differing)}. "
            "Change the job or the arguments, or name your own script."
        )


def _differences(
    recipe: str, workload: Workload, arguments: Sequence[str] | None = None
) -> list[str]:
    """Where the recipe's training is another one, each as "name: its value, not the job's"."""
    words = recipe_arguments(recipe, workload) if arguments is None else arguments
    try:
        shape = recipes.shape(words, recipe=recipe)
    except UsageError as error:
        return [str(error)]
    if shape["layers"] is None:
        return ["its model is not described"]
    trained = workload_of(recipe, shape)
    named = replace(trained, model=replace(trained.model, name=workload.model.name))
    return _unequal(named, workload)


def _unequal(trained: Any, described: Any) -> list[str]:
    """The fields in which two described values differ, those of inner values too."""
    differences: list[str] = []
    for field in fields(trained):
        value, expected = getattr(trained, field.name), getattr(described, field.name)
        if is_dataclass(value) and type(value) is type(expected):
            differences += _unequal(value, expected)
        elif field.name != "calibration" and value != expected:
            differences.append(f"{field.name.replace('_', ' ')} {value}, not {expected}")
    return differences


def with_job(options: LaunchOptions) -> LaunchOptions:
    """The options with the strategy and the machines of their job; what is given as well counts.

    Raises:
        UsageError: they are options of a strategy that the job does not have.
    """
    job = options.job
    if job is None:
        return options
    nodes = job.cluster.nodes if isinstance(job.cluster, Cluster) else 1
    return replace(
        options,
        strategy=options.strategy or job.launched,
        nodes=nodes if options.nodes == 1 else options.nodes,
        cpu=options.cpu or job.cluster == "cpu",
    )


def on_this_host(options: LaunchOptions, host: Cluster) -> Cluster:
    """This host, with the price and the links that the job describes.

    Raises:
        UsageError: the job is described for GPUs that this host does not have.
    """
    job = options.job
    if job is None or not isinstance(job.cluster, Cluster) or options.cpu:
        return host
    if options.cluster is None and (missing := missing_gpus(job.cluster, host)):
        raise UsageError(
            f"{missing} Run it there, describe a job for this host, or launch with cpu=True to "
            "rehearse on CPU ranks."
        )
    cluster = job.cluster
    price = cluster.usd_per_hour if host.usd_per_hour is None else host.usd_per_hour
    return replace(host, usd_per_hour=price, network=cluster.network, link=cluster.link)


def missing_gpus(cluster: Cluster, host: Cluster) -> str:
    """What a host lacks of one machine of a cluster, in one sentence; "" = nothing."""
    kind = cluster.accelerator.id if cluster.accelerator else cluster.gpus[0].name
    needs = f"the job needs {len(cluster.gpus)} x {kind}"
    if not host.gpus:
        return f"This host has no GPU; {needs}."
    have = host.accelerator.id if host.accelerator else host.gpus[0].name
    if len(host.gpus) >= len(cluster.gpus) and have == kind:
        return ""
    return f"This host has {len(host.gpus)} x {have}; {needs}."


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
        experts=shape["experts"],
        experts_per_token=shape["experts_per_token"],
        expert_hidden=shape["mlp"] if shape["experts"] else 0,
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
