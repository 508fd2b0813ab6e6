"""What is known of a run before it starts: workload, memory of a rank, time of a step.

Of a recipe from its arguments; of a script from the job that describes it, from its measurement, or
from its arguments and configuration where a known trainer reads them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Strategy, Workload
from workbench.describe.job import Job
from workbench.describe.supported import backend
from workbench.describe.trainers import Trainer, imported_trainer, preset
from workbench.errors import HostError, UsageError
from workbench.estimate.card import (
    CPU_CONTEXT_BYTES,
    CPU_CONTEXT_OF_CUDA_BUILD_BYTES,
    CPU_IMPORTS_BYTES,
)
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import CONTEXT, Estimate
from workbench.launching.prepare.described import check_trained, workload_of
from workbench.launching.prepare.own_model import check_files, epoch_steps, of_own_model, with_pairs
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.step_prediction import predict
from workbench.script_options.from_source import read_source
from workbench.store import measurements, stack_calibrations
from workbench.store.calibrations import host_key
from workbench.store.python_source import imports, readable_tree
from workbench.trainer_configs import job_of, read_command_line


def with_prediction(request: Request) -> Request:
    """Add what is known of the training: workload, memory of a rank and time of a step."""
    strategy, notes = request.strategy, tuple[str, ...]()
    if request.recipe is not None:
        request = _of_recipe(request, request.recipe)
    else:
        request = _of_script(request)
        if request.workload is None and (job := _of_arguments(request)) is not None:
            request = replace(request, workload=job.workload, trainer=job.trainer)
            strategy, notes = job.strategy, job.notes[1:]  # without the trainer's own note
    workload = request.workload
    if workload is None:
        return request
    where = "cpu" if request.device == "cpu" else request.cluster
    if request.trainer is not None:
        strategy = request.trainer.on(strategy)
    stack = stack_calibrations.of_stack(
        request.store.root,
        request.trainer,
        request.options.calibration,
        script=request.recipe or request.script.name,
        host_key=host_key(request.cluster, cpu=True) if request.device == "cpu" else "",
    )
    request = replace(request, workload=replace(workload, calibration=None))
    workload = replace(workload, calibration=stack or workload.calibration)
    step = predict(workload, strategy, request.cluster, request.device, request.store)
    trainer = request.trainer
    is_named = trainer is not None and (trainer.is_named or trainer.is_imported)
    memory = memory_of(request.recipe, workload, strategy, where, is_named=is_named)
    if request.trainer is not None and request.trainer.assumptions:
        assumptions = (request.trainer.note, *notes, *memory.assumptions)
        memory = replace(memory, assumptions=assumptions)
    if request.recipe is not None:
        memory = with_pairs(
            memory,
            recipes.shape(
                request.arguments, recipe=request.recipe, folder=request.working_directory
            ),
        )
    return replace(
        request,
        predicted=_with_imports(memory, request),
        predicted_time=step and step[0],
        predicted_basis=step and step[1],
    )


def _of_script(request: Request) -> Request:
    """Add what the job describes, and what trains: the job's trainer, else the script's imports."""
    job = request.options.job
    if job is not None and job.trainer is not None and job.trainer.is_named:
        return replace(request, workload=job.workload, trainer=job.trainer)
    imported = _imported(request.script)
    trainer = job.trainer if job else None
    if imported is not None:
        trainer = preset(imported.name)
        if job is not None and job.given:
            job = job.with_trainer(imported.name)
            trainer = job.trainer or trainer
        trainer = replace(trainer, is_imported=True)
    if job is not None:
        return replace(request, workload=job.workload, trainer=trainer)
    measured = measurements.find(request.store, request.script, request.arguments)
    return replace(request, workload=measured and measured.workload, trainer=trainer)


def _of_arguments(request: Request) -> Job | None:
    """The job that a known trainer reads from the script's arguments; None = they do not say it.

    What is not given is as the script declares it. How the work is spread is the launch's, unless
    that leaves it to the script (single, ddp).
    """
    if request.trainer is None:
        return None
    cluster, nodes = request.cluster, request.cluster.nodes
    options: dict[str, Any] = {"nodes": nodes, "gpus": request.strategy.world_size // nodes}
    if request.device == "cpu":
        options["cpu"] = True
    elif cluster.accelerator is not None:
        options["gpu"] = cluster.accelerator.id
    if request.strategy.name not in {"single", "ddp"}:
        options["strategy"] = request.strategy
    try:
        declared = _declared(request.script)
        config = read_command_line(request.arguments, request.trainer.text, declared)
        job = job_of(config, options)
    except (UsageError, HostError):
        return None
    trainer = None if job.trainer is None else replace(job.trainer, is_imported=True)
    return replace(job, trainer=trainer)


def _declared(script: Path) -> tuple[str, ...]:
    """The defaults of a script's own options, as it would be told them."""
    options = read_source(script).known.options
    return tuple(
        f"{option.name}={option.default}"
        for option in options
        if option.name.startswith("--") and option.default not in {None, ""}
    )


