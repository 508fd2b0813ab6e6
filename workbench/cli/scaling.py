"""``workbench scale`` and ``workbench study``: several runs one after the other, and what follows.

Both keep their trials in ``<store>/studies/<id>.json``; ``--resume ID`` (or ``last``) repeats none
that is done. Ctrl-C ends the present run and keeps the others. Exit code 1: no trial was good.

``scale --json`` prints ``{"study", "target", "device", "cores", "curves": [{"mode", "points":
[{"ranks", "run", "measured", "step_seconds", "low_seconds", "high_seconds", "parts": {"compute",
"communication", "waiting", "data"}, "efficiency", "lost": {…}}]}], "failed": [{"label", "run",
"outcome", "why"}], "notes": […], "rented": [{"gpus", "step_seconds", "low_seconds",
"high_seconds", "efficiency", "measured_ratio"}]}``. A measured point's low and high are the
quartiles of its steps; a predicted one's its range. ``lost`` adds up to 1 - efficiency.

``study … --json`` prints ``{"study", "kind", "trials": [{"label", "value", "run", "outcome",
"problem", "processes", "step_seconds", "tokens_per_second", "peak_memory_bytes", "loss",
"sent_bytes", …}]}``; batch-size, accumulate and workers add ``"best"``, ``"why"`` and each trial's
``"rate"``, compression each trial's ``"sent_share"``, ``"step_share"`` and ``"loss_added"``.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from workbench.cli.scaling_view import (
    compression_table,
    curve_table,
    rented_table,
    tuning_table,
)
from workbench.cli.tables import print_json
from workbench.cli.terminal import CpuOption, JsonOption, StoreOption, console, errors
from workbench.compare.scaling_study import ScalingStudy
from workbench.compare.scaling_study import scale as run_scale
from workbench.compare.studies import study as studies
from workbench.compare.studies.compression import VARIANTS
from workbench.compare.studies.compression import compression as run_compression
from workbench.compare.studies.rented import rented
from workbench.compare.studies.study import Bench
from workbench.compare.studies.tuning import Tuning, Varied, batch_size, sweep
from workbench.errors import UsageError
from workbench.store.runs import Store

Target = Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help="What to run.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGS...]", help="Its own arguments; {value} where one is varied."),
]
Strategy = Annotated[str, typer.Option(help="Of more than one rank.")]
Resume = Annotated[
    str | None, typer.Option(metavar="STUDY", help="Go on with that study, or 'last'.")
]
Ranks = Annotated[int, typer.Option("--nproc", help="Ranks of every trial.")]
_SIZES = "Numbers of ranks, as 1,2,4."
_GPU = "Estimate --nodes-to on rented GPUs of this kind, as h100-sxm."


def scale(  # noqa: PLR0913 - a command's options are its arguments
    target: Target,
    arguments: Arguments = None,
    *,
    sizes: Annotated[str, typer.Option(help=_SIZES)] = "1,2",
    mode: Annotated[str, typer.Option(help="weak, strong or both.")] = "weak",
    steps: Annotated[int, typer.Option(help="Of each run; the first are not measured.")] = 30,
    strategy: Strategy = "ddp",
    to: Annotated[str, typer.Option(help="Extrapolate to these numbers of ranks.")] = "",
    nodes_to: Annotated[
        str, typer.Option(help="With --gpu: numbers of rented GPUs, as 8,64.")
    ] = "",
    gpu: Annotated[str | None, typer.Option(help=_GPU)] = None,
    global_batch: Annotated[int | None, typer.Option(help="Strong scaling of a script.")] = None,
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the same work on 1, 2, 4 … ranks: what each loses to what, and what more would do."""
    if bool(gpu) != bool(nodes_to):
        raise UsageError("--gpu and --nodes-to belong together, as --gpu h100-sxm --nodes-to 8,64.")
    rent = numbers("--nodes-to", nodes_to)
    with _shown() as told:
        found = run_scale(
            target,
            arguments or (),
            sizes=numbers("--sizes", sizes),
            mode=mode,
            steps=steps,
            strategy=strategy,
            to=numbers("--to", to),
            global_batch=global_batch,
            cpu=cpu,
            store=store,
            resume=resume,
            on_progress=told,
        )
    elsewhere = rented(found, arguments or (), gpu, rent) if gpu else ()
    if as_json:
        print_json({**found.document(), "rented": [asdict(one) for one in elsewhere]})
    else:
        _print_scaling(found)
        if elsewhere:
            console.print(rented_table(elsewhere, gpu or ""))
    if not found.curves:
        raise typer.Exit(1)


def _print_scaling(found: ScalingStudy) -> None:
    for curve in found.curves:
        console.print(curve_table(curve, found))
        console.print()
    for one in found.results:
        if not one.good:
            console.print(f"{one.label}: {one.outcome}, {one.problem}", markup=False)
    for note in found.notes:
        console.print(note, markup=False, style="dim")
    console.print(f"study {found.study}", markup=False)


study = typer.Typer(no_args_is_help=True, help="Tune one number, or compare compressions.")


