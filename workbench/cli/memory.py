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
from workbench.cli.memory_values import MemoryAnswer, MemoryOptions, accelerator
from workbench.cli.tables import print_json
from workbench.cli.text_console import TextConsole
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
def memory(options: MemoryOptions) -> None:
    """Predict and explain a rank's peak memory; rank options that lower it."""
    from workbench.cli.memory_view import inference_view, training_view  # noqa: PLC0415

    _refuse_idle(options)
    console = plain_console()
    if options.inference:
        job, estimate = _served(options)
        if options.as_json:
            print_json(_inference_document(options, job, estimate))
        else:
            show(console, inference_view(options, job, estimate, console.width))
        return
    report = answer(describe(options), options.headroom)
    if options.simulate:
        report = _simulated(report, options.timeout)
    if options.as_json:
        print_json(document(report))
    else:
        show(console, training_view(report, console.width))


def _refuse_idle(options: MemoryOptions) -> None:
    """Options that would change nothing of the answer."""
    if options.inference and options.simulate:
        raise UsageError(
            "--simulate runs a training step, and --inference asks about serving. Remove one of "
            "them."
        )
    if not options.inference and options.kv_bytes != MemoryOptions.kv_bytes:
        raise UsageError(
            "--kv-bytes is about the cache of --inference. Add --inference, or remove --kv-bytes."
        )


def plain_console() -> Console:
    """A console of readable width: the terminal's up to 140, a fixed one in logs and pipes."""
    if sys.stdout.isatty():
        console = TextConsole(highlight=False, markup=False)
        return TextConsole(highlight=False, markup=False, width=min(140, console.width))
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else _LOG_WIDTH
    return TextConsole(highlight=False, markup=False, width=max(60, width))


def show(console: Console, piece: RenderableType) -> None:
    """Print, without the blanks that fill table cells where no terminal hides them."""
    if console.is_terminal:
        console.print(piece)
        return
    with console.capture() as captured:
        console.print(piece)
    lines = (line.rstrip() for line in captured.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n")


def answer(job: Job, headroom: float) -> MemoryAnswer:
    """Ask every question of the closed form.

    Raises:
        UsageError: the layout is impossible, or headroom is not a share.
    """
    workload, strategy, cluster = job.workload, job.strategy, job.cluster
    estimate = training_memory(job)
    fits = sizing.leaves_headroom(estimate, headroom)
    gpu = accelerator(cluster)
    target_cluster = cluster if isinstance(cluster, Cluster) else Cluster(name=cluster)
    on_cards = fits is None and cluster != "cpu"
    return MemoryAnswer(
        job=job,
        estimate=estimate,
        headroom=headroom,
        explanation=sizing.explain(estimate, job),
        switches=sizing.switches(job),
        micro_batch=sizing.largest_micro_batch(workload, strategy, target_cluster, headroom),
        sequence=sizing.longest_sequence(workload, strategy, target_cluster, headroom),
        fits_on=sizing.smallest_gpu(job, headroom=headroom) if on_cards else (),
        options=sizing.fewest_gpus(job, gpu, headroom=headroom)
        if gpu is not None and fits is False
        else (),
    )


def _simulated(report: MemoryAnswer, timeout_seconds: float) -> MemoryAnswer:
    """Add the exact simulation, with its progress on stderr."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    estimate, job = report.estimate, report.job
    outside = sum(size for name, size in estimate.parts.items() if name in OUTSIDE_ALLOCATOR)
    outside -= estimate.parts.get(SLACK, 0)
    card = None if estimate.card_bytes is None else max(0, estimate.card_bytes - outside)
    columns = (TextColumn("simulating:"), BarColumn(), TextColumn("{task.description}"))
    stderr = TextConsole(stderr=True, highlight=False)
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
        return replace(report, no_simulation=str(error))
    return replace(report, simulation=result)


def document(report: MemoryAnswer) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    workload, strategy = report.job.workload, report.job.strategy
    simulation, estimate = report.simulation, report.estimate
    result = estimate.document() | _card(report.job) | _host(report)
    result |= {
        "model": workload.model.name,
        "parameters": workload.model.parameters,
        "strategy": strategy.name,
        "world_size": strategy.world_size,
        "headroom": report.headroom,
        "fits_with_headroom": sizing.leaves_headroom(estimate, report.headroom),
        "explanation": list(report.explanation),
        "switches": [switch.document() for switch in report.switches],
        "largest_micro_batch": _limit_document(report.micro_batch),
        "longest_sequence": _limit_document(report.sequence),
        "fits_on": [
            {"gpu": fit.gpu.id, "memory_bytes": fit.gpu.memory_bytes, "free_bytes": fit.free_bytes}
            for fit in report.fits_on
        ],
        "options": [option.document() for option in report.options],
        "notes": list(report.job.notes),
        "cautions": list(report.cautions),
        "trainer": report.job.trainer and report.job.trainer.document(),
    }
    if simulation is not None or report.no_simulation is not None:
        result["simulation"] = simulation.document() if simulation else None
        result["simulation_unavailable"] = report.no_simulation
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


def _host(report: MemoryAnswer) -> dict[str, Any]:
    """What the host has for what offload needs (`host_bytes`); null where either is not known."""
    cluster, needed = report.job.cluster, report.estimate.host_bytes
    memory_bytes = cluster.memory_bytes if isinstance(cluster, Cluster) else None
    fits = None if needed is None or memory_bytes is None else needed <= memory_bytes
    return {"host_memory_bytes": memory_bytes, "host_fits": fits}


def _limit_document(report: sizing.Answer) -> dict[str, Any]:
    return {"value": report.value, "headroom": report.headroom, "reason": report.reason}


def _served(options: MemoryOptions) -> tuple[Job, Estimate]:
    """Inference: the model is split over all GPUs by tensor parallelism."""
    strategy_name = options.job.get("strategy")
    if strategy_name is not None and strategy_name.strip().lower() not in {"single", "tp"}:
        raise UsageError(
            f"Inference is estimated for single and tp, not {strategy_name!r}. Omit --strategy: "
            "all GPUs share the model."
        )
    frozen = {"quantization": None, "lora_rank": None, "strategy": None}
    job = describe(replace(options, job={**options.job, **frozen}))
    world = job.strategy.world_size
    work = job.workload
    estimate = inference_memory(
        work.model,
        work.seq_len,
        work.micro_batch,
        precision=work.precision.removesuffix("-pure"),
        quantization=options.job.get("quantization", "none"),
        tp=world,
        kv_bytes=options.kv_bytes,
        where=job.cluster,
    )
    return replace(job, strategy=Strategy.parse("single" if world == 1 else "tp", world)), estimate


def _inference_document(options: MemoryOptions, job: Job, estimate: Estimate) -> dict[str, Any]:
    model, tp = job.workload.model, job.strategy.tp
    length = job.workload.seq_len
    per_token = cache_bytes_per_token(model, length, tp=tp, kv_bytes=options.kv_bytes)
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