def _imported(script: Path) -> Trainer | None:
    tree = readable_tree(script)
    if tree is None:
        return None
    return imported_trainer(name for name, dots in imports(tree) if not dots)


def _checkpoint_folder(
    request: Request, arguments: Sequence[str], folder: Path | None
) -> Path | None:
    """The folder that was asked for; a recipe's own lies in the run's directory."""
    asked = "--checkpoint-dir" in {word.partition("=")[0] for word in arguments}
    return request.working_directory / folder if asked and folder is not None else None


def _of_recipe(request: Request, recipe: str) -> Request:
    """What a recipe's arguments say, with its defaults for the device.

    On a GPU the recipe's GPU-sized defaults come before the user's own arguments, which win. The
    time limit is left to the recipe, which has one only when no steps are asked for.

    Raises:
        UsageError: it would not train what the job describes.
    """
    arguments = request.arguments
    if request.device == "cuda":
        defaults = list(recipes.find(recipe).gpu_arguments)
        if "--minutes" in defaults:
            at = defaults.index("--minutes")
            del defaults[at : at + 2]
        arguments = (*defaults, *arguments)
    shape = recipes.shape(arguments, recipe=recipe, folder=request.working_directory)
    workload = None if shape["layers"] is None else workload_of(recipe, shape)
    job = of_own_model(request, recipe, shape)
    if job is not None:
        workload = job.workload
    if workload is None:  # one without layers of tokens is predicted as it was measured
        measured = measurements.find(request.store, request.script, arguments)
        workload = measured and measured.workload
    if request.options.job is not None:
        workload = request.options.job.workload
        check_trained(recipe, arguments, workload)
    check_files(shape)
    (epoch, examples), steps = epoch_steps(request, shape), shape["steps"]
    if steps is None and epoch is not None:
        steps = math.ceil(epoch * shape["epochs"])
    wrap = request.wrap  # a model given by name says itself what its blocks are
    if wrap is None and shape["model"] is None:
        wrap = recipes.find(recipe).block
    return replace(
        request,
        arguments=arguments,
        wrap=wrap,
        precision=shape["precision"],
        optimizer=shape["optimizer"],
        checkpoint_folder=_checkpoint_folder(request, arguments, shape["checkpoint_dir"]),
        workload=workload,
        trainer=request.trainer if job is None else job.trainer,
        epoch_steps=epoch,
        epoch_examples=examples,
        steps_total=steps,
        seconds_total=None if shape["minutes"] is None else 60.0 * shape["minutes"],
        checkpoint_every=shape["checkpoint_every"],
        checkpoints_kept=_kept_count(shape["keep_last"], shape["keep_best"]),
    )


def _kept_count(last: int | None, best: int | None) -> int | None:
    """How many checkpoints stay; the newest always does. None = all."""
    return None if last is None and best is None else max(1, last or 0) + (best or 0)


def memory_of(
    recipe: str | None, workload: Workload, strategy: Strategy, where: Any, *, is_named: bool
) -> Estimate:
    """Memory of a rank of the recipe, or of a script that does as it is described."""
    if recipe is None or recipes.find(recipe).alone != ("cp",):
        return training_memory(workload, strategy, where, is_named=is_named)
    # Not sharded over the context ranks, as FSDP does it: the whole model, part of each sequence.
    own = replace(workload, seq_len=workload.seq_len // strategy.cp)
    memory = training_memory(own, Strategy.parse("single", 1), where, is_named=is_named)
    note = f"each of the {strategy.cp} context ranks holds the whole model"
    return replace(memory, assumptions=(*memory.assumptions, note))


def _with_imports(predicted: Estimate, request: Request) -> Estimate:
    """A CPU rank holds what it imports: torch's CUDA libraries, though unused, and its trainer."""
    if predicted.parts.get(CONTEXT) != CPU_CONTEXT_BYTES:
        return predicted
    torch = importlib.util.find_spec("torch")
    folders = torch.submodule_search_locations if torch is not None else None
    cuda = any(Path(folder, "lib", "libtorch_cuda.so").exists() for folder in folders or ())
    size = CPU_CONTEXT_OF_CUDA_BUILD_BYTES if cuda else CPU_CONTEXT_BYTES
    libraries = set[str]() if request.trainer is None else {request.trainer.trainer.name}
    by_accelerate = backend(request.strategy, request.splits) in {"deepspeed", "fsdp"}
    if by_accelerate and importlib.util.find_spec("deepspeed") is not None:
        libraries.add("deepspeed")
    # The larger one: they import much of the same.
    size += max((CPU_IMPORTS_BYTES.get(library, 0) for library in libraries), default=0)
    if size == CPU_CONTEXT_BYTES:
        return predicted
    build = " under torch's CUDA build" if cuda else ""
    note = f"context of a CPU rank{build}: {size >> 20} MiB, not measured on this host"
    assumptions = tuple(
        assumption
        for assumption in predicted.assumptions
        if "context of a CPU rank" not in assumption
    )
    return replace(
        predicted, parts={**predicted.parts, CONTEXT: size}, assumptions=(*assumptions, note)
    )
