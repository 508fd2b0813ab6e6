"""``workbench memory``: what a training (or serving) process needs, why, and what would help."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console, RenderableType

from workbench.cli.describing import (
    describe,
    with_options,
)
from workbench.cli.memory_values import Answered, MemoryAsked, accelerator
from workbench.cli.tables import print_json
from workbench.describe import Cluster, Strategy
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate import sizing
from workbench.estimate.inference import cache_bytes_per_token, inference_memory
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import OUTSIDE_ALLOCATOR, SLACK, Estimate
from workbench.estimate.simulate import SimulationUnavailable, simulate

_LOG_WIDTH = 100


@with_options
def memory(asked: MemoryAsked) -> None:
    """Predict and explain a rank's peak memory; rank options that lower it."""
    from workbench.cli.memory_view import inference_view, training_view  # noqa: PLC0415

    console = plain_console()
    if asked.inference:
        job, estimate = _served(asked)
        if asked.as_json:
            print_json(_inference_document(asked, job, estimate))
        else:
            show(console, inference_view(asked, job, estimate, console.width))
        return
    found = answer(describe(asked), asked.headroom)
    if asked.simulate:
        found = _simulated(found, asked.timeout)
    if asked.as_json:
        print_json(document(found))
    else:
        show(console, training_view(found, console.width))


def plain_console() -> Console:
    """A console of readable width: the terminal's up to 140, a fixed one in logs and pipes."""
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False)
        return Console(highlight=False, markup=False, width=min(140, console.width))
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else _LOG_WIDTH
    return Console(highlight=False, markup=False, width=max(60, width))


def show(console: Console, piece: RenderableType) -> None:
    """Print, without the blanks that fill table cells where no terminal hides them."""
    if console.is_terminal:
        console.print(piece)
        return
    with console.capture() as captured:
        console.print(piece)
    lines = (line.rstrip() for line in captured.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n")


def answer(job: Job, headroom: float) -> Answered:
    """Ask every question of the closed form.

    Raises:
        UsageError: the layout is impossible, or headroom is not a share.
    """
    workload, strategy, cluster = job.workload, job.strategy, job.cluster
    estimate = training_memory(workload, strategy, cluster)
    fits = sizing.leaves_headroom(estimate, headroom)
    gpu = accelerator(cluster)
    reach = cluster if isinstance(cluster, Cluster) else Cluster(name=cluster)
    on_cards = fits is None and cluster != "cpu"
    return Answered(
        job=job,
        estimate=estimate,
        headroom=headroom,
        explanation=sizing.explain(estimate, workload, strategy, cluster),
        switches=sizing.switches(workload, strategy, cluster),
        micro_batch=sizing.largest_micro_batch(workload, strategy, reach, headroom),
        sequence=sizing.longest_sequence(workload, strategy, reach, headroom),
        fits_on=sizing.smallest_gpu(workload, strategy, headroom=headroom) if on_cards else (),
        options=sizing.fewest_gpus(workload, gpu, headroom=headroom)
        if gpu is not None and fits is False
        else (),
    )


def _simulated(found: Answered, timeout_seconds: float) -> Answered:
    """Add the exact simulation, with its progress on stderr."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    estimate, job = found.estimate, found.job
    outside = sum(size for name, size in estimate.parts.items() if name in OUTSIDE_ALLOCATOR)
    outside -= estimate.parts.get(SLACK, 0)
    card = None if estimate.card_bytes is None else max(0, estimate.card_bytes - outside)
    columns = (TextColumn("simulating:"), BarColumn(), TextColumn("{task.description}"))
    stderr = Console(stderr=True, highlight=False)
    try:
        with Progress(*columns, TimeElapsedColumn(), console=stderr, transient=True) as progress:
            task = progress.add_task("starting", total=1.0)
            result = simulate(
                job.workload,
                job.strategy,
                card_bytes=card,
                on_progress=lambda fraction, text: progress.update(
                    task, completed=fraction, description=text
                ),
                timeout_seconds=timeout_seconds,
            )
    except SimulationUnavailable as error:
        stderr.print(
            f"The simulation is not available; showing the closed form only: {error}", markup=False
        )
        return replace(found, no_simulation=str(error))
    return replace(found, simulation=result)


def document(found: Answered) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    workload, strategy = found.job.workload, found.job.strategy
    simulation, estimate = found.simulation, found.estimate
    result = estimate.document() | _card(found.job)
    result |= {
        "model": workload.model.name,
        "parameters": workload.model.parameters,
        "strategy": strategy.name,
        "world_size": strategy.world_size,
        "headroom": found.headroom,
        "fits_with_headroom": sizing.leaves_headroom(estimate, found.headroom),
        "explanation": list(found.explanation),
        "switches": [one.document() for one in found.switches],
        "largest_micro_batch": _reach(found.micro_batch),
        "longest_sequence": _reach(found.sequence),
        "fits_on": [
            {"gpu": fit.gpu.id, "memory_bytes": fit.gpu.memory_bytes, "free_bytes": fit.free_bytes}
            for fit in found.fits_on
        ],
        "options": [one.document() for one in found.options],
        "notes": list(found.job.notes),
        "trainer": found.job.trainer and found.job.trainer.document(),
    }
    if simulation is not None or found.no_simulation is not None:
        result["simulation"] = simulation.document() if simulation else None
        result["simulation_unavailable"] = found.no_simulation
    if simulation is not None:
        result["simulated_to_closed_form"] = (
            simulation.allocated_bytes / estimate.allocated_bytes
            if estimate.allocated_bytes
            else None
        )
    return result


def _card(job: Job) -> dict[str, Any]:
    gpu = accelerator(job.cluster)
    return {
        "gpu": None if gpu is None else gpu.id,
        "gpu_unverified": [] if gpu is None else sorted(gpu.unverified),
    }


def _reach(found: sizing.Answer) -> dict[str, Any]:
    return {"value": found.value, "headroom": found.headroom, "reason": found.reason}


def _served(asked: MemoryAsked) -> tuple[Job, Estimate]:
    """Inference: the model is split over all GPUs by tensor parallelism."""
    named = asked.job.get("strategy")
    if named is not None and named.strip().lower() not in {"single", "tp"}:
        raise UsageError(
            f"Inference is estimated for single and tp, not {named!r}. Omit --strategy: all GPUs "
            "share the model."
        )
    frozen = {"quantization": None, "lora_rank": None, "strategy": None}
    job = describe(replace(asked, job={**asked.job, **frozen}))
    world = job.strategy.world_size
    work = job.workload
    estimate = inference_memory(
        work.model,
        work.seq_len,
        work.micro_batch,
        precision=work.precision.removesuffix("-pure"),
        quantization=asked.job.get("quantization", "none"),
        tp=world,
        kv_bytes=asked.kv_bytes,
        where=job.cluster,
    )
    return replace(job, strategy=Strategy.parse("single" if world == 1 else "tp", world)), estimate


def _inference_document(asked: MemoryAsked, job: Job, estimate: Estimate) -> dict[str, Any]:
    model, tp = job.workload.model, job.strategy.tp
    per_token = cache_bytes_per_token(model, tp=tp, kv_bytes=asked.kv_bytes)
    return (
        estimate.document()
        | _card(job)
        | {
            "model": model.name,
            "parameters": model.parameters,
            "strategy": job.strategy.name,
            "world_size": tp,
            "cache_bytes_per_token": per_token,
            "notes": list(job.notes),
            "trainer": job.trainer and job.trainer.document(),
        }
    )
