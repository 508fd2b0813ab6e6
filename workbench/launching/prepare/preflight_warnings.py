"""What may go wrong with a run on this host, said before it starts: one sentence each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench import recipes
from workbench.describe import Strategy
from workbench.describe.amd import NOT_RUN
from workbench.describe.amd import VENDOR as AMD
from workbench.describe.detection import silent_gpus, vendor
from workbench.describe.hardware import Gpu
from workbench.errors import UsageError
from workbench.estimate.rank import ranks_of
from workbench.estimate.sizing.switch import switches_that_fit
from workbench.estimate.states import optimizer_bytes
from workbench.launching.prepare.devices import gpus_of
from workbench.launching.prepare.own_decisions import saves_nothing
from workbench.launching.prepare.own_wrapping import wraps_in_ddp
from workbench.launching.prepare.rank_starters import rank_starter
from workbench.launching.prepare.request import Request
from workbench.notifying.targets import ALL, INSTALL, is_installed, read_targets
from workbench.observe.devices import IN_USE_BYTES
from workbench.observe.gpu import AT_LAUNCH_SECONDS, GpuHolder, PatientGpuSampler, gpu_holders
from workbench.observe.host import disk_free, memory_available
from workbench.observe.throttle import HW_SLOWDOWN, POWER_BRAKE, THERMAL, throttle_text
from workbench.recipes.recipe_options import pipeline_problem
from workbench.script_options.checks import problem_of
from workbench.script_options.from_source import read_source
from workbench.script_options.typed_arguments import given_in
from workbench.store.room import nearest_existing
from workbench.training_data.pictures import list_pictures
from workbench.units import GIB, format_bytes

_LITTLE_DISK = 2 * GIB
_PROBLEMS = 3  # of pictures that are named
_OPTIONS = 12  # of a script that are named


def warnings(request: Request) -> Iterator[str]:
    """What to know before the start.

    Raises:
        UsageError: the disk cannot hold one checkpoint, or a recipe cannot train what it is given.
    """
    for look in (
        _amd,
        _emulated,
        _arguments,
        _own_script,
        _own_wrapping,
        _own_ranks,
        _restarts,
        _messages,
        _memory,
        _offload,
        _gpus_in_use,
        _health,
        _silent,
        _disk,
        _pictures,
    ):
        yield from look(request)


def _pictures(request: Request) -> Iterator[str]:
    """What a recipe will see of a folder of pictures, and what it will leave out."""
    if request.recipe is None or "--resume" in request.arguments:  # that may start elsewhere
        return
    shape = recipes.shape(
        request.arguments, recipe=request.recipe, folder=request.working_directory
    )
    folder = shape["pictures"]
    if folder is None:
        return
    if problem := pipeline_problem(shape["base"]):
        raise UsageError(f"{request.script.name}: {problem}.")
    report = list_pictures(Path(folder).expanduser())
    if not report.pictures:
        raise UsageError(f"--data {folder}: no picture has a caption. {report.problems[0]}")
    yield report.sentence
    yield from report.problems[:_PROBLEMS]
    if len(report.problems) > _PROBLEMS:
        more = len(report.problems) - _PROBLEMS
        typed = shlex.quote(str(folder))
        yield f"{more:,} more pictures are left out: workbench data {typed} lists them."


def _amd(request: Request) -> Iterator[str]:
    """What stands behind a run on AMD's GPUs."""
    if request.device == "cuda" and vendor() == AMD:
        yield f"{NOT_RUN} Compare the first steps' losses with those of --cpu."


def _emulated(request: Request) -> Iterator[str]:
    """A CPU has no units for 8-bit numbers."""
    if request.device == "cpu" and request.precision == "fp8":
        yield (
            "fp8 is emulated on a CPU: numbers are rounded to 8 bits and multiplied in fp32. The "
            "losses are those of fp8; time and memory are not."
        )


def _arguments(request: Request) -> Iterator[str]:
    """Arguments that an own script will refuse, as far as its source shows: else each rank does."""
    if request.recipe is not None:
        return
    reading, name = read_source(request.script), request.script.name
    if not reading.complete or b"parse_known_args" in request.script.read_bytes():
        return
    for argument in given_in(shlex.join(request.arguments), reading.known):
        if argument.option is not None and argument.values:
            problem = problem_of(argument.option, " ".join(argument.values))
            if problem:
                yield f"{name}: {problem}"
        elif argument.spelling.startswith("--") and argument.option is None:
            names = [option.name for option in reading.known.options]
            more = f" and {len(names) - _OPTIONS} more" if len(names) > _OPTIONS else ""
            listed = ", ".join(names[:_OPTIONS]) or "none"
            yield f"{name} has no option {argument.spelling} in its source. It has {listed}{more}."