@study.command("batch-size")
def batch_size_command(  # noqa: PLR0913 - a command's options are its arguments
    target: Target,
    arguments: Arguments = None,
    *,
    start: Annotated[int, typer.Option(help="The first micro-batch; then it doubles.")] = 1,
    most: Annotated[int, typer.Option(help="The largest that is tried.")] = 65_536,
    memory_limit: Annotated[
        float | None, typer.Option(metavar="GIB", help="Of a rank; default on CPU 80 % / ranks.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Of each trial.")] = 15,
    nproc: Ranks = 1,
    strategy: Strategy = "ddp",
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest micro-batch that is as fast as any: doubled until memory or gain ends."""
    if start < 1 or most < start or (memory_limit is not None and not memory_limit > 0):
        raise UsageError("--start, --most and --memory-limit are above 0, and --most >= --start.")
    limit = None if memory_limit is None else int(memory_limit * 2**30)
    varied = _varied("batch-size", arguments, nproc, strategy, steps)
    with _shown() as told:
        bench = _bench(target, store, cpu=cpu, resume=resume, told=told, limit=limit)
        found = batch_size(bench, varied, start=start, most=most)
    _print_tuning(found, as_json=as_json)


@study.command("accumulate")
def accumulate_command(  # noqa: PLR0913 - a command's options are its arguments
    target: Target,
    arguments: Arguments = None,
    *,
    values: Annotated[str, typer.Option(help="Micro-batches per step.")] = "1,2,4,8",
    steps: Annotated[int, typer.Option(help="Of each trial.")] = 12,
    nproc: Ranks = 2,
    strategy: Strategy = "ddp",
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """How much the rate gains when gradients travel once per several micro-batches."""
    varied = _varied("accumulate", arguments, nproc, strategy, steps)
    with _shown() as told:
        bench = _bench(target, store, cpu=cpu, resume=resume, told=told)
        found = sweep(bench, varied, numbers("--values", values))
    _print_tuning(found, as_json=as_json)


@study.command("workers")
def workers_command(  # noqa: PLR0913 - a command's options are its arguments
    target: Target,
    arguments: Arguments = None,
    *,
    values: Annotated[str, typer.Option(help="Loader workers of each rank.")] = "0,1,2,4",
    steps: Annotated[int, typer.Option(help="Of each trial.")] = 20,
    nproc: Ranks = 1,
    strategy: Strategy = "ddp",
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """How many loader workers a script needs: study workers train.py -- --workers {value}."""
    varied = _varied("workers", arguments, nproc, strategy, steps)
    with _shown() as told:
        bench = _bench(target, store, cpu=cpu, resume=resume, told=told)
        found = sweep(bench, varied, numbers("--values", values, least=0))
    _print_tuning(found, as_json=as_json)


@study.command("compression")
def compression_command(  # noqa: PLR0913 - a command's options are its arguments
    target: Target = "gpt",
    arguments: Arguments = None,
    *,
    variants: Annotated[str, typer.Option(help=f"Of {', '.join(VARIANTS)}.")] = ",".join(VARIANTS),
    steps: Annotated[int, typer.Option(help="Of each trial.")] = 60,
    nproc: Ranks = 2,
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Gradient compression and precision: loss after the same steps, bytes sent, time of a step."""
    with _shown() as told:
        bench = _bench(target, store, cpu=cpu, resume=resume, told=told)
        chosen = [one.strip() for one in variants.split(",") if one.strip()]
        found = run_compression(
            bench, arguments or (), processes=nproc, steps=steps, variants=chosen
        )
    if as_json:
        print_json(found.document())
    else:
        console.print(compression_table(found))
    if not any(one.good for one in found.results):
        raise typer.Exit(1)


def _varied(
    kind: str, arguments: list[str] | None, nproc: int, strategy: str, steps: int
) -> Varied:
    return Varied(
        kind=kind,
        arguments=tuple(arguments or ()),
        processes=nproc,
        strategy=strategy,
        steps=steps,
    )


def _bench(
    target: str,
    store: str | None,
    *,
    cpu: bool,
    resume: str | None,
    told: studies.Told | None,
    limit: int | None = None,
) -> Bench:
    return Bench(
        target=target,
        store=Store(store),
        cpu=cpu,
        resume=resume,
        on_progress=told,
        memory_limit_bytes=limit,
    )


def _print_tuning(found: Tuning, *, as_json: bool) -> None:
    if as_json:
        print_json(found.document())
    else:
        console.print(tuning_table(found))
        console.print(f"{found.best if found.best is not None else 'none'}: {found.why}.")
    if found.best is None:
        raise typer.Exit(1)


def numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """Whole numbers between commas, rising; nothing for nothing.

    >>> numbers("--sizes", "4,1,2")
    (1, 2, 4)
    """
    try:
        found = sorted({int(one) for one in text.split(",") if one.strip()})
    except ValueError:
        found = [least - 1]
    if found and found[0] < least:
        raise UsageError(
            f"{option} {text!r}: give whole numbers from {least} up, between commas, as 1,2,4."
        )
    return tuple(found)


@contextmanager
def _shown() -> Generator[studies.Told | None]:
    """A bar on stderr where somebody looks; Ctrl-C becomes a sentence and exit code 1."""
    try:
        if not sys.stderr.isatty():
            yield None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def told(now: studies.Progress) -> None:
                text = f"{now.label}, step {now.steps}"
                bar.update(task, description=text, completed=now.done, total=now.of)

            yield told
    except KeyboardInterrupt:
        errors.print("Stopped. What is done is kept: go on with --resume last.", markup=False)
        raise typer.Exit(1) from None