def _own_script(request: Request) -> Iterator[str]:
    """Model parallelism is the script's own work, and no one can see from outside that it does."""
    strategy = request.strategy
    axes = [axis for axis in ("tp", "cp", "pp") if getattr(strategy, axis) > 1]
    if request.recipe is None and axes:
        yield (
            f"{request.script.name} has to split its model by {' and '.join(axes)} itself: a "
            f"script that does not trains as plain data parallelism under the name "
            f"{strategy.name!r}, or fails in prepare(). The recipes show how; ddp, fsdp and zero1 "
            "to zero3 need nothing of a script that uses Accelerate or transformers' Trainer."
        )


def _own_wrapping(request: Request) -> Iterator[str]:
    """Sharding is Accelerate's work: a script that wraps its model in DDP stays with DDP."""
    if request.recipe is None and request.strategy.dp_shard > 1 and wraps_in_ddp(request.script):
        yield (
            f"{request.script.name} wraps its model in DistributedDataParallel itself and does not "
            f"use Accelerate, so it trains as ddp under the name {request.strategy.name!r}: "
            "nothing is sharded. Let accelerator.prepare(model) wrap it, or give --strategy ddp."
        )


def _own_ranks(request: Request) -> Iterator[str]:
    """A script that starts its ranks does so in each process that is launched."""
    starter = None if request.recipe else rank_starter(request.script)
    if starter is None or (request.processes > 1 and starter.follows_launcher):
        return
    text = f"{request.script.name} starts its ranks itself ({starter.name})"
    if request.processes > 1:  # on several machines
        yield (
            f"{text}: each of the {request.processes} launched processes would start a group of "
            "its own, and they meet on one port. Launch it on one machine."
        )
        return
    processes = request.options.processes or 1
    instead = f", not as {processes}" if processes > 1 else ""
    yield (
        f"{text}, so it is launched as one process{instead}. How many ranks it starts is its own "
        "affair; they are observed, each under its own rank."
    )


def _restarts(request: Request) -> Iterator[str]:
    """A recipe that saves nothing begins again each time it is started again."""
    restarts = request.options.recovery.restarts
    if restarts and saves_nothing(request.recipe, request.arguments):
        allowed = "1 restart is" if restarts == 1 else f"{restarts} restarts are"
        yield (
            f"{allowed} allowed, but the recipe saves no checkpoint, so each would start over. "
            "Add --checkpoint-minutes 5 to its arguments."
        )


def _messages(request: Request) -> Iterator[str]:
    """Targets that get no messages of this run because Apprise is missing."""
    if request.options.notify == (ALL,) and not is_installed() and (targets := read_targets()):
        yield (
            f"No messages will be sent to {', '.join(targets)}: Apprise is not installed here. "
            f"{INSTALL}"
        )


def _memory(request: Request) -> Iterator[str]:
    """The prediction against the card, or the ranks together against the host."""
    predicted, workload = request.predicted, request.workload
    if predicted is None or workload is None:
        return
    if request.device == "cpu":
        needed, free = predicted.total_bytes * request.processes, memory_available()
        if needed > free:
            yield (
                f"{request.processes} ranks will need about {format_bytes(needed)} of memory; "
                f"{format_bytes(free)} are free here. Use fewer ranks or a smaller model."
            )
    elif predicted.fits is False:
        card = predicted.card_bytes or 0
        yield (
            f"Each rank is predicted to need {format_bytes(predicted.on_card_bytes)} of a card of "
            f"{format_bytes(card)}. {_remedy(request)}"
        )


def _remedy(request: Request) -> str:
    assert request.workload is not None
    chosen = switches_that_fit(request.workload, request.strategy, request.cluster)
    if not chosen:
        return "No combination of switches makes it fit: use more GPUs or a smaller model."
    return f"It would fit with: {', '.join(switch.name for switch in chosen)}."


def _offload(request: Request) -> Iterator[str]:
    """What is moved off the card has to fit into the host."""
    needed = None if request.predicted is None else request.predicted.host_bytes
    free = memory_available()
    if needed is not None and needed > free:
        yield (
            f"Offload keeps about {format_bytes(needed)} in this host's memory, and "
            f"{format_bytes(free)} are free: the host will kill the ranks. Offload less, or use "
            "more machines."
        )


def _gpus_in_use(request: Request) -> Iterator[str]:
    """GPUs of the run on which someone else's memory lies."""
    if request.device == "cpu":
        return
    for holder in gpu_holders(_used_gpus(request)):
        if holder.memory_bytes >= IN_USE_BYTES:
            yield _in_use_sentence(holder, request)


def _health(request: Request) -> Iterator[str]:
    """GPUs of the run that are slowed down by heat or power before it starts, or have errors."""
    if request.device == "cpu":
        return
    sampler = PatientGpuSampler(_used_gpus(request), seconds=AT_LAUNCH_SECONDS)
    errors = sampler.memory_errors()
    for sample in sampler.sample():
        slowed = (sample.throttle_reasons or 0) & (THERMAL | HW_SLOWDOWN | POWER_BRAKE)
        if slowed:
            degrees = f" at {sample.temperature_c:.0f} °C" if sample.temperature_c else ""
            yield (
                f"GPU {sample.index} is slowed down already ({throttle_text(slowed)}){degrees}: "
                "all ranks would wait for it. Check its cooling and power, or leave it out with "
                "--devices."
            )
        if errors.get(sample.index):
            yield (
                f"GPU {sample.index} has counted {errors[sample.index]} uncorrectable memory "
                "errors since its driver was loaded. Reset it, or leave it out with --devices."
            )


def _used_gpus(request: Request) -> Sequence[Gpu]:
    """Those of this host that its ranks use."""
    seen = request.cluster.gpus
    return seen[: gpus_of(request.processes_here, request.script, len(seen))]


def _silent(request: Request) -> Iterator[str]:
    """Cards of this host that cannot be used, where the run could have had more than it gets."""
    silent = {} if request.options.cpu or request.options.devices else silent_gpus()
    if silent:
        problems = "; ".join(f"GPU {index}: {text}" for index, text in silent.items())
        yield (
            f"The driver does not describe every GPU of this host ({problems}): the run goes "
            "without. Restart or replace the machine: workbench doctor."
        )


def _in_use_sentence(holder: GpuHolder, request: Request) -> str:
    known = [f"{name} (pid {pid})" for pid, name in holder.processes if name is not None]
    free = holder.total_bytes - holder.memory_bytes
    unknown = len(known) < max(1, len(holder.processes))
    held = f"GPU {holder.index}: {format_bytes(holder.memory_bytes)} are"
    if known:
        others = " and by others outside this container" if unknown else ""
        text = f"{held} held by {', '.join(known)}{others}; {format_bytes(free)} are free."
    else:
        text = (
            f"{held} in use by an unknown holder: the driver names no process of this container. "
            f"{format_bytes(free)} are free."
        )
    if request.predicted is not None and request.predicted.total_bytes > free:
        move = "use other GPUs (--devices)" if unknown else "end it first"
        return f"{text} This run needs {format_bytes(request.predicted.total_bytes)}: {move}."
    return text


def _disk(request: Request) -> Iterator[str]:
    """Room for checkpoints where the run will write."""
    folder = nearest_existing(request.checkpoint_folder or request.store.root)
    free = disk_free(folder)
    if free is None:
        return
    model = request.workload.model if request.workload is not None else None
    every = request.checkpoint_every
    if model is None or not every:
        if free < _LITTLE_DISK:
            yield f"Only {format_bytes(free)} of disk are free below {folder}."
        return
    size = _checkpoint_bytes(request)
    if size > free:
        raise UsageError(
            f"One checkpoint takes about {format_bytes(size)}, but {format_bytes(free)} are free "
            f"below {folder}. Free some, use --store on a larger disk, or --checkpoint-every 0."
        )
    count, keep = (request.steps_total or 0) // every, request.checkpoints_kept
    at_once = count if keep is None else min(count, keep + 1)  # an old one goes after a new one
    if at_once * size > free:
        text = f"{count} checkpoints of about {format_bytes(size)} are planned"
        helps = "Checkpoint less often, keep fewer"
        if at_once < count:
            text = f"{at_once} checkpoints of about {format_bytes(size)} will be kept at a time"
            helps = "Keep fewer"
        yield (
            f"{text}; {format_bytes(free)} are free below {folder}. {helps}, or use a larger disk."
        )


def _checkpoint_bytes(request: Request) -> int:
    """fp32 weights and the optimizer's states; of LoRA the adapters', and the base under FSDP."""
    workload = request.workload
    assert workload is not None
    parameters = workload.model.parameters
    states = optimizer_bytes(workload.optimizer)
    if not workload.lora_rank:
        return round(parameters * (4 + states))
    (single,) = ranks_of(workload, Strategy(name="single"))
    adapters = single.elements.adapters
    base = 4 * parameters if request.strategy.dp_shard > 1 else 0
    return round(adapters * (4 + states)) + base
